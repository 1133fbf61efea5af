package run

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// lateExitsMax bounds the late exits that a record keeps. Those beyond it are
// acknowledged all the same.
const lateExitsMax = 16

// finish makes a run terminal. The run is the caller's to change; its message
// and, if one was observed, its exit code are set.
func finish(
	now actors.Instant, run *recordv1.Run, status recordv1.Status, reason recordv1.Reason, node string, after ...follow,
) decision {
	run.Status, run.Reason = status, reason
	run.EndedAt = max(now.Milli(), run.GetStartedAt(), run.GetQueuedAt())
	notePlaced(run)
	run.Placement = nil
	run.HoldReason, run.HoldMessage = recordv1.Reason_REASON_UNSPECIFIED, ""
	// A run that ends before it was ever placed has no attempt to show.
	if i := attemptIndex(run); i >= 0 {
		attempt := run.GetAttempts()[i]
		attempt.Status, attempt.Reason, attempt.Message = status, reason, run.GetMessage()
		if attempt.EndedAt <= 0 {
			attempt.EndedAt = run.GetEndedAt()
		}
	}
	return decision{change: changeEnd, run: run, node: node, after: after}
}

func cancelAbsent(_ actors.Instant, _ snapshot, r request) decision {
	return decision{after: []follow{answerFollow(r.(cancel), actorv1.Canceled_OUTCOME_NOT_FOUND)}}
}

func cancelTerminal(_ actors.Instant, s snapshot, r request) decision {
	outcome := actorv1.Canceled_OUTCOME_TERMINAL
	if s.run.GetStatus() == recordv1.Status_STATUS_CANCELED {
		outcome = actorv1.Canceled_OUTCOME_RECORDED
	}
	return decision{after: []follow{answerFollow(r.(cancel), outcome)}}
}

func cancelWaiting(now actors.Instant, s snapshot, r request) decision {
	m := r.(cancel)
	run := proto.CloneOf(s.run)
	run.Wish = wishOf(now, m)
	return endByWish(now, snapshot{run: run}, answerFollow(m, actorv1.Canceled_OUTCOME_RECORDED))
}

// cancelPlaced records the wish; the end is for the node to tell. A later cancel
// changes the wish only to force.
func cancelPlaced(now actors.Instant, s snapshot, r request) decision {
	m := r.(cancel)
	answer := answerFollow(m, actorv1.Canceled_OUTCOME_RECORDED)
	wanted := wishOf(now, m)
	run := proto.CloneOf(s.run)
	if have := s.run.GetWish(); have.GetReason() == recordv1.Reason_REASON_CANCELED {
		if have.GetForce() || !wanted.GetForce() {
			return decision{after: []follow{answer}}
		}
		remember(run, stopEvent(run, wanted))
		wanted.By, wanted.At = have.GetBy(), have.GetAt()
	} else if have != nil {
		rememberWish(run)
	}
	s.run = run
	return wish(now, s, wanted, answer)
}

func wishOf(now actors.Instant, m cancel) *recordv1.Wish {
	return &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: bounded(m.GetBy()), At: now.Milli(), Force: m.GetForce()}
}

// wish records that a placed run shall end, in its record and in its assignment,
// and tells the node.
func wish(now actors.Instant, s snapshot, wanted *recordv1.Wish, after ...follow) decision {
	if !s.assignmentKnown {
		return decision{change: changeAssignment}
	}
	run := proto.CloneOf(s.run)
	run.Wish = wanted
	d := decision{
		change: changeWish, run: run, node: run.GetPlacement().GetNode(), nextWake: nextWake(now, run),
		after: append([]follow{stopFollow(run)}, after...),
	}
	if s.assignment == nil {
		// Putting it again would make another fencing token. Its node sees that it is
		// gone and stops.
		d.change = changeUpdate
		return d
	}
	d.assignment = proto.CloneOf(s.assignment)
	d.assignment.Desired, d.assignment.StopReason, d.assignment.StopForce = desiredOf(wanted), wanted.GetReason(), wanted.GetForce()
	return d
}

func desiredOf(w *recordv1.Wish) recordv1.Desired {
	if w.GetReason() == recordv1.Reason_REASON_START_DEADLINE {
		return recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED
	}
	return recordv1.Desired_DESIRED_STOP
}

// endByWish ends a run that provably does not run. Its snapshot's run is the
// caller's to change when it comes from a move that has cloned it.
func endByWish(now actors.Instant, s snapshot, after follow) decision {
	run := proto.CloneOf(s.run)
	var follows []follow
	if after != nil {
		follows = []follow{after}
	}
	node := run.GetPlacement().GetNode()
	switch run.GetWish().GetReason() {
	case recordv1.Reason_REASON_START_DEADLINE:
		status, reason, message := startDeadlineOutcome(run)
		run.Message = message
		return finish(now, run, status, reason, node, follows...)
	case recordv1.Reason_REASON_TIMEOUT:
		run.Message = timeoutText(run)
		return finish(now, run, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, node, follows...)
	default:
		run.Message = canceledText(run.GetWish()) + beforeStart(run)
		return finish(now, run, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, node, follows...)
	}
}

