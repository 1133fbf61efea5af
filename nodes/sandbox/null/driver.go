package null

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Name is the driver's name in specs.
const Name = "null"

// sigterm and sigkill are the signals that mean something here.
const (
	sigterm = 15
	sigkill = 9
)

// Driver is the null driver. Its sandboxes survive it in its directory, as those of
// other drivers survive the daemon.
type Driver struct {
	mu     sync.Mutex
	file   *file
	boxes  map[string]*box
	closed bool
}

// state is what is on disk of a sandbox.
type state struct {
	Info    sandbox.Info
	Command []string
	// LogPath has the name of when a log was always a directory.
	LogPath string `json:"LogDir"`
	// Started is zero before the start.
	Started time.Time
	// Ended and Signal are set when something from outside ended it.
	Ended  time.Time
	Signal int32
	// Killed tells that Kill has seen to it that nothing is left.
	Killed bool
}

// box is a sandbox of this process. It has no goroutine: there may be very many.
type box struct {
	state   state
	program program
	// bytes is how much of the file tells of it.
	bytes int64
	// over is set at the end; timer sets it at the programmed time.
	over  bool
	timer *time.Timer
	// logEnded means that the log has its end mark.
	logEnded bool
	waiters  []*waiter
}

var _ sandbox.WaitsThen = (*Driver)(nil)

// waiter is a wait for the end of a sandbox.
type waiter struct {
	then func(sandbox.Exit, error)
}

// New opens the driver on a directory, which it makes.
func New(dir string) (*Driver, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	file, states, err := openFile(dir)
	if err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	d := &Driver{file: file, boxes: make(map[string]*box, len(states))}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, state := range states {
		x := &box{state: *state}
		if x.program, err = parse(x.state.Command); err != nil {
			return nil, errors.Join(fmt.Errorf("open null driver: sandbox %s: %w", state.Info.ID, err), file.close())
		}
		d.boxes[state.Info.ID] = x
		d.arm(x)
	}
	return d, nil
}

// arm sets the end of a started sandbox. The caller holds the lock.
func (d *Driver) arm(x *box) {
	left := time.Until(x.state.Started.Add(x.program.After))
	switch {
	case x.state.Started.IsZero():
	case !x.state.Ended.IsZero() || left <= 0:
		d.finish(x)
	default:
		x.timer = time.AfterFunc(left, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.finish(x)
		})
	}
}

// finish marks the end and tells those who wait for it. The caller holds the lock.
func (d *Driver) finish(x *box) {
	if x.timer != nil {
		x.timer.Stop()
	}
	x.over = true
	for _, w := range x.waiters {
		d.tell(x, w)
	}
	x.waiters = nil
}

// tell answers a wait. The caller holds the lock.
func (d *Driver) tell(x *box, w *waiter) {
	if d.closed || d.boxes[x.state.Info.ID] != x {
		w.then(sandbox.Exit{}, records.Errorf(records.ClassUnavailable, "wait for sandbox %s: it or the driver went", x.state.Info.ID))
		return
	}
	w.then(x.exit(), nil)
}

// Name returns "null".
func (d *Driver) Name() string { return Name }

// find returns a sandbox. The caller holds the lock.
func (d *Driver) find(id string) (*box, error) {
	x := d.boxes[id]
	if x == nil {
		return nil, records.Errorf(records.ClassNotFound, "sandbox %s is not there", id)
	}
	return x, nil
}

// Create reads the program.
func (d *Driver) Create(_ context.Context, spec sandbox.Spec) error {
	p, err := parse(spec.Spec.GetCommand())
	if err != nil {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	}
	if p.CreateError != 0 {
		return sandbox.Transientf(p.CreateError, "programmed to fail")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.boxes[spec.ID] != nil {
		return records.Errorf(records.ClassConflict, "create sandbox %s: it exists", spec.ID)
	}
	x := &box{program: p, state: state{
		Info: sandbox.Info{
			ID: spec.ID, Run: spec.Run, Attempt: spec.Attempt, Placement: spec.Placement,
			StartToken: slices.Clone(spec.StartToken), SpecHash: slices.Clone(spec.SpecHash),
		},
		Command: slices.Clone(spec.Spec.GetCommand()),
		LogPath: spec.LogPath,
	}}
	if err := d.save(x); err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	d.boxes[spec.ID] = x
	return nil
}

// Start begins the program.
func (d *Driver) Start(_ context.Context, id string) (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, err := d.find(id)
	if err != nil {
		return time.Time{}, err
	}
	if !x.state.Started.IsZero() {
		return time.Time{}, records.Errorf(records.ClassConflict, "start sandbox %s: started before", id)
	}
	if x.program.StartError != 0 {
		return time.Time{}, sandbox.Permanentf(x.program.StartError, "programmed to fail")
	}
	x.state.Started = time.Now()
	if err := d.save(x); err != nil {
		x.state.Started = time.Time{}
		return time.Time{}, fmt.Errorf("start sandbox %s: %w", id, err)
	}
	if err := x.writeLog(); err != nil {
		return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
	}
	d.arm(x)
	return x.state.Started, nil
}

func (x *box) writeLog() error {
	if len(x.program.Log) == 0 || x.program.NoLog {
		return nil
	}
	w, err := logs.Create(x.state.LogPath, logs.WriterOptions{})
	if err != nil {
		return err
	}
	defer w.Close()
	for _, text := range x.program.Log {
		w.Append(logs.Stdout, []byte(text+"\n"))
	}
	return nil
}

// Signal ends the program on TERM and KILL.
func (d *Driver) Signal(_ context.Context, id string, signal int) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, err := d.find(id)
	if err != nil {
		return false, err
	}
	if x.state.Started.IsZero() || x.over {
		return false, nil
	}
	if signal == sigkill || (signal == sigterm && !x.program.IgnoreTerm) {
		return true, d.end(x, int32(signal))
	}
	return true, nil
}

