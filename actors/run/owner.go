package run

import (
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// explain answers what this activation knows of its run and has not recorded. It begins
// nothing: an activation that was made by the question knows nothing and ends as idle.
func (m *Machine) explain(now actors.Instant, to actors.Sender) {
	answer := &actorv1.Explained{Active: m.begun, StoreFailures: int32(m.failures)} //nolint:gosec // one more each retry, seconds apart
	if m.loaded {
		answer.Attempt = m.snapshot.run.GetAttempt()
	}
	refusals := m.refusedBy
	if r := m.round; r != nil {
		answer.Attempt, answer.Candidates = r.attempt, int32(len(r.candidates)) //nolint:gosec // nodes of a cluster
		if !r.answered && r.asked >= 0 && r.asked < len(r.candidates) {
			answer.Asking = r.candidates[r.asked].Node
		}
		refusals = r.refusals
	} else if len(refusals) > 0 {
		answer.RefusedAgoMs = (now.Mono - m.refusedAt).Milliseconds()
	}
	if wait := m.askAgain - now.Mono; m.round == nil && wait > 0 {
		answer.AskAgainMs = wholeMilli(wait)
	}
	for _, r := range refusals {
		answer.Refusals = append(answer.Refusals, &actorv1.Refusal{Node: r.node, Message: bounded(r.message)})
	}
	if a := m.absence; a != nil {
		answer.NodeGone, answer.LostInMs = true, wholeMilli(max(0, a.since+a.wait-now.Mono))
		answer.GoneAttempt, answer.GonePlacement = a.attempt, a.placement
	}
	answer.LostScore = m.lostScore(now.Mono)
	m.emit(actors.Answer{To: to, Message: answer})
}

// wholeMilli rounds up.
func wholeMilli(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }
