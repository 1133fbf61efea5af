package process

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// The words of Exit.Source.
const (
	sourceSupervisor = "supervisor"
	sourceStatus     = "status file"
	sourceNone       = "none"
)

// tryFinal takes the supervisor's final status if it is there. settled tells that the
// supervisor has said that it is on the disk, and that nothing else is left to do.
func (x *box) tryFinal(settled bool) bool {
	c, err := x.read()
	final := c.status
	if err != nil || !final.Final {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if closed(x.ended) {
		return true
	}
	x.exit = x.toExit(final, sourceSupervisor)
	x.exit.Durable, x.exit.Settled = settled, settled
	x.exit.Leftover, x.exit.LogComplete, x.exit.LogUnwritten = final.Leftover, !final.LogIncomplete, final.LogUnwritten
	x.leftover, x.logComplete = final.Leftover, !final.LogIncomplete
	close(x.ended)
	return true
}

// supervisorEnded is called when the supervisor's pidfd is readable.
func (d *Driver) supervisorEnded(x *box) {
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	// Another driver object of this process may have been its parent.
	_, _ = unix.Wait4(supervisor.PID, nil, unix.WNOHANG, nil)
	d.supervisorGone(x)
}

// supervisorGone takes what a supervisor that is no more has left.
func (d *Driver) supervisorGone(x *box) {
	if !x.tryFinal(false) {
		// The kernel is killing the command, if it has not: that takes long only under
		// load, and must not hold up the others.
		d.tasks.Go(func() { d.takeLast(x) })
		return
	}
	x.mu.Lock()
	closeOnce(x.gone)
	x.mu.Unlock()
}

// commandLimit is how long the kernel may take to kill the command of a supervisor
// that is gone. In a PID namespace it has done so before the supervisor is gone.
const commandLimit = 30 * time.Second

// takeLast ends a sandbox whose supervisor left no final status.
func (d *Driver) takeLast(x *box) {
	// One that can not be read names no process.
	before, _ := x.read()
	command := before.command
	deadline := time.Now().Add(commandLimit)
	for command.Alive() && time.Now().Before(deadline) {
		_ = command.Signal(unix.SIGKILL)
		select {
		case <-d.closing:
			return
		case <-time.After(time.Millisecond):
		}
	}
	leftover := d.killOrphans(x, deadline)
	exit := sandbox.Exit{Reason: recordv1.Reason_REASON_SANDBOX_LOST, Message: "nobody saw the command end", Source: sourceNone, At: time.Now()}
	c, err := x.read()
	last := c.status
	switch {
	case err != nil, c.malformed, command.Alive():
	case last.State == status.Empty:
		// A crash caught the start: it is never tried again, and not called an error of
		// the sandbox.
		exit.Reason, exit.Message = recordv1.Reason_REASON_START_UNKNOWN, "the supervisor ended before it told that the command runs"
	case last.State.Ended():
		exit = x.toExit(x.withMemory(last), sourceStatus)
	default:
		exit.StartedAt = last.StartedAt
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.killed && exit.Reason == recordv1.Reason_REASON_SANDBOX_LOST {
		exit.Message = "its processes were killed; nobody saw an exit code"
	}
	if !closed(x.ended) {
		x.exit, x.leftover, x.logComplete = exit, last.Leftover || leftover, false
		close(x.ended)
	}
	closeOnce(x.gone)
}

// withMemory adds what the kernel has counted to the last word of a supervisor that did
// not come to tell it.
func (x *box) withMemory(s status.Status) status.Status {
	if x.group == nil || s.OOMKills > 0 {
		return s
	}
	// What can not be read is not known.
	if s.OOMKills, _ = x.group.OOMKills(); s.OOMKills > 0 {
		s.MemoryPeak, _ = x.group.MemoryPeak()
	}
	return s
}

// toExit puts a status into the node's words.
func (x *box) toExit(s status.Status, source string) sandbox.Exit {
	exit := sandbox.Exit{StartedAt: s.StartedAt, At: s.At, Source: source}
	switch s.State {
	case status.Exited, status.Signaled:
		code := int32(s.ExitCode()) //nolint:gosec // 0 to 255
		exit.Code = &code
		if s.State == status.Signaled {
			exit.Signal = int32(s.Value) //nolint:gosec // 1 to 64
			// A child that was killed for want of memory did not end the command.
			exit.OOMKilled = s.OOMKills > 0 && exit.Signal == int32(unix.SIGKILL)
		}
		if exit.MemoryPeakBytes = s.MemoryPeak; s.OOMKills > 0 && !exit.OOMKilled {
			exit.Message = sandbox.WantOfMemory(s.OOMKills)
		}
		if s.Reach != status.ReachUnknown {
			reached := s.Reach == status.Reached
			exit.Reached = &reached
		}
	case status.ExecFailed:
		start := guest.StartError(s, x.meta.start())
		exit.Reason, exit.Message = start.Reason, start.Message
	default:
		exit.Reason, exit.Message = recordv1.Reason_REASON_SANDBOX_LOST, "the command's end was not recorded"
	}
	return exit
}

var errClosed = errors.New("the driver is closed")
