package run

import (
	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// outcome is what an exit makes of a run.
type outcome struct {
	status  recordv1.Status
	reason  recordv1.Reason
	message string
	// code is nil unless it was observed from the process (G7).
	code *int32
}

// outcomeOf applies the rules in this order: without a code the status is FAILED,
// unless a stop of ours is what ended the command unseen; a stop of ours that never
// reached the process changes nothing; else the cause of the stop that did, with
// the observed code kept.
func outcomeOf(run *recordv1.Run, exit *recordv1.Exit) outcome {
	if reason := unobserved(exit); reason != recordv1.Reason_REASON_UNSPECIFIED {
		if stopped, ok := stoppedUnseen(run, reason, exit); ok {
			return stopped
		}
		return outcome{status: recordv1.Status_STATUS_FAILED, reason: reason, message: unobservedText(reason, exit)}
	}
	code := exit.GetCode()
	byCode := outcomeOfCode(run, exit)
	if !exit.GetStopDelivered() {
		return byCode
	}
	switch exit.GetStopCause() {
	case recordv1.StopCause_STOP_CAUSE_CANCEL:
		return outcome{recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, canceledText(run.GetWish()), &code}
	case recordv1.StopCause_STOP_CAUSE_TIMEOUT:
		return outcome{recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, timeoutText(run), &code}
	case recordv1.StopCause_STOP_CAUSE_START_DEADLINE:
		status, reason, message := startDeadlineOutcome(run)
		return outcome{status, reason, message, &code}
	case recordv1.StopCause_STOP_CAUSE_DRAIN:
		// A command that made use of the signal to end well has ended well.
		if code == 0 {
			return byCode
		}
		return outcome{recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_DRAINED, drainedText, &code}
	default:
		return byCode
	}
}

// stoppedUnseen is the outcome of a command that was canceled or timed out and
// whose end nobody saw: the stop reached it and its sandbox is empty, so the stop
// is what is known of its end. Of a start that may not have been one, the wish is.
func stoppedUnseen(run *recordv1.Run, reason recordv1.Reason, exit *recordv1.Exit) (outcome, bool) {
	var canceled, timedOut bool
	switch {
	case reason == recordv1.Reason_REASON_START_UNKNOWN:
		canceled = run.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED
		timedOut = run.GetWish().GetReason() == recordv1.Reason_REASON_TIMEOUT
	case reason == recordv1.Reason_REASON_SANDBOX_LOST && exit.GetStopDelivered():
		canceled = exit.GetStopCause() == recordv1.StopCause_STOP_CAUSE_CANCEL
		timedOut = exit.GetStopCause() == recordv1.StopCause_STOP_CAUSE_TIMEOUT
	}
	switch {
	case canceled:
		return outcome{recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, canceledText(run.GetWish()) + unseenText(reason), nil}, true
	case timedOut:
		return outcome{recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, timeoutText(run) + unseenText(reason), nil}, true
	default:
		return outcome{}, false
	}
}

func outcomeOfCode(run *recordv1.Run, exit *recordv1.Exit) outcome {
	code := exit.GetCode()
	result := outcome{status: recordv1.Status_STATUS_FAILED, code: &code}
	switch {
	case code == 0:
		result.status = recordv1.Status_STATUS_SUCCEEDED
	case exit.GetOomKilled() && exit.GetSignal() == sigkill:
		result.reason, result.message = recordv1.Reason_REASON_OOM_KILLED, oomText(run, exit)
	case exit.GetSignal() != 0:
		result.reason, result.message = recordv1.Reason_REASON_SIGNAL, signalText(exit)
	default:
		result.reason, result.message = recordv1.Reason_REASON_EXIT_CODE, codeText(run, exit)
	}
	return result
}

// sigkill is how the kernel ends a command that is out of memory.
const sigkill = 9

// unobserved returns why an exit has no code that counts, or UNSPECIFIED if it
// has one.
func unobserved(exit *recordv1.Exit) recordv1.Reason {
	switch {
	case exit.GetFenced() || exit.GetStopCause() == recordv1.StopCause_STOP_CAUSE_FENCE && exit.GetStopDelivered():
		return recordv1.Reason_REASON_NODE_FENCED
	case exit == nil:
		return recordv1.Reason_REASON_START_UNKNOWN
	case neverObserved(exit.GetReason()):
		// Whatever number came with it is not the command's.
		return exit.GetReason()
	case exit.Code != nil:
		return recordv1.Reason_REASON_UNSPECIFIED
	case exit.GetReason() != recordv1.Reason_REASON_UNSPECIFIED:
		return exit.GetReason()
	case exit.GetStartedAt() > 0:
		return recordv1.Reason_REASON_SANDBOX_LOST
	default:
		return recordv1.Reason_REASON_START_UNKNOWN
	}
}

// neverObserved lists the reasons with which a command has no code of its own:
// it never ran, or nobody saw its end.
func neverObserved(reason recordv1.Reason) bool {
	switch reason {
	case recordv1.Reason_REASON_IMAGE_NOT_FOUND, recordv1.Reason_REASON_IMAGE_PULL, recordv1.Reason_REASON_NOT_FOUND,
		recordv1.Reason_REASON_NOT_EXECUTABLE, recordv1.Reason_REASON_SECRET, recordv1.Reason_REASON_START_ERROR,
		recordv1.Reason_REASON_START_UNKNOWN, recordv1.Reason_REASON_SANDBOX_LOST, recordv1.Reason_REASON_NODE_LOST,
		recordv1.Reason_REASON_NODE_FENCED:
		return true
	default:
		return false
	}
}

// startDeadlineOutcome: the last cause that kept the run from starting is its
// failure; without one it has simply timed out.
func startDeadlineOutcome(run *recordv1.Run) (recordv1.Status, recordv1.Reason, string) {
	message := startDeadlineText(run)
	switch {
	case run.GetHoldReason() != recordv1.Reason_REASON_UNSPECIFIED:
		return recordv1.Status_STATUS_FAILED, run.GetHoldReason(), message
	case run.GetHoldMessage() != "":
		return recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_DEADLINE, message
	default:
		return recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_START_DEADLINE, message
	}
}

// isCause tells whether a void says why the command could not be started, rather
// than that a wish was heard. What held a run up counts against the start deadline,
// not against a wish of somebody's.
func isCause(void *recordv1.Void, wish *recordv1.Wish) bool {
	switch void.GetReason() {
	case recordv1.Reason_REASON_UNSPECIFIED:
		byDeadline := wish.GetReason() == recordv1.Reason_REASON_START_DEADLINE
		return void.GetMessage() != "" && (wish == nil || byDeadline)
	case recordv1.Reason_REASON_CANCELED, recordv1.Reason_REASON_START_DEADLINE, recordv1.Reason_REASON_TIMEOUT:
		return false
	default:
		return true
	}
}

// failureOf is the reason of a run that a permanent void ends.
func failureOf(reason recordv1.Reason) recordv1.Reason {
	if reason == recordv1.Reason_REASON_UNSPECIFIED {
		return recordv1.Reason_REASON_START_ERROR
	}
	return reason
}

// recordExit keeps what was observed in the attempt's record.
func recordExit(now actors.Instant, run *recordv1.Run, exit *recordv1.Exit, result outcome) {
	attempt := attemptOf(run)
	if attempt.GetStartedAt() <= 0 {
		attempt.StartedAt = exit.GetStartedAt()
	}
	attempt.EndedAt = exitEnd(attempt, exit)
	attempt.LogComplete, attempt.LogUnwritten, attempt.Leftover = exit.GetLogComplete(), exit.GetLogUnwritten(), exit.GetLeftover()
	attempt.OomKilled = exit.GetOomKilled()
	attempt.Signals = records.BoundSignals(exit.GetSignals())
	attempt.AdoptedAt, attempt.MemoryPeakBytes = exit.GetAdoptedAt(), exit.GetMemoryPeakBytes()
	if isLoss(unobserved(exit)) {
		// A node tells an end once nothing of it is left: an earlier version did not say when
		// that was, but it was before now.
		at := exit.GetEmptiedAt()
		if at <= 0 {
			at = now.Milli()
		}
		noteSafe(run, recordv1.SafeBy_SAFE_BY_EMPTY, at)
	}
	if result.code != nil {
		code := *result.code
		attempt.ExitCode, attempt.Signal = &code, exit.GetSignal()
	}
}

// exitEnd is when an attempt ended as its node saw it, 0 if it did not say.
func exitEnd(attempt *recordv1.Attempt, exit *recordv1.Exit) int64 {
	if exit.GetAt() <= 0 {
		return 0
	}
	return max(exit.GetAt(), attempt.GetStartedAt())
}
