package containerd

import (
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// The witnesses of an end, as Exit.Source names them.
const (
	sourceBoth = "both"
	sourceInit = "init"
	sourceShim = "shim"
)

// codeKilled is what the shim says of a process that SIGKILL ended.
const codeKilled = 128 + int(unix.SIGKILL)

// What is said where there is no code.
const (
	initNeverRan = "the command was not started: its arguments and environment are too large, or the sandbox's init could not run"
	initDied     = "the sandbox's init ended by itself before the command was known to run"
	initDiedLate = "the sandbox was lost: its init ended by itself, and nobody saw how the command ended"
	unseen       = "the sandbox was lost: nobody saw how its command ended"
	unseenKill   = "its processes were killed; nobody saw an exit code"
)

// initKilledEarly goes with the code of a kill that came during the start.
const initKilledEarly = "the sandbox was killed before the command was known to run"

// testimony is what is known of a sandbox whose main process has ended, before
// anyone judges it.
type testimony struct {
	// file is what init left. malformed means that the file could not be believed:
	// the command may write to it.
	file      status.Status
	malformed bool
	// code is the shim's, nil when the shim was lost and nobody else saw the end.
	code *int
	// at is the shim's exit time, or without it the time at which the loss was seen.
	at time.Time
	// gone tells that no process of the sandbox is left. It is always so where the
	// shim has a code.
	gone bool
	// killed tells that this driver has killed processes of the sandbox.
	killed bool
	// oomKills counts the processes of the sandbox that the kernel killed for want of
	// memory.
	oomKills int
	// memoryPeak is the most memory that it has used, in bytes, known with oomKills.
	memoryPeak int64
	// start is named where the command could not be executed.
	start guest.Command
}

// outcome judges. Every row of the table is one case, and no row makes up a code:
//
//	status file          shim    outcome
//	exec-failed          any     the command never ran: reason by errno, no code
//	exited, signaled     same    the code, seen by both
//	exited, signaled     137     init's code: init was killed after its last word
//	exited, signaled     lost    init's code, if the process is known to be gone
//	empty                a code  init never ran (the shim's code is runc's): no code
//	starting, running    137     init was killed, and all with it: signal 9. From within
//	                             the sandbox nothing can do that: it was the kernel for
//	                             want of memory, the engine, or somebody outside
//	starting             a code  init failed (the code is its own): no code
//	running              a code  init failed, and nobody saw the end: no code
//	any other            a code  they disagree: the shim's code
//	any other            lost    nobody saw the end: no code
//
// disagree tells that file and shim contradict each other, which has a fault or a
// command that wrote to its own status file behind it.
func outcome(t testimony) (exit sandbox.Exit, disagree bool) {
	exit = sandbox.Exit{StartedAt: t.file.StartedAt, At: t.at}
	state := t.file.State
	told := state == status.Exited || state == status.Signaled
	if told {
		exit.At = t.file.At
	}
	switch {
	case t.malformed && t.code != nil:
		return withCode(exit, *t.code, 0, sourceShim, t), true
	case t.malformed:
		return lost(exit, t.killed), false
	case state == status.ExecFailed:
		exit.At, exit.StartedAt = t.file.At, time.Time{}
		failure := guest.StartError(t.file, t.start)
		return without(exit, failure.Reason, failure.Message, sourceInit), false
	case t.code == nil && t.gone && told:
		return withCode(exit, t.file.ExitCode(), signalOf(t.file), sourceInit, t), false
	case t.code == nil:
		exit.At = t.at
		return lost(exit, t.killed), false
	case state == status.Empty:
		return without(exit, recordv1.Reason_REASON_START_ERROR, initNeverRan, sourceShim), false
	case told && t.file.ExitCode() == *t.code:
		return withCode(exit, *t.code, signalOf(t.file), sourceBoth, t), false
	case told && *t.code == codeKilled:
		return withCode(exit, t.file.ExitCode(), signalOf(t.file), sourceInit, t), false
	case told:
		exit.At = t.at
		return withCode(exit, *t.code, 0, sourceShim, t), true
	case *t.code == codeKilled:
		exit = withCode(exit, *t.code, int32(unix.SIGKILL), sourceShim, t)
		exit.Slain = !exit.OOMKilled && !t.killed
		if state == status.Starting {
			exit.Message = initKilledEarly
		}
		return exit, false
	case state == status.Starting:
		return without(exit, recordv1.Reason_REASON_START_ERROR, initDied, sourceShim), false
	}
	return without(exit, recordv1.Reason_REASON_SANDBOX_LOST, initDiedLate, sourceShim), false
}

func signalOf(file status.Status) int32 {
	if file.State == status.Signaled {
		return int32(file.Value) //nolint:gosec // 1 to 64
	}
	return 0
}

// lost is the outcome without a witness.
func lost(exit sandbox.Exit, killed bool) sandbox.Exit {
	message := unseen
	if killed {
		message = unseenKill
	}
	return without(exit, recordv1.Reason_REASON_SANDBOX_LOST, message, "")
}

func without(exit sandbox.Exit, reason recordv1.Reason, message, source string) sandbox.Exit {
	exit.Reason, exit.Message, exit.Source = reason, message, source
	return exit
}

func withCode(exit sandbox.Exit, code int, signal int32, source string, t testimony) sandbox.Exit {
	observed := int32(code) //nolint:gosec // 0 to 255
	exit.Code, exit.Signal, exit.Source = &observed, signal, source
	if t.oomKills > 0 {
		exit.MemoryPeakBytes = t.memoryPeak
	}
	switch {
	case t.oomKills == 0:
	case signal == int32(unix.SIGKILL):
		exit.OOMKilled = true
	default:
		// A child's death for want of memory is no cause of the command's own end.
		exit.Message = sandbox.WantOfMemory(t.oomKills)
	}
	return exit
}
