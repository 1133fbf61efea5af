package run

import (
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// reserveTimeout is how long a node may take to answer a Reserve.
	reserveTimeout = 2 * time.Second
	// candidatesMax bounds how many nodes are asked in a round.
	candidatesMax   = 16
	startTokenBytes = 16
)

// round asks the candidates one after the other; the first yes wins. It is in
// memory only: a reservation that nobody uses expires on its node.
type round struct {
	attempt, placement int32
	spec               *recordv1.Spec
	created            int64
	candidates         []actors.Candidate
	// asked is the index of the candidate whose answer is awaited; answered is set
	// while its yes is being committed.
	asked    int
	answered bool
	refusals []refusal
}

type refusal struct {
	node      string
	message   string
	permanent recordv1.Reason
}

// fits tells whether the round is still about what the record waits for.
func (r *round) fits(run *recordv1.Run) bool {
	return phaseOf(run) == waiting && run.GetAttempt() == r.attempt && run.GetPlacements()+1 == r.placement
}

// seek begins a round unless one is under way or was refused a moment ago, and
// returns when to look again.
func (m *Machine) seek(now actors.Instant) time.Duration {
	if m.round != nil {
		return busyLook
	}
	if wait := m.askAgain - now.Mono; wait > 0 {
		return wait
	}
	run := m.snapshot.run
	candidates := placement.Spread(m.id, m.cfg.Nodes.Candidates(), func(c actors.Candidate) (string, int64) { return c.Node, c.Score })
	candidates = askedLast(m.behindLast(now.Mono, candidates), run.GetAvoided())
	m.round = &round{
		attempt: run.GetAttempt(), placement: run.GetPlacements() + 1, spec: run.GetSpec(), created: m.snapshot.created,
		candidates: turn(candidates, m.rounds), asked: -1,
	}
	m.rounds++
	m.askNext()
	return busyLook
}

// turn returns those of the candidates that are asked in a round, counted from 0. Where
// there are more than one round asks, the next one goes on with the others.
func turn(candidates []actors.Candidate, round int) []actors.Candidate {
	if len(candidates) <= candidatesMax {
		return candidates
	}
	first := round * candidatesMax % len(candidates)
	return slices.Concat(candidates[first:], candidates[:first])[:candidatesMax]
}

// askNext asks the next candidate, or ends the round with everybody's reasons.
func (m *Machine) askNext() {
	r := m.round
	r.asked++
	r.answered = false
	if r.asked < len(r.candidates) {
		m.emit(tellNode(r.candidates[r.asked].Node, &actorv1.Reserve{
			Run: m.id, Attempt: r.attempt, Placement: r.placement,
			Driver: r.spec.GetDriver(), CpuMillis: r.spec.GetCpuMillis(), MemoryBytes: r.spec.GetMemoryBytes(), Node: m.cfg.Node, Created: r.created,
		}), actors.SetTimer{Name: timerReserve, After: reserveTimeout})
		return
	}
	m.emit(actors.SetTimer{Name: timerReserve, After: -1})
	r.answered = true
	m.pending = append(m.pending, refused{
		attempt: r.attempt, placement: r.placement, message: refusalsText(r.refusals), permanent: permanentOf(r.refusals),
	})
}

// permanentOf returns the first reason if no node can ever take the run. That it may
// have been started already is about the run and no node: one says it for all.
func permanentOf(refusals []refusal) recordv1.Reason {
	for _, r := range refusals {
		if r.permanent == recordv1.Reason_REASON_START_UNKNOWN {
			return r.permanent
		}
	}
	for _, r := range refusals {
		if r.permanent == recordv1.Reason_REASON_UNSPECIFIED {
			return recordv1.Reason_REASON_UNSPECIFIED
		}
	}
	if len(refusals) == 0 {
		return recordv1.Reason_REASON_UNSPECIFIED
	}
	return refusals[0].permanent
}

// reserved takes the answer of the node that was asked; any other comes too late,
// and its reservation expires.
func (m *Machine) reserved(answer *actorv1.Reserved) {
	r := m.round
	if r == nil || r.answered || r.asked < 0 || r.asked >= len(r.candidates) || r.candidates[r.asked].Node != answer.GetNode() ||
		answer.GetAttempt() != r.attempt || answer.GetPlacement() != r.placement {
		return
	}
	if !answer.GetYes() {
		m.refuseAsked(refusal{node: answer.GetNode(), message: answer.GetMessage(), permanent: answer.GetPermanentReason()})
		return
	}
	r.answered = true
	token := make([]byte, startTokenBytes)
	m.cfg.Rand.Fill(token)
	m.emit(actors.SetTimer{Name: timerReserve, After: -1})
	m.pending = append(m.pending, granted{
		node: answer.GetNode(), session: answer.GetSession(), attempt: r.attempt, placement: r.placement, token: token,
	})
}

func (m *Machine) reserveTimedOut() {
	if r := m.round; r != nil && !r.answered && r.asked >= 0 && r.asked < len(r.candidates) {
		m.refuseAsked(refusal{node: r.candidates[r.asked].Node, message: silentNode(reserveTimeout)})
	}
}

func (m *Machine) refuseAsked(r refusal) {
	m.round.refusals = append(m.round.refusals, r)
	m.askNext()
}

// refuse follows a yes that could not be committed because of the node.
func (m *Machine) refuse(r refusal) {
	if m.round != nil && m.round.fits(m.snapshot.run) {
		m.refuseAsked(r)
	}
}

// endRoundOf ends the round whose result has been decided. After a refusal it is a
// while before anybody is asked again.
func (m *Machine) endRoundOf(now actors.Instant, r request, d decision) {
	switch r.(type) {
	case granted:
		m.endRound()
		m.refusedBy = nil
	case refused:
		if m.round != nil {
			m.refusedBy, m.refusedAt = m.round.refusals, now.Mono
		}
		m.endRound()
		m.askAgain = now.Mono + d.lookAgain
	}
}

func (m *Machine) endRound() {
	if m.round != nil {
		m.round = nil
		m.emit(actors.SetTimer{Name: timerReserve, After: -1})
	}
}

// placeRefusedText says why a placement was not committed although the record had
// not changed. The responses are the record, the node's session and its drain.
func placeRefusedText(result records.Result, session int64) string {
	if _, draining := result.First(2); draining {
		return "is draining"
	}
	switch node, ok := result.First(1); {
	case !ok:
		return "is not registered"
	case node.Create != session:
		return "was registered anew"
	default:
		return "still holds an earlier placement of this run"
	}
}
