package run

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// checkTold compares what was told of a run before a change with what is told after it:
// nothing is told differently, and nothing is taken back that was not left out.
func (w *world) checkTold(old, run *recordv1.Run) {
	before, _ := History(old)
	after, leftOut := History(run)
	if leftOut > int(old.GetEventsLeftOut()) {
		return
	}
	for _, e := range before {
		if !slices.Contains(after, e) {
			w.t.Fatalf("no longer told: %+v\nbefore %+v\nafter  %+v", e, before, after)
		}
	}
	finished := slices.IndexFunc(after, func(e Event) bool { return e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_FINISHED }) >= 0
	if finished != records.Terminal(run.GetStatus()) {
		w.t.Fatalf("told as finished %t: %v", finished, run)
	}
	for _, e := range after {
		w.checkText(e.Text)
		if e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_UNSPECIFIED || e.At <= 0 {
			w.t.Fatalf("event %+v", e)
		}
	}
	w.checkSafe(run)
}

// checkSafe judges the safe points by what the nodes have really run.
func (w *world) checkSafe(run *recordv1.Run) {
	for _, a := range run.GetAttempts() {
		if isLoss(a.GetReason()) && a.ExitCode == nil && a.GetSafeAt() == 0 {
			w.t.Fatalf("attempt %d was lost and has no safe point: %v", a.GetNumber(), a)
		}
		if a.GetSafeAt() == 0 {
			continue
		}
		for _, n := range w.nodes {
			for p, e := range n.journal {
				if p.attempt == a.GetNumber() && e.started && (e.exit == nil || e.exit.GetAt() > a.GetSafeAt()) {
					w.t.Fatalf("attempt %d is safe from %d on and ran on %s until %v", p.attempt, a.GetSafeAt(), n.name, e.exit)
				}
			}
		}
	}
}

func (w *world) checkText(text string) {
	if text == "" || strings.HasSuffix(text, ".") || strings.Contains(text, "%!") || strings.Contains(text, "UNSPECIFIED") || len(text) > 2*messageBytesMax {
		w.t.Fatalf("told as %q", text)
	}
}

// checkWhy asks why the run is where it is: of the record alone, and with what its owner
// and its node say.
func (w *world) checkWhy() {
	run := w.run()
	w.judge(run, Unrecorded{})
	w.owner = nil
	w.step(int(w.seed%2), actors.Received{Message: &actorv1.Explain{Run: testID}, From: "asker"})
	if w.owner == nil {
		w.t.Fatal("the owner does not answer")
	}
	seen := Unrecorded{Owner: w.owner}
	if held := run.GetPlacement(); held != nil {
		seen.Node = w.node(held.GetNode()).describe(slot{run.GetAttempt(), held.GetNumber()})
	}
	w.judge(run, seen)
}

// describe is what a node says that it does for a placement.
func (n *node) describe(p slot) *actorv1.Described {
	answer := &actorv1.Described{Node: n.name}
	e := n.journal[p]
	if e == nil {
		return answer
	}
	answer.Placement = &actorv1.PlacementStep{Attempt: p.attempt, Placement: p.placement, Step: actorv1.Step_STEP_CREATING}
	switch {
	case e.void != nil || e.exit != nil:
		answer.Placement.Step = actorv1.Step_STEP_REPORTING
	case e.started && e.stop != 0:
		answer.Placement.Step = actorv1.Step_STEP_STOPPING
	case e.started:
		answer.Placement.Step = actorv1.Step_STEP_RUNNING
	}
	return answer
}

var firstCauses = [phases]CauseCode{waiting: CauseWaiting, placed: CausePlaced, running: CauseRunning, terminal: CauseFinished}

func (w *world) judge(run *recordv1.Run, seen Unrecorded) {
	causes := Why(w.now.Wall, run, seen)
	if len(causes) == 0 || len(causes) > causesMax || causes[0].Code != firstCauses[phaseOf(run)] {
		w.t.Fatalf("%v is explained by %+v", run, causes)
	}
	history, _ := History(run)
	for _, c := range causes {
		w.checkText(c.Text)
		if !w.holds(run, seen, history, c) {
			w.t.Fatalf("%v is explained by what is not so: %+v\nowner %v\nhistory %+v", run, c, seen.Owner, history)
		}
	}
	// Who waits says for what, be it that nobody knows.
	if p := phaseOf(run); p == waiting && len(causes) < 2 && run.GetSpec().GetStartDeadlineMs() > 0 {
		w.t.Fatalf("%v waits and nothing says for what: %+v", run, causes)
	}
}

// holds tells whether one cause is true by what has happened.
func (w *world) holds(run *recordv1.Run, seen Unrecorded, history []Event, c Cause) bool {
	happened := func(such func(Event) bool) bool { return slices.ContainsFunc(history, such) }
	now := w.now.Milli()
	switch c.Code {
	case CauseBackoff:
		return c.At == run.GetNotBefore() && c.At > now && (run.GetHoldMessage() == "" || w.wasHeld(run, history) && strings.Contains(c.Text, run.GetHoldMessage()))
	case CauseHeldUp:
		return w.wasHeld(run, history) && strings.Contains(c.Text, run.GetHoldMessage())
	case CauseRefused:
		return slices.ContainsFunc(seen.Owner.GetRefusals(), func(r *actorv1.Refusal) bool {
			return r.GetNode() == c.Node && strings.HasSuffix(c.Text, r.GetMessage()) && (!strings.HasPrefix(r.GetMessage(), "no room") || w.said[r.GetNode()+r.GetMessage()])
		})
	case CauseAsking:
		return c.Node == "n1" || c.Node == "n2"
	case CauseStoreFailing:
		return w.failed
	case CauseStartDeadline:
		return c.At == startDeadline(run)
	case CauseAsked:
		return run.GetWish() != nil && (run.GetWish().GetReason() != recordv1.Reason_REASON_CANCELED || w.canceled || w.console && run.GetWish().GetBy() == byAttendance) &&
			happened(func(e Event) bool { return e.Kind == eventStop && e.At == c.At })
	case CausePlaced, CauseRunning:
		return c.Node == run.GetPlacement().GetNode() && happened(func(e Event) bool {
			return e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_PLACED && e.Node == c.Node && e.Attempt == c.Attempt
		})
	case CauseNodeGone:
		_, gone := w.node(c.Node).goneAt[run.GetPlacement().GetSession()]
		return gone
	case CauseNodeUnaware:
		return seen.Node.GetPlacement() == nil
	case CauseAttemptEnded:
		return c.Attempt == 0 || happened(func(e Event) bool { return e.Attempt == c.Attempt && e.At == c.At && strings.HasSuffix(c.Text, e.Text) })
	case CauseFinished:
		return c.At == run.GetEndedAt()
	case CauseSafe:
		return happened(func(e Event) bool { return e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_SAFE && e.At == c.At })
	case CauseSafeUnknown:
		return false
	default:
		return true
	}
}

// wasHeld tells whether what the record says holds the run up is in its history.
func (w *world) wasHeld(run *recordv1.Run, history []Event) bool {
	return slices.ContainsFunc(history, func(e Event) bool {
		words := strings.TrimPrefix(run.GetHoldMessage(), "node "+e.Node+": ")
		return e.Attempt == run.GetAttempt() && (e.Kind == eventRefused || e.Kind == eventLeft) && strings.Contains(e.Text, words)
	})
}