func endByStartDeadline(now actors.Instant, s snapshot) decision {
	run := proto.CloneOf(s.run)
	status, reason, message := startDeadlineOutcome(run)
	run.Message = message
	return finish(now, run, status, reason, "")
}

// attemptIndex finds the record of the current attempt, -1 if it was not placed.
func attemptIndex(run *recordv1.Run) int {
	return slices.IndexFunc(run.GetAttempts(), func(a *recordv1.Attempt) bool { return a.GetNumber() == run.GetAttempt() })
}

// attemptOf returns the record of the current attempt, made if there is none.
func attemptOf(run *recordv1.Run) *recordv1.Attempt {
	if i := attemptIndex(run); i >= 0 {
		return run.GetAttempts()[i]
	}
	attempt := &recordv1.Attempt{Number: run.GetAttempt()}
	run.Attempts = append(run.Attempts, attempt)
	return attempt
}

// withoutCurrent drops the record of an attempt that has not begun after all.
func withoutCurrent(run *recordv1.Run) []*recordv1.Attempt {
	return slices.DeleteFunc(run.GetAttempts(), func(a *recordv1.Attempt) bool { return a.GetNumber() == run.GetAttempt() })
}

// exitKnown tells whether an exit is one that the record holds already: it ended
// its attempt, or came late before. An attempt that was given up with its node was
// ended by nothing that the node has told.
func exitKnown(run *recordv1.Run, m *actorv1.Exited) bool {
	exit := m.GetExit()
	ended := slices.ContainsFunc(run.GetAttempts(), func(a *recordv1.Attempt) bool {
		sameEnd := a.GetEndedAt() > 0 && (exit.GetAt() <= 0 || a.GetEndedAt() == exitEnd(a, exit))
		told := a.GetReason() != recordv1.Reason_REASON_NODE_LOST && sameEnd
		return a.GetNumber() == m.GetAttempt() && a.GetPlacement() == m.GetPlacement() && told
	})
	late := slices.ContainsFunc(run.GetLateExits(), func(l *recordv1.LateExit) bool {
		return l.GetAttempt() == m.GetAttempt() && l.GetPlacement() == m.GetPlacement()
	})
	return ended || late
}

// storable returns an exit whose words a record can hold.
func storable(exit *recordv1.Exit) *recordv1.Exit {
	if exit == nil {
		return nil
	}
	exit = proto.CloneOf(exit)
	exit.Message, exit.Source = bounded(exit.GetMessage()), bounded(exit.GetSource())
	exit.Signals = records.BoundSignals(exit.GetSignals())
	return exit
}

func tellNode(node string, message proto.Message) actors.Effect {
	return actors.Tell{Kind: actors.KindNode, Identity: node, Message: message}
}

// startFollow tells a node of an assignment that was put at a revision, 0 for that
// of the decision itself.
func startFollow(node string, assignment *recordv1.Assignment, committed int64) follow {
	return func(revision int64) actors.Effect {
		if committed != 0 {
			revision = committed
		}
		return tellNode(node, &actorv1.Start{Assignment: assignment, Commit: revision})
	}
}

func stopFollow(run *recordv1.Run) follow {
	stop := &actorv1.Stop{
		Run: run.GetId(), Attempt: run.GetAttempt(), Placement: run.GetPlacement().GetNumber(),
		Desired: desiredOf(run.GetWish()), Reason: run.GetWish().GetReason(), Force: run.GetWish().GetForce(),
	}
	node := run.GetPlacement().GetNode()
	return func(int64) actors.Effect { return tellNode(node, stop) }
}

// ackOf acknowledges a voided or exited to its node.
func ackOf(r request, unknown bool) follow {
	ack := &actorv1.Ack{Unknown: unknown}
	var node string
	switch m := r.(type) {
	case voided:
		node, ack.Run, ack.Attempt, ack.Placement = m.GetNode(), m.GetRun(), m.GetAttempt(), m.GetPlacement()
	case exited:
		node, ack.Run, ack.Attempt, ack.Placement = m.GetNode(), m.GetRun(), m.GetAttempt(), m.GetPlacement()
	}
	return func(revision int64) actors.Effect {
		if !unknown {
			ack.Commit = revision
		}
		return tellNode(node, ack)
	}
}

func answerFollow(m cancel, outcome actorv1.Canceled_Outcome) follow {
	return func(revision int64) actors.Effect {
		answer := &actorv1.Canceled{Outcome: outcome}
		if outcome != actorv1.Canceled_OUTCOME_NOT_FOUND {
			answer.Revision = revision
		}
		return actors.Answer{To: m.from, Message: answer}
	}
}
