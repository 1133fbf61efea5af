package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	liveSubmitters = 64
	// activeRuns are created within what an actor stays active when nothing happens.
	activeRuns = 1000
	// passivation is after what time those actors are gone.
	passivation = 8 * time.Second
	// restTime is how long the node's processor time is watched when it rests.
	restTime = 30 * time.Second
	// calmTime is how long it rests before: the runtime of Go goes on giving back what
	// memory a load left.
	calmTime = 30 * time.Second
	// settleMost is how long the node may take to come to rest, lookPause the time between
	// two looks.
	settleMost = 10 * time.Minute
	lookPause  = 200 * time.Millisecond
)

// liveRuns has one node hold very many runs that do not end: what they take of its
// memory, what it does when nothing happens, how long it takes to come back with them,
// and that they can all be ended.
func liveRuns(ctx context.Context, s sizes) (rows []row, err error) {
	l := &live{count: s.live, flags: []string{
		"--drivers", "null", "--sandboxes-max", "100000", "--cpu-millis", "1000000000", "--memory-bytes", strconv.Itoa(1 << 50),
	}}
	if l.daemon, err = startDaemon(ctx, l.flags...); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.daemon.stop()) }()
	for _, step := range []func(context.Context) error{l.actors, l.fill, l.rest, l.restart, l.cancel} {
		if err := step(ctx); err != nil {
			return l.rows, err
		}
	}
	return l.rows, nil
}

type live struct {
	daemon *benchDaemon
	flags  []string
	// count is how many are to be live, ids are those that were created.
	count int
	ids   []string
	rows  []row
	// empty is the heap of a daemon that has had a few runs and holds none.
	empty heap
}

func (l *live) add(what, unit string, value float64, bar *bar, note string) {
	l.rows = append(l.rows, row{What: what, Unit: unit, Values: []float64{value}, Bar: bar, Note: note})
}

// create makes so many more runs and waits until all of them run.
func (l *live) create(ctx context.Context, runs int) (rate, error) {
	spec := &errandv1.RunSpec{Driver: "null", Command: []string{"after=24h", "no-log"}}
	ids := make([]string, runs)
	var next atomic.Int64
	begin := time.Now()
	r, err := driveWhile(ctx, liveSubmitters, counted(runs), func(ctx context.Context, _ int) error {
		created, err := l.daemon.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: spec})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		ids[next.Add(1)-1] = created.GetRun().GetId()
		return nil
	})
	l.ids = append(l.ids, ids...)
	if err != nil {
		return r, err
	}
	err = l.until(ctx, func(live int) bool { return live >= len(l.ids) })
	r.took = time.Since(begin)
	return r, err
}

// actors measures what an active actor of a run takes: the same runs with and without.
func (l *live) actors(ctx context.Context) error {
	if _, err := driveWhile(ctx, liveSubmitters, counted(activeRuns), runOf(l.daemon, nothing)); err != nil {
		return err
	}
	if err := pause(ctx, passivation); err != nil {
		return err
	}
	var err error
	if l.empty, err = l.heap(ctx); err != nil {
		return err
	}
	if _, err := l.create(ctx, activeRuns); err != nil {
		return err
	}
	active, err := l.heap(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, passivation); err != nil {
		return err
	}
	passive, err := l.heap(ctx)
	if err != nil {
		return err
	}
	l.add("an active run actor, beyond its live run", "KiB", float64(active.total-passive.total)/1024/activeRuns, atMost(6),
		fmt.Sprintf("heap and stacks of the daemon with %d active ones, against the same when they are passivated", activeRuns))
	return nil
}

// fill makes the node hold all of them.
func (l *live) fill(ctx context.Context) error {
	r, err := l.create(ctx, l.count-len(l.ids))
	if err != nil {
		return err
	}
	l.add(fmt.Sprintf("%d live runs on one node: created and running", l.count), "/s", r.perSecond(), nil, "")
	return nil
}

