package run

import (
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
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

// Scores are those of the nodes, as what runs have met of them (placement.Scores). They
// are read here, and changed by the effect Judge. No method blocks.
type Scores interface {
	// Empty tells that no node has lost any.
	Empty() bool
	// Behind tells whether a node's driver comes behind all others for a run.
	Behind(now time.Duration, run, node, driver string) bool
	// Lost returns the drivers of nodes that have lost score.
	Lost(now time.Duration) []placement.Lost
}

// Judge is the effect that says what a run has met of a driver of a node.
type Judge struct {
	Verdict           Verdict
	At                time.Duration
	Run, Node, Driver string
	// Cause says in words why a start has failed.
	Cause string
}

// Verdict is what a Judge says.
type Verdict uint8

// The verdicts.
const (
	// Failed: the node could not start the run.
	Failed Verdict = iota
	// Started: it has.
	Started
	// Acquitted: the run has failed elsewhere too, and blames nobody, whatever it has said.
	Acquitted
)

// On changes scores by what has been met.
func (j Judge) On(scores *placement.Scores) {
	switch j.Verdict {
	case Failed:
		scores.Failed(j.At, j.Run, j.Node, j.Driver, j.Cause)
	case Started:
		scores.Started(j.At, j.Run, j.Node, j.Driver)
	case Acquitted:
		scores.Acquit(j.Run)
	}
}

// judge says what a write that has landed tells of the node of the placement before it:
// that it could not start the command, or that it has started it.
func (m *Machine) judge(now time.Duration, before *recordv1.Run, head request, d decision) {
	scores := m.cfg.Scores
	if scores == nil || phaseOf(before) != placed {
		return
	}
	say := func(verdict Verdict, node, cause string) {
		m.emit(Judge{Verdict: verdict, At: now, Run: m.id, Node: node, Driver: before.GetSpec().GetDriver(), Cause: cause})
	}
	node := before.GetPlacement().GetNode()
	if v, ok := head.(voided); ok {
		void := v.GetVoid()
		switch {
		case d.change != changeUnplace && d.change != changeEnd || !isCause(void, before.GetWish()) || !blames(void.GetReason(), void.GetPermanent()):
		case len(failedBefore(before, node)) > 0:
			say(Acquitted, node, "")
		default:
			say(Failed, node, voidText(void))
		}
		return
	}
	if scores.Empty() && len(before.GetAvoided()) == 0 || !hasStarted(d.run, before.GetAttempt()) {
		return
	}
	// The run can be started: those who could not were to blame.
	for _, e := range failedBefore(before, node) {
		say(Failed, e.GetNode(), e.GetMessage())
	}
	say(Started, node, "")
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
