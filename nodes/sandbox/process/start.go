package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// Create makes the sandbox's file.
func (d *Driver) Create(_ context.Context, spec sandbox.Spec) error {
	if err := checkSpec(spec.Spec); err != nil {
		return err
	}
	if err := d.checkLimits(limitsOf(spec.Spec)); err != nil {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	}
	if spec.ID == "" || strings.ContainsAny(spec.ID, "/\x00") || spec.ID[0] == '.' {
		return records.Errorf(records.ClassInvalid, "create sandbox: bad id %q", spec.ID)
	}
	m := meta{
		Info: sandbox.Info{
			ID: spec.ID, Run: spec.Run, Attempt: spec.Attempt, Placement: spec.Placement,
			StartToken: slices.Clone(spec.StartToken), SpecHash: slices.Clone(spec.SpecHash),
		},
		LogPath: spec.LogPath, Command: spec.Spec.GetCommand()[0], Dir: workingDir(spec.Spec),
		PidsLimit: spec.Spec.GetPidsLimit(), Boot: d.boot, Owned: true,
	}
	content, end, err := encodeFile(m)
	if err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	if _, err := d.find(spec.ID); err == nil {
		return records.Errorf(records.ClassConflict, "create sandbox %s: it exists", spec.ID)
	}
	x := d.newBox(m)
	x.spec, x.unfenced, x.end = spec.Spec, spec.Unfenced, end
	if x.path, err = d.stock.place(content); err != nil {
		_ = os.Remove(x.path)
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	d.mu.Lock()
	other := d.boxes[spec.ID]
	if other == nil {
		d.boxes[spec.ID] = x
	}
	d.mu.Unlock()
	if other != nil {
		return errors.Join(records.Errorf(records.ClassConflict, "create sandbox %s: it exists", spec.ID), d.stock.giveBack(x.path))
	}
	return nil
}

// checkSpec refuses what no try could start. It quotes no variable's value.
func checkSpec(spec *recordv1.Spec) error {
	if len(spec.GetCommand()) == 0 {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the command is empty")
	}
	for i, arg := range spec.GetCommand() {
		if strings.ContainsRune(arg, 0) {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "argument %d of the command holds a NUL", i)
		}
	}
	for i, v := range spec.GetEnv() {
		if strings.ContainsRune(v, 0) || strings.IndexByte(v, '=') <= 0 {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "variable %d of the environment holds a NUL or has no name", i)
		}
	}
	if strings.ContainsRune(spec.GetWorkingDir(), 0) {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the working directory holds a NUL")
	}
	if spec.GetReadOnlyRoot() {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "a host command has no root file system of its own to make read-only (--read-only)")
	}
	if _, err := resolveUser(spec.GetUser()); err != nil {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	}
	return nil
}

// checkLimits refuses limits that could not be held: none is ignored.
func (d *Driver) checkLimits(limits cgroup.Limits) error {
	if err := limits.Validate(); err != nil {
		return err
	}
	err := d.parent.Enforces(limits)
	if err != nil && !d.isolate {
		return fmt.Errorf("%w: the node does not run as root", err)
	}
	return err
}

func limitsOf(spec *recordv1.Spec) cgroup.Limits {
	return cgroup.Limits{CPUMillis: spec.GetCpuMillis(), MemoryBytes: spec.GetMemoryBytes(), Pids: spec.GetPidsLimit()}
}

func workingDir(spec *recordv1.Spec) string {
	if dir := spec.GetWorkingDir(); dir != "" {
		return dir
	}
	return "/"
}

