package null

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	mu       sync.Mutex
	file     *file
	boxes    map[string]*box
	programs programs
	ends     ends
	closed   bool
}

// box is a sandbox of this process. There may be very many, most of which only wait for
// their end: it has no goroutine, no timer, and shares its program with its likes.
type box struct {
	id, run string
	// keys are the start token, and then the spec's hash.
	keys    string
	logPath string
	program *program
	// started is 0 before the start; ended and signal are set when something from
	// outside ended it. Times are in nanoseconds of Unix time.
	started, ended     int64
	attempt, placement int32
	signal             int32
	// tokenBytes is how long the start token is.
	tokenBytes int
	// over is set at the end; seat is its place among those that wait for theirs, from
	// 1, or 0.
	over bool
	// killed tells that Kill has seen to it that nothing is left.
	killed bool
	// logEnded means that the log has its end mark.
	logEnded bool
	seat     int
	// bytes is how much of the file tells of it.
	bytes   int
	waiters *waiter
}

var _ sandbox.WaitsThen = (*Driver)(nil)

// waiter is a wait for the end of a sandbox, and the next one.
type waiter struct {
	then func(sandbox.Exit, error)
	next *waiter
}

// New opens the driver on a directory, which it makes.
func New(dir string) (*Driver, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	d := &Driver{file: &file{path: filepath.Join(dir, fileName)}, programs: programs{}}
	if err := d.load(); err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.boxes {
		d.arm(x)
	}
	return d, nil
}

// arm sets the end of a started sandbox. The caller holds the lock.
func (d *Driver) arm(x *box) {
	switch {
	case x.started == 0:
	case x.ended != 0 || x.due() <= time.Now().UnixNano():
		d.finish(x)
	default:
		heap.Push(&d.ends.heap, x)
		d.wind()
	}
}

// finish marks the end and tells those who wait for it. The caller holds the lock.
func (d *Driver) finish(x *box) {
	if x.seat > 0 {
		heap.Remove(&d.ends.heap, x.seat-1)
	}
	x.over = true
	waiters := x.waiters
	x.waiters = nil
	for w := waiters; w != nil; w = w.next {
		d.tell(x, w)
	}
}

// tell answers a wait. The caller holds the lock.
func (d *Driver) tell(x *box, w *waiter) {
	if d.closed || d.boxes[x.id] != x {
		w.then(sandbox.Exit{}, records.Errorf(records.ClassUnavailable, "wait for sandbox %s: it or the driver went", x.id))
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
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.programs.of(spec.Spec.GetCommand())
	if err != nil {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	}
	if p.CreateError != 0 {
		return sandbox.Transientf(p.CreateError, "programmed to fail")
	}
	if d.boxes[spec.ID] != nil {
		return records.Errorf(records.ClassConflict, "create sandbox %s: it exists", spec.ID)
	}
	x := &box{
		id: spec.ID, run: spec.Run, attempt: spec.Attempt, placement: spec.Placement, program: p,
		keys: string(spec.StartToken) + string(spec.SpecHash), tokenBytes: len(spec.StartToken),
	}
	if !p.NoLog {
		x.logPath = spec.LogPath
	}
	if err := d.save(x, line{State: x.state()}); err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	d.boxes[spec.ID] = x
	d.programs.enter(p)
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
	if x.started != 0 {
		return time.Time{}, records.Errorf(records.ClassConflict, "start sandbox %s: started before", id)
	}
	if x.program.StartError != 0 {
		return time.Time{}, sandbox.Permanentf(x.program.StartError, "programmed to fail")
	}
	x.started = time.Now().UnixNano()
	if err := d.save(x, x.change()); err != nil {
		x.started = 0
		return time.Time{}, fmt.Errorf("start sandbox %s: %w", id, err)
	}
	if err := x.writeLog(); err != nil {
		return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
	}
	d.arm(x)
	return time.Unix(0, x.started), nil
}

func (x *box) writeLog() error {
	if len(x.program.Log) == 0 || x.program.NoLog {
		return nil
	}
	w, err := logs.Create(x.logPath, logs.WriterOptions{})
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
	if x.started == 0 || x.over {
		return false, nil
	}
	if signal == sigkill || (signal == sigterm && !x.program.IgnoreTerm) {
		return true, d.end(x, int32(signal))
	}
	return true, nil
}

// end ends a running program by a signal. The caller holds the lock.
func (d *Driver) end(x *box, signal int32) error {
	x.ended, x.signal = time.Now().UnixNano(), signal
	if err := d.save(x, x.change()); err != nil {
		x.ended, x.signal = 0, 0
		return fmt.Errorf("end sandbox %s: %w", x.id, err)
	}
	d.finish(x)
	return nil
}

// Kill ends the program.
func (d *Driver) Kill(_ context.Context, id string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil || x.started == 0 {
		return false, nil
	}
	running := !x.over
	leftover := running || x.program.Leftover && !x.killed
	if !leftover {
		return false, nil
	}
	x.killed = true
	var err error
	if running {
		err = d.end(x, sigkill)
	} else {
		err = d.save(x, x.change())
	}
	if err != nil {
		x.killed = false
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
	w.next, x.waiters = x.waiters, w
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for at := &x.waiters; *at != nil; at = &(*at).next {
			if *at == w {
				*at = w.next
				return
			}
		}
	}
}

func (x *box) exit() sandbox.Exit {
	e := sandbox.Exit{StartedAt: time.Unix(0, x.started), At: time.Unix(0, x.ended), Signal: x.signal, Source: Name}
	code := x.program.Exit
	if x.ended == 0 {
		e.At = time.Unix(0, x.due())
		e.Signal, e.OOMKilled = x.program.Signal, x.program.OOM
	}
	if e.Signal != 0 {
		code = 128 + e.Signal
	}
	e.Code = &code
	// Nothing is left of a program that was not programmed to leave something.
	if !x.program.Leftover && !x.killed && x.endLog() == nil {
		e.Settled, e.LogComplete = true, true
	}
	return e
}

// endLog writes the log's end mark, once.
func (x *box) endLog() error {
	if x.logEnded || x.program.NoLog {
		return nil
	}
	w, err := logs.Create(x.logPath, logs.WriterOptions{})
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
	if x == nil || x.started == 0 {
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
	for _, x := range d.sorted() {
		infos = append(infos, x.info())
	}
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
	d.wind()
	return d.file.close()
}
