package report

import (
	"fmt"
	"strings"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// Describe says in words what happened: the event's own text and what its detail
// adds to that.
func Describe(e history.Event) string {
	var words []string
	if e.Text != "" {
		words = append(words, e.Text)
	}
	switch detail := e.Detail.(type) {
	case history.Command:
		words = append(words, describeCommand(detail))
	case history.Commit:
		words = append(words, describeCommit(detail))
	case history.Fault:
		if e.Text == "" {
			words = append(words, describeFault(detail))
		}
		if detail.Outside {
			words = append(words, "[outside the fencing model]")
		}
	case history.Call:
		words = append(words, describeCall(detail))
	default:
	}
	return oneLine(strings.Join(words, " "))
}

func describeCommand(c history.Command) string {
	if c.Started {
		return fmt.Sprintf("[command starts, token %d]", c.Token)
	}
	return fmt.Sprintf("[command ends with %d by %s]", c.Code, c.Cause)
}

func describeFault(f history.Fault) string {
	if f.Begin {
		return f.Name + " begins"
	}
	return f.Name + " ends"
}

func describeCall(c history.Call) string {
	text := fmt.Sprintf("[call %d %s", c.ID, c.Verb)
	if c.Key != "" {
		text += " key " + c.Key
	}
	if c.Outcome != "" {
		text += ": " + c.Outcome
	}
	return text + "]"
}

// changesShown bounds how many changed keys a line names.
const changesShown = 8

func describeCommit(c history.Commit) string {
	var words []string
	for i, change := range c.Changes {
		if i == changesShown {
			words = append(words, fmt.Sprintf("and %d more", len(c.Changes)-i))
			break
		}
		words = append(words, describeChange(change))
	}
	return fmt.Sprintf("@%d %s", c.Revision, strings.Join(words, ", "))
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