// Start makes the supervisor and waits for its word that the command runs.
func (d *Driver) Start(ctx context.Context, id string) (time.Time, error) {
	x, err := d.find(id)
	if err != nil {
		return time.Time{}, err
	}
	spec, err := x.claimStart()
	if err != nil {
		return time.Time{}, err
	}
	notify, err := d.spawn(x, spec)
	if err != nil {
		// No supervisor is there and none will be.
		x.mu.Lock()
		x.exit = sandbox.Exit{Reason: recordv1.Reason_REASON_START_ERROR, Message: "the supervisor could not be started", Source: sourceNone, At: time.Now()}
		x.logComplete = true
		closeOnce(x.ended)
		closeOnce(x.gone)
		x.mu.Unlock()
		var known *sandbox.StartError
		switch {
		case errors.As(err, &known):
			return time.Time{}, known
		case errors.Is(err, unix.EWOULDBLOCK):
			// Somebody holds the file, as a supervisor does.
			return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
		}
		// What the node lacks now, as files to open, it may have later.
		return time.Time{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the supervisor could not be started: %s", sandbox.Cause(err))
	}
	defer notify.Close()
	stop := context.AfterFunc(ctx, func() { _ = notify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(notify, 4096))
	if err != nil {
		return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, errors.Join(ctx.Err(), err))
	}
	if len(said) > 0 {
		return time.Time{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "supervisor: %s", said)
	}
	return x.startedAt()
}

// claimStart gives the right to start to one caller.
func (x *box) claimStart() (*recordv1.Spec, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.started {
		return nil, records.Errorf(records.ClassConflict, "start sandbox %s: started before", x.meta.Info.ID)
	}
	if x.spec == nil {
		// The environment is never on disk.
		return nil, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the sandbox was created before the node's restart")
	}
	x.started = true
	spec := x.spec
	x.spec = nil
	return spec, nil
}

// startedAt reads what the supervisor has reported.
func (x *box) startedAt() (time.Time, error) {
	c, err := x.read()
	s := c.status
	switch {
	case err != nil:
	case s.State == status.ExecFailed:
		return time.Time{}, guest.StartError(s, x.meta.start())
	case !s.StartedAt.IsZero():
		return s.StartedAt, nil
	default:
		err = fmt.Errorf("its state is %s", s.State)
	}
	return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: the supervisor is gone: %w", x.meta.Info.ID, err)
}

// spawn starts the supervisor and watches it. It returns the pipe on which the
// supervisor tells of the start.
func (d *Driver) spawn(x *box, spec *recordv1.Spec) (notify *os.File, err error) {
	user, err := resolveUser(spec.GetUser())
	if err != nil {
		return nil, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	}
	file, err := x.markStarted()
	if err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", x.meta.Info.ID, err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", x.meta.Info.ID, err)
	}
	defer null.Close()
	notify, notifyEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", x.meta.Info.ID, err)
	}
	defer notifyEnd.Close()
	var done, control [2]int
	if err := unix.Pipe2(done[:], unix.O_CLOEXEC); err != nil {
		_ = notify.Close()
		return nil, fmt.Errorf("start sandbox %s: %w", x.meta.Info.ID, err)
	}
	if err := unix.Pipe2(control[:], unix.O_CLOEXEC); err != nil {
		_ = notify.Close()
		_, _ = unix.Close(done[0]), unix.Close(done[1])
		return nil, fmt.Errorf("start sandbox %s: %w", x.meta.Info.ID, err)
	}
	pidfd := -1
	attr := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if d.isolate {
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	}
	child, err := syscall.ForkExec(d.config.Helper, d.arguments(x, spec, user), &syscall.ProcAttr{
		Dir: "/",
		Env: spec.GetEnv(),
		Files: []uintptr{
			null.Fd(), null.Fd(), null.Fd(), notifyEnd.Fd(), uintptr(done[1]), file.Fd(),
			controlFD: uintptr(control[0]), uintptr(control[1]),
		},
		Sys: attr,
	})
	_, _, _ = unix.Close(done[1]), unix.Close(control[0]), unix.Close(control[1])
	if err != nil {
		_ = notify.Close()
		_ = unix.Close(done[0])
		if errors.Is(err, unix.E2BIG) {
			return nil, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the command's arguments and environment are too long")
		}
		return nil, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "start supervisor: %v", err)
	}
	if ref, err := pid.Of(child); err == nil {
		x.mu.Lock()
		x.supervisor = ref
		x.mu.Unlock()
	}
	// A poller that takes neither is closed: the next driver adopts the sandbox.
	_ = d.poller.add(done[0], func(settled bool) { x.tryFinal(settled) })
	_ = d.poller.add(pidfd, func(bool) { d.supervisorEnded(x) })
	return notify, nil
}

// arguments are those of "sandbox-init supervise".
func (d *Driver) arguments(x *box, spec *recordv1.Spec, user string) []string {
	args := []string{
		filepath.Base(d.config.Helper), "supervise", "owner=" + x.meta.owner(), "log=" + x.meta.LogPath,
		"segment=" + strconv.FormatInt(d.config.LogSegmentBytes, 10), "segments=" + strconv.Itoa(d.config.LogSegments),
		"isolated=" + strconv.FormatBool(d.isolate), "user=" + user, "chdir=" + x.meta.Dir,
	}
	switch {
	case d.config.Fence == "":
	case x.unfenced:
		args = append(args, "unfenced=true")
	default:
		args = append(args, "fence="+d.config.Fence)
	}
	if d.parent != nil {
		limits := limitsOf(spec)
		args = append(args,
			"cgroups="+d.config.CgroupRoot, "parent="+d.parent.Name(), "id="+x.meta.Info.ID,
			"cpu="+strconv.FormatInt(limits.CPUMillis, 10),
			"memory="+strconv.FormatInt(limits.MemoryBytes, 10),
			"pids="+strconv.FormatInt(limits.Pids, 10))
	}
	if spec.GetStdin() || spec.GetTerminal() {
		args = append(args, "stdin=true", "terminal="+strconv.FormatBool(spec.GetTerminal()))
	}
	return append(append(args, "--"), spec.GetCommand()...)
}
