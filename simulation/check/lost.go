package check

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// The verbs of history.Call that the checkers know. A submit that was answered "ok"
// says in Run which run it is; a read's answer has what was read as Detail, a
// *recordv1.Run, nil for none; a refusal may have its records.Class there.
const (
	VerbSubmit = "submit"
	VerbCancel = "cancel"
	VerbDelete = "delete"
	VerbGet    = "get"
)

// g8NothingLost: what was acknowledged stays. A submitted run exists until it is
// deleted, a cancel is in the record when it is acknowledged, and the end of a
// command reaches its run: at once the code, where nothing was disturbed, and a late
// exit at the least, where a machine was given up and came back.
type g8NothingLost struct {
	// asked is when each open call began.
	asked map[uint64]time.Duration
}

func (*g8NothingLost) Guarantee() Guarantee { return G8 }

func (g *g8NothingLost) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindCall:
		if call, ok := e.Detail.(history.Call); ok {
			g.asked[call.ID] = e.At
		}
	case history.KindAnswer:
		call, ok := e.Detail.(history.Call)
		asked := g.asked[call.ID]
		delete(g.asked, call.ID)
		if !ok || call.Outcome != "ok" || l.RestoredSince(asked) {
			return // what the store had, it may have lost with its restore
		}
		if text := acknowledged(l, call); text != "" {
			report(Finding{Run: call.Run, Text: text})
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if text := unseen(l, r); text != "" {
				report(Finding{Run: r.ID, Text: text})
			}
		}
	default:
	}
}

// acknowledged says what is missing of what a client has just been told.
func acknowledged(l *Ledger, call history.Call) string {
	r := l.Run(call.Run)
	switch {
	case call.Verb != VerbSubmit && call.Verb != VerbCancel:
		return ""
	case r == nil || r.Record == nil && r.Deleted == 0:
		return "a " + call.Verb + " was acknowledged and the run is not in the store"
	case call.Verb == VerbCancel && r.Record != nil && r.Record.GetStatus() != recordv1.Status_STATUS_CANCELED &&
		r.Record.GetWish().GetReason() != recordv1.Reason_REASON_CANCELED:
		return "a cancel was acknowledged and is not in the record"
	}
	return ""
}

// unseen says that a command ended by itself in an undisturbed world and its run was
// ended without that, or that it is said to be lost where nothing hid it.
func unseen(l *Ledger, r *Run) string {
	if !r.Terminal() || !r.Rewritten {
		return ""
	}
	last := lastAttempt(r.Record)
	if last == nil || last.ExitCode != nil {
		return ""
	}
	c := r.CommandOf(last.GetNumber(), last.GetPlacement())
	if c == nil || c.Alive {
		return ""
	}
	switch r.Record.GetReason() {
	case recordv1.Reason_REASON_SANDBOX_LOST, recordv1.Reason_REASON_START_UNKNOWN:
		// A start that comes after it was given up can only be barred by a kill, which must
		// not be before the journal says so: else the kill could pass for the command's end.
		belated := r.Record.GetReason() == recordv1.Reason_REASON_START_UNKNOWN && r.Belated(c)
		if l.InSight(c) && !belated {
			return fmt.Sprintf("%v ended (%s) in sight of its node and is said to be lost (%s)", c, c.Cause, records.Word(r.Record.GetReason()))
		}
	default:
	}
	if c.Cause != "itself" {
		return ""
	}
	if since, calm := l.CalmSince(); !calm || since > 0 && since >= c.Started {
		return ""
	}
	return fmt.Sprintf("%v ended with %d and the record has no code", c, c.Code)
}

func (*g8NothingLost) Finish(l *Ledger, facts Facts, report func(Finding)) {
	if !facts.Settled {
		return
	}
	for _, r := range l.Runs() {
		if !r.Terminal() {
			continue // that it still waits for this is pending, and shown so
		}
		for _, c := range r.Commands {
			m := facts.machine(c.Node)
			if c.Alive || l.RestoredSince(c.Started) || m == nil || m.Broken || m.JournalLost || reached(r, c) {
				continue
			}
			report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("%v ended (%s) and the record does not say so", c, c.Cause)})
		}
	}
}

// reached tells whether the record knows of the end of a command from its machine,
// be it late and without a code.
func reached(r *Run, c *Command) bool {
	for _, late := range r.Record.GetLateExits() {
		if late.GetAttempt() == c.Attempt && late.GetPlacement() == c.Placement {
			return true
		}
	}
	for _, a := range r.Record.GetAttempts() {
		if a.GetNumber() == c.Attempt && a.GetPlacement() == c.Placement {
			return a.GetEndedAt() > 0 && a.GetReason() != recordv1.Reason_REASON_NODE_LOST
		}
	}
	return len(r.Record.GetLateExits()) >= lateExitsMax
}

// lateExitsMax is how many late exits a record keeps.
const lateExitsMax = 16
