package run

import (
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// blames tells whether a placement that came to nothing for such a reason counts against
// its node: the engine there could not make or start the sandbox, for now. What is
// permanent is the run's own fault, a pull is the registry's, and a reason of neither
// says that the run was to leave.
func blames(reason recordv1.Reason, permanent bool) bool {
	return reason == recordv1.Reason_REASON_START_ERROR && !permanent
}

// judge tells the scores what a write that has landed says of the node of the placement
// before it: that it could not start the command, or that it has started it.
func (m *Machine) judge(now time.Duration, before *recordv1.Run, head request, d decision) {
	scores := m.cfg.Scores
	if scores == nil || phaseOf(before) != placed {
		return
	}
	node, driver := before.GetPlacement().GetNode(), before.GetSpec().GetDriver()
	if v, ok := head.(voided); ok {
		void := v.GetVoid()
		switch {
		case d.change != changeUnplace && d.change != changeEnd || !isCause(void, before.GetWish()) || !blames(void.GetReason(), void.GetPermanent()):
		case len(failedBefore(before, node)) > 0:
			scores.Acquit(m.id)
		default:
			scores.Failed(now, m.id, node, driver, voidText(void))
		}
		return
	}
	if scores.Empty() && len(before.GetAvoided()) == 0 || !hasStarted(d.run, before.GetAttempt()) {
		return
	}
	// The run can be started: those who could not were to blame.
	for _, e := range failedBefore(before, node) {
		scores.Failed(now, m.id, e.GetNode(), driver, e.GetMessage())
	}
	scores.Started(now, m.id, node, driver)
}

// hasStarted tells whether the command of an attempt is known to have been started.
func hasStarted(run *recordv1.Run, attempt int32) bool {
	return slices.ContainsFunc(run.GetAttempts(), func(a *recordv1.Attempt) bool { return a.GetNumber() == attempt && a.GetStartedAt() > 0 })
}

// failedBefore returns the last failure of each node but one that could not start the
// current attempt, as far as the record remembers them.
func failedBefore(run *recordv1.Run, but string) (failed []*recordv1.RunEvent) {
	for _, e := range run.GetEvents() {
		if e.GetKind() != eventLeft || e.GetAttempt() != run.GetAttempt() || e.GetNode() == but || !blames(e.GetReason(), false) {
			continue
		}
		failed = slices.DeleteFunc(failed, func(other *recordv1.RunEvent) bool { return other.GetNode() == e.GetNode() })
		failed = append(failed, e)
	}
	return failed
}

// behindLast puts the candidates behind all others that have lost too much score for
// this run to come in their turn.
func (m *Machine) behindLast(now time.Duration, candidates []actors.Candidate) []actors.Candidate {
	scores, driver := m.cfg.Scores, m.snapshot.run.GetSpec().GetDriver()
	if scores == nil || scores.Empty() || len(candidates) < 2 {
		return candidates
	}
	var behind []actors.Candidate
	candidates = slices.DeleteFunc(candidates, func(c actors.Candidate) bool {
		if !scores.Behind(now, m.id, c.Node, driver) {
			return false
		}
		behind = append(behind, c)
		return true
	})
	return append(candidates, behind...)
}

// lostScore are the nodes that come behind all others for this run, for those who ask
// why it waits.
func (m *Machine) lostScore(now time.Duration) (lost []*actorv1.LostScore) {
	scores := m.cfg.Scores
	if scores == nil || scores.Empty() || !m.loaded || phaseOf(m.snapshot.run) != waiting || len(m.cfg.Nodes.Alive()) < 2 {
		return nil
	}
	driver := m.snapshot.run.GetSpec().GetDriver()
	for _, l := range scores.Lost(now) {
		if l.Driver == driver && len(lost) < candidatesMax && scores.Behind(now, m.id, l.Node, driver) {
			lost = append(lost, &actorv1.LostScore{
				Node: l.Node, Driver: l.Driver, Runs: int32(l.Runs), Share: int32(l.Share), Cause: bounded(l.Cause), //nolint:gosec // at most placement.MarksMax
				SinceMs: l.Since.Milliseconds(), UntilMs: wholeMilli(l.Until),
			})
		}
	}
	return lost
}
