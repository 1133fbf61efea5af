package nodes

import (
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// quarantinedShown bounds what an answer lists.
const quarantinedShown = 256

// tellStep answers what the node does for a run, what it has sandboxes for, or what it
// keeps that nothing accounts for. It changes nothing.
func (m *Machine) tellStep(ask *actorv1.Describe, to actors.Sender) {
	answer := &actorv1.Described{Node: m.config.ID}
	switch {
	case ask.GetRun() != "":
		answer.Placement = m.stepOf(ask.GetRun())
	case len(ask.GetSandboxes()) > 0:
		answer.Accounts = m.account(ask.GetSandboxes())
	default:
		answer.Quarantined, answer.QuarantinedCount = m.quarantined()
	}
	m.emit(actors.Answer{To: to, Message: answer})
}

// stepOf tells how far the newest placement of a run has come that is not done.
func (m *Machine) stepOf(run string) *actorv1.PlacementStep {
	var newest *placement
	for _, p := range m.ofTheRun(run) {
		if p.class != classDone && (newest == nil || later(p.key, newest.key)) {
			newest = p
		}
	}
	if newest == nil {
		return nil
	}
	p := newest
	step := &actorv1.PlacementStep{Attempt: p.key.Attempt, Placement: p.key.Placement, Image: p.assignment.GetSpec().GetImage()}
	var from time.Duration
	switch p.entry.GetState() {
	case recordv1.JournalState_JOURNAL_STATE_ACCEPTED:
		if step.Step = actorv1.Step_STEP_QUEUED; p.creating {
			step.Step, from = actorv1.Step_STEP_CREATING, p.creatingFrom
		} else {
			step.StartsInFlight = int32(m.starts.creating()) //nolint:gosec // bounded by the lanes
		}
	case recordv1.JournalState_JOURNAL_STATE_STARTING:
		step.Step, from = actorv1.Step_STEP_STARTING, p.syncingFrom
	case recordv1.JournalState_JOURNAL_STATE_STARTED:
		step.Step = actorv1.Step_STEP_RUNNING
		if p.stopping || p.entry.GetStopCause() != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED {
			step.Step, step.StopGraceMs = actorv1.Step_STEP_STOPPING, p.entry.GetStopGraceMs()
			step.Signals = append(step.Signals, p.entry.GetSignals()...)
		}
	default:
		switch {
		case p.quarantined:
			step.Step = actorv1.Step_STEP_QUARANTINED
		case p.reporting || p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_VOID:
			step.Step = actorv1.Step_STEP_REPORTING
		default:
			step.Step = actorv1.Step_STEP_EMPTYING
		}
	}
	if from > 0 {
		step.SinceMs = (m.now.Mono - from).Milliseconds()
	}
	return step
}

func later(a, b PlacementKey) bool {
	return a.Attempt > b.Attempt || a.Attempt == b.Attempt && a.Placement > b.Placement
}

// quarantined lists the sandboxes that nothing accounts for and the outcomes of runs
// that nobody knows, and counts them.
func (m *Machine) quarantined() (things []*actorv1.QuarantinedThing, count int64) {
	for _, id := range sortedKeys(m.orphans) {
		if count++; count <= quarantinedShown {
			o := m.orphans[id]
			things = append(things, &actorv1.QuarantinedThing{
				Sandbox: id, Driver: o.driver, Run: o.info.Run, Attempt: o.info.Attempt, Placement: o.info.Placement,
				Since: o.since, Until: o.until(), Reason: o.reason(), Running: !o.killed,
			})
		}
	}
	if m.counts[classQuarantined] == 0 {
		return things, count
	}
	for _, id := range sortedKeys(m.placements) {
		p := m.placements[id] // at rest unless it is one of them
		if p.class != classQuarantined {
			continue
		}
		if count++; count <= quarantinedShown {
			things = append(things, &actorv1.QuarantinedThing{
				Driver: p.entry.GetDriver(), Run: p.key.Run, Attempt: p.key.Attempt, Placement: p.key.Placement,
				Since: endedAt(p.entry), Until: endedAt(p.entry) + QuarantineHold.Milliseconds(),
				Reason: "nobody knows the run; how it ended is kept in case its record comes back",
			})
		}
	}
	return things, count
}

// endedAt is when the outcome of an entry was decided.
func endedAt(entry *recordv1.JournalEntry) int64 {
	if entry.GetState() == recordv1.JournalState_JOURNAL_STATE_VOID {
		return entry.GetVoid().GetAt()
	}
	return entry.GetExit().GetAt()
}
