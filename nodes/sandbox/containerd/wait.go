package containerd

import (
	"context"
	"sync/atomic"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	task "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

const (
	// rehear is the pause before a shim or a containerd that failed is asked again.
	rehear = 100 * time.Millisecond
	// lookEvery is how often a wait looks whether init has left a word that the shim
	// does not confirm.
	lookEvery = time.Second
	// silentMax is for how long a shim may keep silent of a sandbox that is known to
	// have ended.
	silentMax = 5 * time.Second
	// goneEvery is how often the processes of a sandbox without a shim are counted.
	goneEvery = 50 * time.Millisecond
)

// shimWord is what containerd says of an end: a code that the shim saw, or that
// nobody has it any more.
type shimWord struct {
	code *int
	at   time.Time
}

// Wait returns when the main process has ended, and judges by what init and shim say.
// It goes on through restarts of containerd: one that is away has not lost anything.
func (d *Driver) Wait(ctx context.Context, id string) (sandbox.Exit, error) {
	ctx = quiet.Context(ctx)
	if known, ok := d.exits.Load(id); ok {
		return known.(sandbox.Exit), nil
	}
	n, err := d.readNote(id)
	if err != nil {
		return sandbox.Exit{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.open, cancel)()
	word, gone, err := d.hear(ctx, id)
	if err != nil {
		return sandbox.Exit{}, err
	}
	t := testimony{code: word.code, at: word.at, gone: gone, start: n.start()}
	if t.at.IsZero() {
		t.at = time.Now()
	}
	_, t.killed = d.killed.Load(id)
	if t.file, t.malformed, err = d.readStatus(id); err != nil {
		return sandbox.Exit{}, err
	}
	if t.oomKills, err = d.parent.Group(id).OOMKills(); err != nil {
		return sandbox.Exit{}, records.Errorf(records.ClassInternal, "wait for sandbox %s: %w", id, err)
	}
	if t.oomKills > 0 {
		if t.memoryPeak, err = d.parent.Group(id).MemoryPeak(); err != nil {
			return sandbox.Exit{}, records.Errorf(records.ClassInternal, "wait for sandbox %s: %w", id, err)
		}
	}
	exit, disagree := outcome(t)
	if disagree {
		d.log.Error("init and shim disagree about the end of a sandbox; the shim's code counts",
			zap.String("sandbox", id), zap.String("run", n.Run), zap.Stringer("init", t.file.State), zap.Int("init_value", t.file.Value),
			zap.Bool("init_malformed", t.malformed), zap.Int("shim", *t.code))
	}
	if exit.Code == nil && t.code != nil && (t.file.State == status.Starting || t.file.State == status.Running) {
		d.log.Error("the init of a sandbox ended by itself and did not tell of the command's end",
			zap.String("sandbox", id), zap.String("run", n.Run), zap.Stringer("init", t.file.State), zap.Int("shim", *t.code))
	}
	d.exits.Store(id, exit)
	return exit, nil
}

// hear returns what the shim says, or that the sandbox has ended without its word.
func (d *Driver) hear(ctx context.Context, id string) (word shimWord, gone bool, err error) {
	listening, cancel := context.WithCancel(ctx)
	words := make(chan shimWord, 1)
	var away atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if word, ok := d.hearShim(listening, id, &away); ok {
			words <- word
		}
	}()
	defer func() { cancel(); <-ended }()

	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var silentSince time.Time
	for {
		select {
		case word := <-words:
			if word.code != nil {
				return word, true, nil
			}
			gone, err := d.awaitGone(ctx, id)
			return word, gone, err
		case <-look.C:
			if !d.endedSilently(id, away.Load()) {
				silentSince = time.Time{}
				continue
			}
			if silentSince.IsZero() {
				silentSince = time.Now()
			}
			if time.Since(silentSince) >= silentMax || d.shimStopped(id) {
				d.log.Warn("a shim keeps silent about a sandbox that has ended", zap.String("sandbox", id))
				return shimWord{}, true, nil
			}
		case <-ctx.Done():
			return shimWord{}, false, records.Errorf(records.ClassDeadline, "wait for sandbox %s: %w", id, ctx.Err())
		}
	}
}

// endedSilently tells whether a sandbox has ended though no shim has said so: no
// process is left, and init told how it ended; or containerd is there, and init did
// not. While containerd is away the shim may yet have the code that init could not
// write.
func (d *Driver) endedSilently(id string, away bool) bool {
	s, malformed, err := d.readStatus(id)
	if err != nil || (malformed || !s.State.Ended()) && away {
		return false
	}
	empty, err := d.parent.Group(id).Empty()
	return err == nil && empty
}

// hearShim asks until there is an answer; ok is false when the context ended first.
func (d *Driver) hearShim(ctx context.Context, id string, away *atomic.Bool) (shimWord, bool) {
	for {
		answer, err := d.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
		if err == nil && observed(answer.GetExitedAt()) {
			return codeWord(answer.GetExitStatus(), answer.GetExitedAt()), true
		}
		if ctx.Err() != nil {
			return shimWord{}, false
		}
		// The wait broke, or answered something made up. Ask for the state instead.
		ask, cancel := context.WithTimeout(ctx, askMax)
		process, err := d.ask(ask, id)
		cancel()
		away.Store(err != nil && errdefs.IsUnavailable(err))
		switch {
		case errdefs.IsNotFound(err):
			return shimWord{}, true
		case err == nil && process.GetStatus() == task.Status_STOPPED && observed(process.GetExitedAt()):
			return codeWord(process.GetExitStatus(), process.GetExitedAt()), true
		}
		select {
		case <-ctx.Done():
			return shimWord{}, false
		case <-time.After(rehear):
		}
	}
}

// observed tells an exit time that a shim has seen from none.
func observed(at *timestamppb.Timestamp) bool {
	return at != nil && (at.GetSeconds() > 0 || at.GetNanos() > 0)
}

func codeWord(code uint32, at *timestamppb.Timestamp) shimWord {
	number := int(code)
	return shimWord{code: &number, at: at.AsTime()}
}

// awaitGone returns when no process of a sandbox without a shim is left. containerd
// kills them when a shim was lost; where it is the container's record that was lost
// they go on, and init tells how they end.
func (d *Driver) awaitGone(ctx context.Context, id string) (bool, error) {
	group := d.parent.Group(id)
	tick := time.NewTicker(goneEvery)
	defer tick.Stop()
	for {
		empty, err := group.Empty()
		if err != nil {
			return false, records.Errorf(records.ClassInternal, "wait for sandbox %s: %w", id, err)
		}
		if empty {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, records.Errorf(records.ClassDeadline, "wait for sandbox %s: %w", id, ctx.Err())
		case <-tick.C:
		}
	}
}
