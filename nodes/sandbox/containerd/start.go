package containerd

import (
	"context"
	"errors"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	task "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// How the status file is watched after a start: init needs about a millisecond.
const (
	watchMin = 200 * time.Microsecond
	watchMax = 10 * time.Millisecond
	// askEvery is how often the runtime is asked whether init ended without a word.
	askEvery = 50 * time.Millisecond
)

// Start lets init run, and returns when its status file says what became of the
// command: a command that could not be executed is a StartError.
func (d *Driver) Start(ctx context.Context, id string) (time.Time, error) {
	ctx = quiet.Context(ctx)
	n, err := d.readNote(id)
	if err != nil {
		return time.Time{}, err
	}
	if err := ctx.Err(); err != nil {
		return time.Time{}, records.Errorf(records.ClassDeadline, "start sandbox %s: %w", id, err)
	}
	// A word of init means an earlier start, whatever the runtime would make of another.
	switch s, malformed, err := d.readStatus(id); {
	case err != nil:
		return time.Time{}, err
	case malformed || s.State != status.Empty:
		return time.Time{}, startedBefore(id)
	}
	step, cancel := own(ctx, taskMax)
	defer cancel()
	_, err = d.client.TaskService().Start(step, &tasks.StartRequest{ContainerID: id})
	if err != nil {
		if err := d.afterFailedStart(ctx, id, native(err)); err != nil {
			return time.Time{}, err
		}
	}
	return d.started(step, id, n)
}

func startedBefore(id string) error {
	return records.Errorf(records.ClassConflict, "sandbox %s was started before", id)
}

// afterFailedStart finds out what a Start that failed or was cut off has done. nil
// means that the command may have run, and that its end can be waited for.
func (d *Driver) afterFailedStart(ctx context.Context, id string, failure error) error {
	ask, cancel := own(ctx, askMax)
	defer cancel()
	process, err := d.ask(ask, id)
	switch {
	case err == nil && process.GetStatus() == task.Status_CREATED:
		// Not started; and once it is dead it can not be any more.
		if _, err := d.parent.Group(id).Kill(ask); err != nil {
			return records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
		}
		if s, malformed, err := d.readStatus(id); err == nil && !malformed && s.State == status.Empty {
			return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the sandbox could not be started: %s", cause(failure))
		}
		return nil
	case err == nil && classOf(failure) != records.ClassDeadline && classOf(failure) != records.ClassUnavailable:
		// A definite refusal, and a task that was started: by somebody else.
		return startedBefore(id)
	case err == nil:
		return nil
	case errdefs.IsNotFound(err):
		return d.afterVanishedStart(ask, id, failure)
	}
	return records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %s; and asked for its state: %s", id, cause(failure), cause(err))
}

// afterVanishedStart judges a start whose task is gone: without a word of init, and
// with no process left, the command never ran and never will.
func (d *Driver) afterVanishedStart(ctx context.Context, id string, failure error) error {
	if _, err := d.parent.Group(id).Kill(ctx); err != nil {
		return records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
	}
	s, malformed, err := d.readStatus(id)
	if err != nil {
		return records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
	}
	if malformed || s.State != status.Empty {
		return nil
	}
	return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the sandbox was gone when it was to be started: %s", cause(failure))
}

// ask returns the state of a sandbox's task.
func (d *Driver) ask(ctx context.Context, id string) (*task.Process, error) {
	answer, err := d.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return nil, native(err)
	}
	return answer.GetProcess(), nil
}

// started returns when the command runs or has ended.
func (d *Driver) started(ctx context.Context, id string, n note) (time.Time, error) {
	pause, asked := watchMin, time.Now()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		s, malformed, err := d.readStatus(id)
		if err != nil {
			return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", id, err)
		}
		switch {
		case malformed:
			return time.Now(), nil
		case s.State == status.ExecFailed:
			return time.Time{}, guest.StartError(s, n.start())
		case s.State >= status.Running:
			return s.StartedAt, nil
		}
		if time.Since(asked) > askEvery {
			asked = time.Now()
			process, err := d.ask(ctx, id)
			if errdefs.IsNotFound(err) {
				// Lost, started or not. Wait judges.
				return time.Now(), nil
			}
			if err == nil && process.GetStatus() == task.Status_STOPPED {
				return d.endedAtOnce(id, process.GetExitStatus())
			}
		}
		select {
		case <-ctx.Done():
			return time.Time{}, records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: its init does not answer: %w", id, ctx.Err())
		case <-timer.C:
		}
		pause = min(2*pause, watchMax)
		timer.Reset(pause)
	}
}

// endedAtOnce judges an init that has ended before its word was seen.
func (d *Driver) endedAtOnce(id string, code uint32) (time.Time, error) {
	s, malformed, err := d.readStatus(id)
	switch {
	case err != nil || malformed:
	case s.State == status.Empty:
		return time.Time{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%s", initNeverRan)
	case s.State == status.Starting && int(code) != codeKilled:
		return time.Time{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%s", initDied)
	}
	return time.Now(), nil
}

// Signal sends a signal to init, which passes it on to the command. It goes to the
// process itself, found through the runtime and held by a pidfd: no runtime command
// has to be run for it.
func (d *Driver) Signal(ctx context.Context, id string, signal int) (bool, error) {
	ctx = quiet.Context(ctx)
	if _, err := d.readNote(id); err != nil {
		return false, err
	}
	if s, malformed, err := d.readStatus(id); err == nil && !malformed && s.State.Ended() {
		return false, nil
	}
	process, err := d.ask(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, filtered(err, "signal", id)
	}
	if process.GetStatus() == task.Status_STOPPED || process.GetPid() == 0 {
		return false, nil
	}
	pidfd, err := unix.PidfdOpen(int(process.GetPid()), 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, records.Errorf(records.ClassInternal, "signal sandbox %s: %w", id, err)
	}
	defer unix.Close(pidfd)
	// The pidfd pins the number: what is seen of it now is true of the process.
	if !inGroup(int(process.GetPid()), d.parent.Group(id).Path()) {
		return false, nil
	}
	err = unix.PidfdSendSignal(pidfd, unix.Signal(signal), nil, 0)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ESRCH):
		return false, nil
	default:
		return false, records.Errorf(records.ClassInternal, "signal sandbox %s: %w", id, err)
	}
}

// Kill kills every process of the sandbox through its cgroup alone: it needs neither
// containerd nor a shim.
func (d *Driver) Kill(ctx context.Context, id string) (bool, error) {
	ctx = quiet.Context(ctx)
	if err := checkID(id); err != nil {
		return false, err
	}
	group := d.parent.Group(id)
	if empty, err := group.Empty(); err == nil && !empty {
		// Before the kill, since the end that it brings may be judged while it goes on.
		d.killed.Store(id, struct{}{})
	}
	killed, err := group.Kill(ctx)
	if err != nil {
		return killed, records.Errorf(records.ClassDeadline, "sandbox %s: %w", id, err)
	}
	s, malformed, err := d.readStatus(id)
	if err != nil || malformed {
		return killed, err
	}
	switch s.State {
	case status.Empty, status.ExecFailed:
		// Only the runtime's own process, or init on its way out.
		return false, nil
	case status.Exited, status.Signaled:
		// With init the kernel has killed the rest; init told whether there was any.
		return s.Leftover, nil
	}
	return killed, nil
}
