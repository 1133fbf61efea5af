package run

import (
	"fmt"
	"slices"
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
	return text
}

func signalText(exit *recordv1.Exit) string {
	return fmt.Sprintf("killed by signal %d", exit.GetSignal())
}

func oomText(run *recordv1.Run, exit *recordv1.Exit) string {
	return signalText(exit) + " after the memory limit" + memoryOf(run) + " was reached"
}

func memoryOf(run *recordv1.Run) string {
	if limit := run.GetSpec().GetMemoryBytes(); limit > 0 {
		return " of " + memoryText(limit)
	}
	return ""
}

func memoryText(bytes int64) string {
	switch {
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	default:
		return fmt.Sprintf("%d bytes", bytes)
	}
}

type reasonText struct {
	reason recordv1.Reason
	text   string
}

// unobservedTexts stand in for a node that gave a reason without words.
var unobservedTexts = []reasonText{
	{recordv1.Reason_REASON_NODE_FENCED, "the node had lost its session and stopped what it ran"},
	{recordv1.Reason_REASON_SANDBOX_LOST, "the sandbox was lost and nobody saw the command end"},
	{recordv1.Reason_REASON_START_UNKNOWN, "the node can not tell whether the command was started"},
	{recordv1.Reason_REASON_NODE_LOST, "the node was lost"},
	{recordv1.Reason_REASON_NOT_FOUND, "the command was not found"},
	{recordv1.Reason_REASON_NOT_EXECUTABLE, "the command is not executable"},
	{recordv1.Reason_REASON_START_ERROR, "the command could not be started"},
}

func unobservedText(reason recordv1.Reason, exit *recordv1.Exit) string {
	if exit.GetMessage() != "" {
		return bounded(exit.GetMessage())
	}
	i := slices.IndexFunc(unobservedTexts, func(t reasonText) bool { return t.reason == reason })
	if i < 0 {
		return "the command ended and nobody saw its exit code"
	}
	return unobservedTexts[i].text
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
