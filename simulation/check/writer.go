package check

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// g1OneWriter: a record moves only as the lifecycle allows, a terminal one never, no
// actor brings one back, and nothing that a record knew is lost by a write that was
// decided on an older one. Two activations that both write show by one of these.
type g1OneWriter struct{}

func (g1OneWriter) Guarantee() Guarantee { return G1 }

func (g1OneWriter) Observe(l *Ledger, e history.Event, report func(Finding)) {
	if e.Kind != history.KindCommit {
		return
	}
	for _, key := range l.broken {
		report(Finding{Run: records.LastPart(key), Text: "what was written to " + key + " is no record"})
	}
	for _, r := range l.Changed() {
		var text string
		switch {
		case r.Record == nil && r.Before == nil:
			text = orphaned(r)
		case r.Before == nil:
			text = created(r)
		case r.Record == nil:
			text = deleted(r)
		default:
			text = moved(r)
		}
		if text == "" {
			text = keysAgree(r)
		}
		if text != "" {
			report(Finding{Run: r.ID, Text: text})
		}
	}
}

func orphaned(r *Run) string {
	if r.Live || len(r.Assignments) > 0 {
		return "keys were put for a run that has no record"
	}
	return ""
}

func created(r *Run) string {
	run := r.Record
	switch {
	case r.Gone:
		return "the record was created although its tombstone says that it was deleted"
	case run.GetStatus() == recordv1.Status_STATUS_SKIPPED:
		return ""
	case run.GetStatus() != recordv1.Status_STATUS_PENDING || run.GetAttempt() != 1 || run.GetPlacements() != 0 || run.GetPlacement() != nil:
		return fmt.Sprintf("a record that did not exist was written as %s, attempt %d, %d placements", records.Word(run.GetStatus()), run.GetAttempt(), run.GetPlacements())
	}
	return ""
}

func deleted(r *Run) string {
	if !records.Terminal(r.Before.GetStatus()) {
		return "the record was deleted while it was " + records.Word(r.Before.GetStatus())
	}
	if !r.Gone {
		return "the record was deleted and no tombstone put"
	}
	return ""
}

// legal are the moves of a status that is not terminal.
var legal = map[recordv1.Status][]recordv1.Status{
	recordv1.Status_STATUS_PENDING: {
		recordv1.Status_STATUS_PENDING, recordv1.Status_STATUS_RUNNING, recordv1.Status_STATUS_SUCCEEDED,
		recordv1.Status_STATUS_FAILED, recordv1.Status_STATUS_TIMED_OUT, recordv1.Status_STATUS_CANCELED,
	},
	recordv1.Status_STATUS_RUNNING: {
		recordv1.Status_STATUS_RUNNING, recordv1.Status_STATUS_PENDING, recordv1.Status_STATUS_SUCCEEDED,
		recordv1.Status_STATUS_FAILED, recordv1.Status_STATUS_TIMED_OUT, recordv1.Status_STATUS_CANCELED,
	},
}

func moved(r *Run) string {
	before, after := r.Before, r.Record
	if !r.Rewritten {
		return ""
	}
	if records.Terminal(before.GetStatus()) {
		if !proto.Equal(ended(before), ended(after)) {
			return fmt.Sprintf("a record that was %s was changed", records.Word(before.GetStatus()))
		}
		return shrunk(before, after)
	}
	if !slices.Contains(legal[before.GetStatus()], after.GetStatus()) {
		return fmt.Sprintf("%s became %s", records.Word(before.GetStatus()), records.Word(after.GetStatus()))
	}
	if before.GetStatus() == recordv1.Status_STATUS_RUNNING && after.GetStatus() == recordv1.Status_STATUS_PENDING && after.GetAttempt() == before.GetAttempt() {
		return "RUNNING became PENDING again within one attempt"
	}
	for _, judge := range []func(before, after *recordv1.Run) string{rewritten, regressed, replaced, shrunk} {
		if text := judge(before, after); text != "" {
			return text
		}
	}
	return ""
}

// ended is what of a terminal record never changes: all but the exits that came late,
// the sandboxes in its name that were found, and who wrote it.
func ended(run *recordv1.Run) *recordv1.Run {
	clone := proto.CloneOf(run)
	clone.LateExits, clone.Writer, clone.Events, clone.EventsLeftOut = nil, "", nil, 0
	return clone
}

// rewritten tells whether a fact of the creation changed.
func rewritten(before, after *recordv1.Run) string {
	switch {
	case before.GetId() != after.GetId(), before.GetApp() != after.GetApp(), before.GetTask() != after.GetTask(),
		before.GetCreatedAt() != after.GetCreatedAt(), before.GetTrigger() != after.GetTrigger(),
		!bytes.Equal(before.GetRequestHash(), after.GetRequestHash()), !proto.Equal(before.GetSpec(), after.GetSpec()):
		return "what the run was created with has changed"
	}
	return ""
}