// rest measures the node with all of them when nothing happens.
func (l *live) rest(ctx context.Context) error {
	if err := pause(ctx, passivation); err != nil {
		return err
	}
	heap, err := l.heap(ctx)
	if err != nil {
		return err
	}
	resident, err := l.daemon.ResidentBytes()
	if err != nil {
		return err
	}
	if err := pause(ctx, calmTime); err != nil {
		return err
	}
	before, err := l.daemon.spent()
	if err != nil {
		return err
	}
	if err := pause(ctx, restTime); err != nil {
		return err
	}
	after, err := l.daemon.spent()
	if err != nil {
		return err
	}
	l.add("the same: a live run's memory, actor passivated", "KiB", float64(heap.total-l.empty.total)/1024/float64(len(l.ids)), atMost(0.5),
		"all that the daemon holds for it: deadline, node, null sandbox, and its three keys in the index of the embedded store")
	l.add("the same: of that, without the embedded store and the null driver", "KiB", (heap.engine-l.empty.engine)/1024/float64(len(l.ids)), nil,
		"by the heap's profile, which is sampled: what the engine itself holds for it")
	l.add("the same: resident", "MiB", mebibytes(resident), nil, "")
	l.add("the same: idle", "% of a core", 100*(after-before).Seconds()/restTime.Seconds(), atMost(2), fmt.Sprintf("over %s, %s after the load", restTime, calmTime+passivation))
	return nil
}

// restart stops the daemon and starts it again: all runs go on.
func (l *live) restart(ctx context.Context) error {
	if err := l.daemon.again(ctx, l.flags...); err != nil {
		return err
	}
	begin := time.Now()
	if err := l.until(ctx, func(live int) bool { return live == len(l.ids) }); err != nil {
		return err
	}
	l.add("the same: daemon start to ready, all adopted", "s", (l.daemon.Ready + time.Since(begin)).Seconds(), nil, "")
	return nil
}

// cancel ends all of them.
func (l *live) cancel(ctx context.Context) error {
	var next atomic.Int64
	begin := time.Now()
	beside := l.besideCancels(ctx)
	r, err := driveWhile(ctx, liveSubmitters, counted(len(l.ids)), func(ctx context.Context, _ int) error {
		_, err := l.daemon.Runs.Cancel(ctx, &errandv1.CancelRunRequest{Id: l.ids[next.Add(1)-1]})
		return err
	})
	took, besideErr := beside()
	if err := errors.Join(err, besideErr); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	if err := l.until(ctx, func(live int) bool { return live == 0 }); err != nil {
		return err
	}
	r.took = time.Since(begin)
	for _, id := range l.ids[:10] {
		got, err := l.daemon.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
		if err != nil || got.GetRun().GetStatus() != errandv1.Status_STATUS_CANCELED {
			return fmt.Errorf("run %s is %s after its cancel: %w", id, got.GetRun().GetStatus(), err)
		}
	}
	l.add("the same: canceled", "/s", r.perSecond(), nil, "until no sandbox is left")
	if len(took) > 0 {
		l.rows = append(l.rows, row{
			What: "the same: a short run from its submission to its end meanwhile", Unit: "ms", Values: took,
			Note: fmt.Sprintf("%d runs one after the other, beside %d submitters of cancels", len(took), liveSubmitters),
		})
	}
	return nil
}

// besideCancels has short runs made one after the other until it is told to stop, and
// returns how long each took in milliseconds.
func (l *live) besideCancels(ctx context.Context) (stop func() ([]float64, error)) {
	quit, done := make(chan struct{}), make(chan struct{})
	var took []float64
	var err error
	go func() {
		defer close(done)
		once := runOf(l.daemon, nothing)
		for err == nil {
			begin := time.Now()
			if err = once(ctx, 0); err == nil {
				took = append(took, milliseconds(time.Since(begin)))
			}
			select {
			case <-quit:
				return
			case <-time.After(lookPause):
			}
		}
	}()
	return func() ([]float64, error) {
		close(quit)
		<-done
		return took, err
	}
}

// until waits for a number of sandboxes that have not ended.
func (l *live) until(ctx context.Context, enough func(live int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleMost)
	defer cancel()
	for {
		listed, err := l.daemon.Nodes.List(ctx, &errandv1.ListNodesRequest{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		live := 0
		for _, node := range listed.GetNodes() {
			live += int(node.GetSandboxes())
		}
		if enough(live) {
			return nil
		}
		if err := pause(ctx, lookPause); err != nil {
			return fmt.Errorf("%d runs are live: %w", live, err)
		}
	}
}
