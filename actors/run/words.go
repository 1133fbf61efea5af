package run

import (
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// What people read. A message is one plain sentence without a full stop; it
// holds no secret and no environment value.

const (
	byEngine    = "errand"
	drainedText = "stopped because its node was drained"
	noNodes     = "no node is there to take the run"
	// messageBytesMax bounds what a node's words may add to a record.
	messageBytesMax = 1024
	// refusalsShown bounds how many nodes a hold message names.
	refusalsShown = 5
)

func bounded(text string) string { return records.Clip(text, messageBytesMax) }

func nodeSays(node, text string) string { return bounded("node " + node + ": " + text) }

// refusalsText says in one line why no node took a run. Equal words of several
// nodes stay apart, since each names its node.
func refusalsText(refusals []refusal) string {
	if len(refusals) == 0 {
		return noNodes
	}
	lines := make([]string, 0, refusalsShown+1)
	for _, r := range refusals[:min(len(refusals), refusalsShown)] {
		lines = append(lines, nodeSays(r.node, r.message))
	}
	if more := len(refusals) - refusalsShown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}

func silentNode(after time.Duration) string { return "no answer within " + span(after) }

func lostText(node string) string {
	return "node " + node + " was lost: its session ended and it has not told how the command ended"
}

func lostByWordText(node string, word *recordv1.Removal) string {
	return "node " + node + " was lost: " + deadText(word.GetBy()) + ", at " + time.UnixMilli(word.GetAt()).UTC().Format(time.RFC3339) +
		", and it had not told how the command ended"
}

// deadText says by whose word a node is dead.
func deadText(by string) string { return bounded(by) + " has said that it is dead" }

func contradiction(node string) string {
	return "node " + node + " said that the command was started and then that it never was"
}

func canceledText(wish *recordv1.Wish) string {
	if wish.GetReason() != recordv1.Reason_REASON_CANCELED || wish.GetBy() == "" {
		return "canceled"
	}
	return bounded("canceled by " + wish.GetBy())
}

func beforeStart(run *recordv1.Run) string {
	if run.GetAttempt() > 1 {
		return fmt.Sprintf(" before attempt %d was started", run.GetAttempt())
	}
	return " before the command was started"
}

func timeoutText(run *recordv1.Run) string {
	return "the timeout of " + milliSpan(run.GetSpec().GetTimeoutMs()) + " has passed"
}

func startDeadlineText(run *recordv1.Run) string {
	text := "not started within " + milliSpan(run.GetSpec().GetStartDeadlineMs())
	if run.GetAttempt() > 1 {
		text = fmt.Sprintf("attempt %d was ", run.GetAttempt()) + text
	}
	if run.GetHoldMessage() != "" {
		text += ": " + run.GetHoldMessage()
	}
	return text
}

func voidText(void *recordv1.Void) string {
	if void.GetMessage() != "" {
		return bounded(void.GetMessage())
	}
	return "the command could not be started"
}

func codeText(run *recordv1.Run, exit *recordv1.Exit) string {
	text := fmt.Sprintf("exit code %d", exit.GetCode())
	if exit.GetOomKilled() {
		text += " after the memory limit" + memoryOf(run) + " was reached"
	}
	return text + driverSays(exit)
}

// driverSays is what the driver has to say beside the code.
func driverSays(exit *recordv1.Exit) string {
	if exit.GetMessage() == "" {
		return ""
	}
	return "; " + bounded(exit.GetMessage())
}

func signalText(exit *recordv1.Exit) string {
	return fmt.Sprintf("killed by signal %d", exit.GetSignal()) + driverSays(exit)
}

func oomText(run *recordv1.Run, exit *recordv1.Exit) string {
	return fmt.Sprintf("killed by signal %d", exit.GetSignal()) + " after the memory limit" + memoryOf(run) + " was reached"
}

func memoryOf(run *recordv1.Run) string {
	if limit := run.GetSpec().GetMemoryBytes(); limit > 0 {
		return " of " + records.SizeText(limit)
	}
	return ""
}

// reasonText says what a reason means, of an attempt of which nothing more is known.
func reasonText(reason recordv1.Reason) string {
	switch reason {
	case recordv1.Reason_REASON_EXIT_CODE:
		return "the command ended with another exit code than 0"
	case recordv1.Reason_REASON_SIGNAL:
		return "a signal ended the command"
	case recordv1.Reason_REASON_OOM_KILLED:
		return "the kernel killed the command for want of memory"
	case recordv1.Reason_REASON_TIMEOUT:
		return "its timeout passed before the command ended"
	case recordv1.Reason_REASON_CANCELED:
		return "it was canceled"
	case recordv1.Reason_REASON_START_DEADLINE:
		return "its start deadline passed before the command was started"
	case recordv1.Reason_REASON_IMAGE_NOT_FOUND:
		return "there is no such image"
	case recordv1.Reason_REASON_IMAGE_PULL:
		return "the image could not be pulled"
	case recordv1.Reason_REASON_NOT_FOUND:
		return "the command was not found"
	case recordv1.Reason_REASON_NOT_EXECUTABLE:
		return "the command is not executable"
	case recordv1.Reason_REASON_SECRET:
		return "a secret that it asks for could not be had"
	case recordv1.Reason_REASON_START_ERROR:
		return "the command could not be started"
	case recordv1.Reason_REASON_START_UNKNOWN:
		return "the node can not tell whether the command was started"
	case recordv1.Reason_REASON_SANDBOX_LOST:
		return "the sandbox was lost and nobody saw the command end"
	case recordv1.Reason_REASON_NODE_LOST:
		return "the node was lost"
	case recordv1.Reason_REASON_NODE_FENCED:
		return "the node had lost its session and stopped what it ran"
	case recordv1.Reason_REASON_DRAINED:
		return drainedText
	default:
		return ""
	}
}

// unobservedText is what a node says of an end without a code that counts, or what its
// reason means.
func unobservedText(reason recordv1.Reason, exit *recordv1.Exit) string {
	if exit.GetMessage() != "" {
		return bounded(exit.GetMessage())
	}
	if text := reasonText(reason); text != "" {
		return text
	}
	return "the command ended and nobody saw its exit code"
}

// unseenText goes after the cause of a stop when there is no code to show.
func unseenText(reason recordv1.Reason) string {
	if reason == recordv1.Reason_REASON_START_UNKNOWN {
		return "; it is not known whether the command was started"
	}
	return "; nobody saw how the command ended"
}

func milliSpan(ms int64) string { return span(time.Duration(ms) * time.Millisecond) }

// span writes a duration without parts that are zero: 5m, not 5m0s.
func span(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