// regressed tells whether a counter went back or a wish was forgotten: a write that
// was decided on an older record.
func regressed(before, after *recordv1.Run) string {
	if after.GetAttempt() == before.GetAttempt()+1 {
		return followed(before, after)
	}
	startedNow := after.GetStatus() == recordv1.Status_STATUS_RUNNING && before.GetStatus() == recordv1.Status_STATUS_PENDING
	switch wish := before.GetWish(); {
	case after.GetAttempt() != before.GetAttempt():
		return fmt.Sprintf("attempt %d became attempt %d", before.GetAttempt(), after.GetAttempt())
	case after.GetPlacements() < before.GetPlacements():
		return fmt.Sprintf("%d placements became %d", before.GetPlacements(), after.GetPlacements())
	case after.GetQueuedAt() < before.GetQueuedAt():
		return "the run was queued earlier than it was queued"
	case wish != nil && after.GetWish() == nil && !(startedNow && wish.GetReason() == recordv1.Reason_REASON_START_DEADLINE):
		return "the recorded wish " + records.Word(wish.GetReason()) + " was forgotten"
	case wish.GetReason() == recordv1.Reason_REASON_CANCELED && after.GetWish().GetReason() != recordv1.Reason_REASON_CANCELED:
		return "a cancel became another wish"
	case wish.GetForce() && !after.GetWish().GetForce() && after.GetWish().GetReason() == wish.GetReason():
		return "a forced stop became a gentle one"
	}
	return ""
}

// followed judges the move to another attempt: the one before is on record as over, and
// nothing of it is left over for the next.
func followed(before, after *recordv1.Run) string {
	i := slices.IndexFunc(after.GetAttempts(), func(a *recordv1.Attempt) bool { return a.GetNumber() == before.GetAttempt() })
	switch {
	case before.GetPlacement() == nil:
		return fmt.Sprintf("attempt %d follows one that was not placed", after.GetAttempt())
	case after.GetStatus() != recordv1.Status_STATUS_PENDING || after.GetPlacement() != nil || after.GetPlacements() != 0 || after.GetWish() != nil || after.ExitCode != nil:
		return fmt.Sprintf("attempt %d does not begin anew", after.GetAttempt())
	case i < 0 || !records.Terminal(after.GetAttempts()[i].GetStatus()) || after.GetAttempts()[i].GetReason() == recordv1.Reason_REASON_UNSPECIFIED || after.GetAttempts()[i].GetEndedAt() <= 0:
		return fmt.Sprintf("attempt %d is followed by another and the record does not say how it ended", before.GetAttempt())
	}
	return ""
}

// replaced tells whether a placement was put over another, or numbered wrongly.
func replaced(before, after *recordv1.Run) string {
	p, q := before.GetPlacement(), after.GetPlacement()
	switch {
	case q == nil:
		return ""
	case p == nil && q.GetNumber() != before.GetPlacements()+1 && after.GetAttempt() == before.GetAttempt():
		return fmt.Sprintf("placement %d follows %d placements", q.GetNumber(), before.GetPlacements())
	case p != nil && !proto.Equal(p, q):
		return fmt.Sprintf("placement %d on %s was put over placement %d on %s", q.GetNumber(), q.GetNode(), p.GetNumber(), p.GetNode())
	}
	return ""
}

// shrunk tells whether an ended attempt or a late exit was lost from the record.
func shrunk(before, after *recordv1.Run) string {
	for _, a := range before.GetAttempts() {
		if a.GetEndedAt() > 0 && !slices.ContainsFunc(after.GetAttempts(), func(b *recordv1.Attempt) bool { return proto.Equal(a, b) }) {
			return fmt.Sprintf("what was known of attempt %d was changed or lost", a.GetNumber())
		}
	}
	if kept := func(run *recordv1.Run) int { return len(run.GetEvents()) + int(run.GetEventsLeftOut()) }; kept(after) < kept(before) {
		return "an event was lost"
	}
	late := after.GetLateExits()
	if len(late) < len(before.GetLateExits()) {
		return "a late exit was lost"
	}
	for i, exit := range before.GetLateExits() {
		if !proto.Equal(exit, late[i]) {
			return "a late exit was changed"
		}
	}
	return ""
}

// keysAgree tells whether the keys beside the record say what it says. Those of a
// terminal run are G4's.
func keysAgree(r *Run) string {
	if r.Record == nil || r.Terminal() {
		return ""
	}
	p := r.Record.GetPlacement()
	switch {
	case !r.Live:
		return "the run is not terminal and its live key is gone"
	case p == nil && len(r.Assignments) > 0:
		return "the run has no placement and an assignment on " + r.Assignments[0].Node
	case len(r.Assignments) > 1:
		return fmt.Sprintf("the run has assignments on %s and %s", r.Assignments[0].Node, r.Assignments[1].Node)
	}
	for _, a := range r.Assignments {
		if a.Node != p.GetNode() || a.Placement != p.GetNumber() || a.Attempt != r.Record.GetAttempt() {
			return fmt.Sprintf("the assignment on %s is of attempt %d placement %d and the record of %d and %d on %s",
				a.Node, a.Attempt, a.Placement, r.Record.GetAttempt(), p.GetNumber(), p.GetNode())
		}
	}
	return ""
}
