package run

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Loss says how long after a node's session was seen to be over a run on it is lost.
// The zero value is that of solo, where sessions do not end while anything runs in
// them: nothing is ever lost.
//
// A node that can not renew its session stops all that it runs a window after its
// last confirmed renewal, and is done within the kill budget; whoever waits for both
// by a clock that may be faster by the drift, from the moment when he saw that the
// session was over, finds nothing alive of it (protocol.md section 6).
type Loss struct {
	// Window is taken for that of a node whose nodeinfo names none: the longest that is
	// configured.
	Window time.Duration
	// KillBudget is how long the kill may take.
	KillBudget time.Duration
	// Drift bounds how much faster one clock may be than another, as a fraction.
	Drift float64
}

// After is how long to wait for a node of a window.
func (l Loss) After(window time.Duration) time.Duration {
	return window + time.Duration(float64(window)*l.Drift) + l.KillBudget
}

// absence is a session that was seen to be over, of a placement. It is in memory
// only: another activation sees it again, and waits from then.
type absence struct {
	attempt, placement int32
	// since is when it was seen first, on the monotonic clock.
	since time.Duration
	wait  time.Duration
	// armed: the timer runs.
	armed bool
}

func (a *absence) of(run *recordv1.Run) bool {
	held := run.GetPlacement()
	return held != nil && run.GetAttempt() == a.attempt && held.GetNumber() == a.placement
}

// sawNode takes what was read of the placement's node: its session and its nodeinfo.
func (m *Machine) sawNode(now actors.Instant, node records.KV, info records.KV) {
	run := m.snapshot.run
	if waitsForNode(run) {
		m.snapshot.presence = presenceByWord(node, info)
		return
	}
	if node.Create == run.GetPlacement().GetSession() {
		m.absence = nil
		m.snapshot.presence = &presence{}
		return
	}
	if m.absence == nil || !m.absence.of(run) {
		m.absence = &absence{attempt: run.GetAttempt(), placement: run.GetPlacement().GetNumber(), since: now.Mono}
		m.log(actors.LogWarn, "the session of the run's node is over", "node", run.GetPlacement().GetNode(), "session", run.GetPlacement().GetSession())
	}
	a := m.absence
	a.wait = max(a.wait, m.cfg.Loss.After(m.windowOf(info)))
	left := a.since + a.wait - now.Mono
	m.snapshot.presence = &presence{gone: true, left: max(0, left), over: max(0, -left)}
}

// presenceByWord is what the store says of a node that is waited for. However long it has
// been away it is gone only when somebody has said, since its last session, that it is dead.
func presenceByWord(node, info records.KV) *presence {
	if node.Create != 0 {
		// In another session too it is there, and what runs goes on.
		return &presence{}
	}
	read := &recordv1.NodeInfo{}
	if len(info.Value) == 0 || records.Decode(info, read) != nil || read.GetRemoved() == nil {
		return &presence{away: true}
	}
	return &presence{gone: true, word: read.GetRemoved()}
}

// windowOf is how long a node may go on after its last confirmed renewal. One that
// does not say, or can not be read, is taken for the slowest.
func (m *Machine) windowOf(info records.KV) time.Duration {
	read := &recordv1.NodeInfo{}
	if len(info.Value) == 0 || records.Decode(info, read) != nil || read.GetWindowMs() <= 0 {
		return m.cfg.Loss.Window
	}
	return time.Duration(read.GetWindowMs()) * time.Millisecond
}

// waitsForLoss keeps the activation, and makes sure that it looks again, while it
// waits for a session that is over: nobody else knows since when.
func (m *Machine) waitsForLoss(now actors.Instant) bool {
	switch a := m.absence; {
	case a == nil:
		return false
	case m.loaded && !a.of(m.snapshot.run):
		m.absence = nil
		m.emit(actors.SetTimer{Name: timerLoss, After: -1})
		return false
	case !a.armed:
		a.armed = true
		m.emit(actors.SetTimer{Name: timerLoss, After: max(a.since+a.wait-now.Mono, busyLook)})
	}
	return true
}

// waitsForNode tells whether a run is lost with no session: its node lets it go on, or
// gives it back, and nobody else may take it before it has said so, or somebody that it
// is dead.
func waitsForNode(run *recordv1.Run) bool {
	return run.GetSpec().GetRetry().GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT
}

// lookForNode decides about a run whose node may be lost. It is false when the node
// has the session that the run was placed in.
func lookForNode(now actors.Instant, s snapshot) (decision, bool) {
	switch {
	case !s.leased:
		return decision{}, false
	case s.presence == nil:
		return decision{change: changeAssignment}, true
	case !s.presence.gone:
		return decision{}, false
	case s.presence.left > 0:
		return decision{lookAgain: s.presence.left}, true
	default:
		return lose(now, s), true
	}
}

// lose ends an attempt with its node. What was asked of it before decides, as for any end
// that nobody saw, only where it is not known whether the command was started; a
// command that ran was ended by the fence at the latest, or with its machine.
func lose(now actors.Instant, s snapshot) decision {
	run := proto.CloneOf(s.run)
	node, session := run.GetPlacement().GetNode(), run.GetPlacement().GetSession()
	result := outcome{status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_NODE_LOST, message: lostText(node)}
	if word := s.presence.word; word != nil {
		noteSafe(run, recordv1.SafeBy_SAFE_BY_WORD, word.GetAt())
		attemptOf(run).SafeWordBy = bounded(word.GetBy())
		result.message = lostByWordText(node, word)
	} else {
		noteSafe(run, recordv1.SafeBy_SAFE_BY_FENCE, milliAfter(now, -s.presence.over))
	}
	if phaseOf(run) == placed {
		if stopped, ok := stoppedUnseen(run, recordv1.Reason_REASON_START_UNKNOWN, nil); ok {
			result = stopped
		}
	}
	var d decision
	if tryAgain(run, result) {
		d = again(now, run, result)
	} else {
		run.Message = result.message
		d = finish(now, run, result.status, result.reason, node)
	}
	d.change, d.session = changeLose, session
	return d
}
