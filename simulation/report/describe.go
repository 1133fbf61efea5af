package report

import (
	"fmt"
	"strings"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// Describe says in words what happened: a detail that says all by itself, or the
// event's own text and what its detail adds to that. The actor of the run that the
// event is about is not named again.
func Describe(e history.Event) string {
	var words []string
	if e.Text != "" {
		words = append(words, e.Text)
	}
	switch detail := e.Detail.(type) {
	case history.Command:
		return describeCommand(detail)
	case history.Commit:
		return describeCommit(detail)
	case history.Fault:
		if e.Text == "" {
			words = append(words, describeFault(detail))
		}
		if detail.Outside {
			words = append(words, "[outside the fencing model]")
		}
	case history.Call:
		if about, ok := detail.Detail.(fmt.Stringer); ok && e.Kind == history.KindCall {
			words = []string{about.String()}
		}
		words = append(words, describeCall(detail, e.Text))
	default:
		if about, ok := detail.(fmt.Stringer); ok && e.Kind == history.KindPacket {
			words = []string{strings.TrimPrefix(e.Text+": ", ": ") + about.String()}
		}
	}
	text := strings.Join(words, " ")
	if e.Run != "" {
		text = strings.ReplaceAll(text, actors.KindRun+"/"+e.Run, "run actor")
	}
	return oneLine(text)
}

func describeCommand(c history.Command) string {
	if c.Started {
		return fmt.Sprintf("starts with token %d", c.Token)
	}
	return fmt.Sprintf("ends with code %d, %s", c.Code, describeCause(c.Cause))
}

// describeCause says who ended a command.
func describeCause(cause string) string {
	switch cause {
	case "itself":
		return "by itself"
	case "signal":
		return "by a signal"
	case "kill":
		return "killed"
	case "fence":
		return "killed by the fence"
	case "reboot":
		return "at the end of its machine"
	default:
		return cause
	}
}

func describeFault(f history.Fault) string {
	if f.Begin {
		return f.Name + " begins"
	}
	return f.Name + " ends"
}

// describeCall joins a call and its answer, and adds how it came out where the text
// does not say that. An answer that is a run says what state it is in.
func describeCall(c history.Call, said string) string {
	text := fmt.Sprintf("[call %d", c.ID)
	if run, ok := c.Detail.(*recordv1.Run); ok && run != nil {
		text = stateOfRun(run) + " " + text
	}
	if !strings.Contains(said, c.Outcome) {
		text += " " + c.Outcome
	}
	return text + "]"
}

// changesShown bounds how many changed keys a line names.
const changesShown = 8

func describeCommit(c history.Commit) string {
	var words []string
	run := ""
	for i, change := range c.Changes {
		if i == changesShown {
			words = append(words, fmt.Sprintf("and %d more", len(c.Changes)-i))
			break
		}
		if strings.Contains(change.Key, "/runs/") {
			run = records.LastPart(change.Key)
		}
		text := describeChange(change)
		if i > 0 && run != "" {
			text = strings.TrimSuffix(text, "/"+run) // it was named before
		}
		words = append(words, text)
	}
	return fmt.Sprintf("revision %d: %s", c.Revision, strings.Join(words, ", "))
}

// describeChange names a key as its readers do, and the move of a run's record.
func describeChange(change history.Change) string {
	key := change.Key
	if i := strings.Index(key, "/runs/"); i >= 0 {
		return "run " + records.LastPart(key) + " " + stateOf(change.Before) + " -> " + stateOf(change.After)
	}
	sign := "~"
	switch {
	case change.Before == nil:
		sign = "+"
	case change.After == nil:
		sign = "-"
	}
	return sign + key
}

// stateOf is a run's record in a word or two.
func stateOf(kv *records.KV) string {
	if kv == nil {
		return "none"
	}
	run, err := records.DecodeRun(*kv)
	if err != nil {
		return "damaged"
	}
	return stateOfRun(run)
}

// stateOfRun is the same of a run that was read.
func stateOfRun(run *recordv1.Run) string {
	text := records.Word(run.GetStatus())
	if p := run.GetPlacement(); p != nil {
		text += fmt.Sprintf("(%s %d.%d)", p.GetNode(), run.GetAttempt(), p.GetNumber())
	}
	if run.GetReason() != recordv1.Reason_REASON_UNSPECIFIED {
		text += "(" + records.Word(run.GetReason()) + ")"
	}
	if run.ExitCode != nil {
		text += fmt.Sprintf("(code %d)", run.GetExitCode())
	}
	if wish := run.GetWish(); wish != nil && !records.Terminal(run.GetStatus()) {
		text += "(wish " + records.Word(wish.GetReason()) + ")"
	}
	return text
}

// oneLine keeps a line a line.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\n\r\t") {
		return text
	}
	return strings.Join(strings.Fields(text), " ")
}
