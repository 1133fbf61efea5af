package null

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	dir string

	mu     sync.Mutex
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

// box is a sandbox of this process.
type box struct {
	state   state
	program program
	// done is closed at the end; timer closes it at the programmed time.
	done  chan struct{}
	timer *time.Timer
}

// New opens the driver on a directory, which it makes.
func New(dir string) (*Driver, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	d := &Driver{dir: dir, boxes: map[string]*box{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open null driver: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		if err := d.load(filepath.Join(dir, e.Name())); err != nil {
			_ = d.Close()
			return nil, fmt.Errorf("open null driver: %w", err)
		}
	}
	return d, nil
}

func (d *Driver) load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	whole := b[:bytes.LastIndexByte(b, '\n')+1]
	if len(whole) == 0 {
		// Create was cut.
		return os.Remove(path)
	}
	last := bytes.TrimSuffix(whole, []byte("\n"))
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	x := &box{done: make(chan struct{})}
	if err := json.Unmarshal(last, &x.state); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if x.program, err = parse(x.state.Command); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boxes[x.state.Info.ID] = x
	d.arm(x)
	return nil
}

// arm sets the end of a started sandbox. The caller holds the lock.
func (d *Driver) arm(x *box) {
	switch {
	case x.state.Started.IsZero():
	case !x.state.Ended.IsZero():
		x.close()
	case !time.Now().Before(x.state.Started.Add(x.program.After)):
		x.close()
	default:
		x.timer = time.AfterFunc(time.Until(x.state.Started.Add(x.program.After)), func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			x.close()
		})
	}
}

// close marks the end. The caller holds the lock.
func (x *box) close() {
	if x.timer != nil {
		x.timer.Stop()
	}
	if !x.ended() {
		close(x.done)
	}
}

func (x *box) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
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

// save adds a sandbox's state to its file, of which the last line counts. The caller
// holds the lock.
func (d *Driver) save(x *box) error {
	b, err := json.Marshal(x.state)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.path(x.state.Info.ID), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (d *Driver) path(id string) string { return filepath.Join(d.dir, id+".json") }

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
	x := &box{program: p, done: make(chan struct{}), state: state{
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
	if err := x.log(); err != nil {
		return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
	}
	d.arm(x)
	return x.state.Started, nil
}

func (x *box) log() error {
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
	if x.state.Started.IsZero() || x.ended() {
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
	x.close()
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
	running := !x.ended()
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
	d.mu.Lock()
	x, err := d.find(id)
	d.mu.Unlock()
	if err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return sandbox.Exit{}, records.Errorf(records.ClassDeadline, "wait for sandbox %s: %w", id, ctx.Err())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.boxes[id] != x {
		return sandbox.Exit{}, records.Errorf(records.ClassUnavailable, "wait for sandbox %s: it or the driver went", id)
	}
	return x.exit(), nil
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
	return e
}

// Flush writes the log's end mark.
func (d *Driver) Flush(_ context.Context, id string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil || x.state.Started.IsZero() {
		return true, nil
	}
	w, err := logs.Create(x.state.LogPath, logs.WriterOptions{})
	if err != nil {
		return false, fmt.Errorf("flush sandbox %s: %w", id, err)
	}
	defer w.Close()
	return w.End(true), nil
}

// Remove forgets the sandbox.
func (d *Driver) Remove(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil {
		return nil
	}
	if err := os.Remove(d.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	delete(d.boxes, id)
	x.close()
	return nil
}

// List returns all sandboxes, by id.
func (d *Driver) List(context.Context) ([]sandbox.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	infos := make([]sandbox.Info, 0, len(d.boxes))
	for _, x := range d.boxes {
		info := x.state.Info
		switch {
		case x.state.Started.IsZero():
			info.State = sandbox.StateCreated
		case x.ended():
			info.State = sandbox.StateExited
		default:
			info.State = sandbox.StateRunning
		}
		infos = append(infos, info)
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
		if x.timer != nil {
			x.timer.Stop()
		}
		x.close()
	}
	return nil
}