// end ends a running program by a signal. The caller holds the lock.
func (d *Driver) end(x *box, signal int32) error {
	x.state.Ended, x.state.Signal = time.Now(), signal
	if err := d.save(x); err != nil {
		x.state.Ended, x.state.Signal = time.Time{}, 0
		return fmt.Errorf("end sandbox %s: %w", x.state.Info.ID, err)
	}
	d.finish(x)
	return nil
}

// Kill ends the program.
func (d *Driver) Kill(_ context.Context, id string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil || x.state.Started.IsZero() {
		return false, nil
	}
	running := !x.over
	leftover := running || x.program.Leftover && !x.state.Killed
	if !leftover {
		return false, nil
	}
	x.state.Killed = true
	var err error
	if running {
		err = d.end(x, sigkill)
	} else {
		err = d.save(x)
	}
	if err != nil {
		x.state.Killed = false
		return false, fmt.Errorf("kill sandbox %s: %w", id, err)
	}
	return true, nil
}

// Wait waits for the program's end.
func (d *Driver) Wait(ctx context.Context, id string) (sandbox.Exit, error) {
	type answer struct {
		exit sandbox.Exit
		err  error
	}
	answers := make(chan answer, 1)
	stop := d.await(id, func(exit sandbox.Exit, err error) { answers <- answer{exit, err} })
	defer stop()
	select {
	case a := <-answers:
		return a.exit, a.err
	case <-ctx.Done():
		return sandbox.Exit{}, records.Errorf(records.ClassDeadline, "wait for sandbox %s: %w", id, ctx.Err())
	}
}

// WaitThen calls then with what Wait would return.
func (d *Driver) WaitThen(id string, then func(sandbox.Exit, error)) { d.await(id, then) }

func (d *Driver) await(id string, then func(sandbox.Exit, error)) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, err := d.find(id)
	if err != nil {
		then(sandbox.Exit{}, err)
		return func() {}
	}
	w := &waiter{then: then}
	if x.over || d.closed {
		d.tell(x, w)
		return func() {}
	}
	x.waiters = append(x.waiters, w)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		x.waiters = slices.DeleteFunc(x.waiters, func(other *waiter) bool { return other == w })
	}
}

func (x *box) exit() sandbox.Exit {
	e := sandbox.Exit{StartedAt: x.state.Started, At: x.state.Ended, Signal: x.state.Signal, Source: Name}
	code := x.program.Exit
	if e.At.IsZero() {
		e.At = x.state.Started.Add(x.program.After)
		e.Signal, e.OOMKilled = x.program.Signal, x.program.OOM
	}
	if e.Signal != 0 {
		code = 128 + e.Signal
	}
	e.Code = &code
	// Nothing is left of a program that was not programmed to leave something.
	if !x.program.Leftover && !x.state.Killed && x.endLog() == nil {
		e.Settled, e.LogComplete = true, true
	}
	return e
}

// endLog writes the log's end mark, once.
func (x *box) endLog() error {
	if x.logEnded || x.program.NoLog {
		return nil
	}
	w, err := logs.Create(x.state.LogPath, logs.WriterOptions{})
	if err != nil {
		return err
	}
	defer w.Close()
	if !w.End(true) {
		return errors.New("the log has no end")
	}
	x.logEnded = true
	return nil
}

// Flush writes the log's end mark.
func (d *Driver) Flush(_ context.Context, id string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil || x.state.Started.IsZero() {
		return true, nil
	}
	if err := x.endLog(); err != nil {
		return false, fmt.Errorf("flush sandbox %s: %w", id, err)
	}
	return true, nil
}

// Remove forgets the sandbox.
func (d *Driver) Remove(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil {
		return nil
	}
	if err := d.forget(x); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	d.finish(x)
	return nil
}

// List returns all sandboxes, by id.
func (d *Driver) List(context.Context) ([]sandbox.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	infos := make([]sandbox.Info, 0, len(d.boxes))
	for _, x := range d.boxes {
		infos = append(infos, x.info())
	}
	slices.SortFunc(infos, func(a, b sandbox.Info) int { return strings.Compare(a.ID, b.ID) })
	return infos, nil
}

// Close lets go of all sandboxes; those that run end in time all the same.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, x := range d.boxes {
		d.finish(x)
	}
	return d.file.close()
}
