package run

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// The words of a run's history and of its explanation: one plain sentence without a full
// stop each.

const overdueText = "its timeout has long passed and its node has not said that it ended"

func triggerText(run *recordv1.Run) string {
	if word := records.Word(run.GetTrigger()); word != "" {
		return "trigger " + word
	}
	return "an unknown trigger"
}

// outcomeText is a status with its reason and what is known of it.
func outcomeText(status recordv1.Status, reason recordv1.Reason, message string, code *int32) string {
	text := records.Word(status)
	if reason != recordv1.Reason_REASON_UNSPECIFIED && records.Word(reason) != text {
		text += " (" + records.Word(reason) + ")"
	}
	switch {
	case message != "":
		text += ": " + message
	case code != nil:
		text += fmt.Sprintf(": exit code %d", *code)
	}
	return text
}

func finishedText(run *recordv1.Run) string {
	return outcomeText(run.GetStatus(), run.GetReason(), run.GetMessage(), run.ExitCode)
}

// endText says how an attempt ended, as far as it was seen.
func endText(run *recordv1.Run, attempt *recordv1.Attempt) string {
	switch {
	case attempt.ExitCode == nil && attempt.GetMessage() != "":
		return attempt.GetMessage()
	case attempt.ExitCode == nil:
		return outcomeText(attempt.GetStatus(), attempt.GetReason(), reasonText(attempt.GetReason()), nil)
	case attempt.GetSignal() != 0:
		text := fmt.Sprintf("ended by signal %s, exit code %d", signalName(attempt.GetSignal()), attempt.GetExitCode())
		if attempt.GetOomKilled() {
			text += ", out of memory: " + memoryText(run, attempt)
		}
		return text
	default:
		return fmt.Sprintf("exit code %d", attempt.GetExitCode())
	}
}

// logText says what is wrong with the log of an attempt that has ended, and nothing if
// nothing is.
func logText(attempt *recordv1.Attempt) string {
	switch {
	case attempt.GetLogUnwritten():
		return "output is missing from its log: the disk of the logs did not take it"
	case attempt.GetStartedAt() > 0 && !attempt.GetLogComplete():
		return "its log is not known to be complete"
	default:
		return ""
	}
}

// memoryText tells how much memory an attempt might use and has used.
func memoryText(run *recordv1.Run, attempt *recordv1.Attempt) string {
	text := "it has no limit of its own"
	if limit := run.GetSpec().GetMemoryBytes(); limit > 0 {
		text = "its limit is " + records.SizeText(limit)
	}
	if peak := attempt.GetMemoryPeakBytes(); peak > 0 {
		text += ", the most that it used was " + records.SizeText(peak)
	}
	return text
}

func safeText(attempt *recordv1.Attempt) string {
	text := fmt.Sprintf("no copy of attempt %d can be running from here on: ", attempt.GetNumber())
	switch attempt.GetSafeBy() {
	case recordv1.SafeBy_SAFE_BY_EMPTY:
		return text + "its node found its cgroup empty"
	case recordv1.SafeBy_SAFE_BY_FENCE:
		return text + "its node's session was seen to be over, and the time has passed within which a node without one stops all that it runs"
	case recordv1.SafeBy_SAFE_BY_WORD:
		return text + "its node was away, and " + deadText(attempt.GetSafeWordBy())
	case recordv1.SafeBy_SAFE_BY_VOID:
		return text + "its node says that it never started it"
	default:
		return text + "for a reason that this version does not know"
	}
}

func stopText(reason recordv1.Reason, by string, force bool) string {
	var text string
	switch reason {
	case recordv1.Reason_REASON_CANCELED:
		text = "a cancel was recorded"
		if by != "" {
			text = bounded(by) + " canceled it"
		}
	case recordv1.Reason_REASON_START_DEADLINE:
		text = "its start deadline passed"
	case recordv1.Reason_REASON_TIMEOUT:
		text = "its timeout passed and its node had not ended it"
	default:
		text = "it is to end: " + records.Word(reason)
	}
	if force {
		text += ", without the stop grace"
	}
	return text
}

func sentText(sent *recordv1.SentSignal) string {
	text := "sent " + signalName(sent.GetSignal())
	if why := causeText(sent.GetCause()); why != "" {
		text += " because " + why
	}
	switch {
	case sent.Delivered == nil:
		text += "; it is not known whether it reached the command"
	case !sent.GetDelivered():
		text += "; it did not reach the command"
	}
	return text
}

// causeText says why the engine stopped a command.
func causeText(cause recordv1.StopCause) string {
	switch cause {
	case recordv1.StopCause_STOP_CAUSE_CANCEL:
		return "the run was canceled"
	case recordv1.StopCause_STOP_CAUSE_TIMEOUT:
		return "its timeout has passed"
	case recordv1.StopCause_STOP_CAUSE_START_DEADLINE:
		return "its start deadline has passed"
	case recordv1.StopCause_STOP_CAUSE_DRAIN:
		return "its node is drained"
	case recordv1.StopCause_STOP_CAUSE_FENCE:
		return "its node has lost its session"
	default:
		return ""
	}
}

// signalNames are those of the signals that end commands, as Linux numbers them.
var signalNames = map[int32]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
	12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 29: "IO",
	30: "PWR", 31: "SYS",
}

func signalName(number int32) string {
	if name, ok := signalNames[number]; ok {
		return fmt.Sprintf("%d (%s)", number, name)
	}
	return fmt.Sprint(number)
}

func lateText(late *recordv1.LateExit) string {
	exit := late.GetExit()
	text := "its node told late how it had ended: "
	switch {
	case exit != nil && exit.Code != nil:
		return text + fmt.Sprintf("exit code %d, which no longer counts", exit.GetCode())
	case exit.GetMessage() != "":
		return text + bounded(exit.GetMessage())
	default:
		return text + "nobody saw it"
	}
}

// roughly is a duration for people: what is long is told without its small parts.
func roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d < time.Hour:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Minute)
	}
	return span(d)
}
