package run

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestSandboxInQuarantineIsInTheHistoryOnce(t *testing.T) {
	for p := waiting; p <= terminal; p++ {
		t.Run(p.String(), func(t *testing.T) {
			s := inPhase(p)
			before := proto.CloneOf(s.run)
			s.run = decide(at(time.Second), s, requestOf(onQuarantined)).run
			events, leftOut := History(s.run)
			i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == eventQuarantined })
			if i < 0 || leftOut != 0 || events[i].Node != "n2" || events[i].Attempt != 1 || events[i].At != epoch.UnixMilli()+20 || !strings.HasSuffix(events[i].Text, "in quarantine: nobody knows it") {
				t.Fatalf("history %+v", events)
			}
			if again := decide(at(2*time.Second), s, requestOf(onQuarantined)); again.change != changeNothing {
				t.Errorf("noted again: %v", again.run)
			}
			later := requestOf(onQuarantined).(quarantined)
			later.Since++
			if another := decide(at(2*time.Second), s, later); another.change == changeNothing {
				t.Error("another one is not noted")
			}
			s.run.Events = nil
			if !proto.Equal(before, s.run) {
				t.Errorf("more than the history has changed\nfrom %v\nto   %v", before, s.run)
			}
		})
	}
}

// TestSafePointIsTheEarliestMomentThatIsSure: of each way to lose an attempt.
func TestSafePointIsTheEarliestMomentThatIsSure(t *testing.T) {
	lost := func(change func(*recordv1.Exit)) request {
		exit := &recordv1.Exit{StartedAt: ms(10 * time.Millisecond), At: ms(time.Second), EmptiedAt: ms(2 * time.Second), Reason: recordv1.Reason_REASON_SANDBOX_LOST}
		change(exit)
		return exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: exit}}
	}
	for _, c := range []struct {
		name     string
		snapshot snapshot
		request  request
		reason   recordv1.Reason
		at       int64
		by       recordv1.SafeBy
	}{
		{"its sandbox is gone: when its node found nothing left", inPhase(running), lost(func(*recordv1.Exit) {}), recordv1.Reason_REASON_SANDBOX_LOST, ms(2 * time.Second), recordv1.SafeBy_SAFE_BY_EMPTY},
		{"fenced: when its node found nothing left", inPhase(running), lost(func(e *recordv1.Exit) { e.Fenced = true }), recordv1.Reason_REASON_NODE_FENCED, ms(2 * time.Second), recordv1.SafeBy_SAFE_BY_EMPTY},
		{"perhaps started: when its node found nothing left", inPhase(placed), lost(func(e *recordv1.Exit) { e.Reason, e.StartedAt = recordv1.Reason_REASON_START_UNKNOWN, 0 }), recordv1.Reason_REASON_START_UNKNOWN, ms(2 * time.Second), recordv1.SafeBy_SAFE_BY_EMPTY},
		{"told by an earlier version: when it was told", inPhase(running), lost(func(e *recordv1.Exit) { e.EmptiedAt = 0 }), recordv1.Reason_REASON_SANDBOX_LOST, ms(9 * time.Second), recordv1.SafeBy_SAFE_BY_EMPTY},
		{"by a clock that went back: not before the start", inPhase(running), lost(func(e *recordv1.Exit) { e.EmptiedAt = ms(-time.Hour) }), recordv1.Reason_REASON_SANDBOX_LOST, ms(0), recordv1.SafeBy_SAFE_BY_EMPTY},
		{"said to run and then never to have: when that was said", inPhase(running), requestOf(onVoided), recordv1.Reason_REASON_START_UNKNOWN, ms(9 * time.Second), recordv1.SafeBy_SAFE_BY_VOID},
		{"its node is lost: when the fence must be through, not when that was looked at", lostSnapshot(running), wake{}, recordv1.Reason_REASON_NODE_LOST, ms(5*time.Second) + 1, recordv1.SafeBy_SAFE_BY_FENCE},
		{"its node is lost before the start", lostSnapshot(placed), wake{}, recordv1.Reason_REASON_NODE_LOST, ms(5*time.Second) + 1, recordv1.SafeBy_SAFE_BY_FENCE},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := decide(at(9*time.Second), c.snapshot, c.request).run
			attempt := run.GetAttempts()[0]
			if run.GetReason() != c.reason || attempt.GetSafeAt() != c.at || attempt.GetSafeBy() != c.by || run.ExitCode != nil {
				t.Fatalf("%s, safe at %d by %s; want %s, %d by %s", run.GetReason(), attempt.GetSafeAt(), attempt.GetSafeBy(), c.reason, c.at, c.by)
			}
			causes := Why(epoch.Add(10*time.Second), run, Unrecorded{})
			if i := slices.IndexFunc(causes, func(c Cause) bool { return c.Code == CauseSafe }); i < 0 || causes[i].At != c.at {
				t.Errorf("why: %+v", causes)
			}
			events, _ := History(run)
			if i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == recordv1.RunEventKind_RUN_EVENT_KIND_SAFE }); i < 0 || events[i].At != c.at {
				t.Errorf("history: %+v", events)
			}
		})
	}
}

// lostSnapshot is a run whose node's fence was through four seconds before. What follows
// from it is rounded up to a millisecond.
func lostSnapshot(p phase) snapshot {
	s := inPhase(p)
	s.leased, s.presence = true, &presence{gone: true, over: 4 * time.Second}
	return s
}

// What ended by itself has a code and needs no safe point.
func TestAttemptWhoseEndWasSeenHasNoSafePoint(t *testing.T) {
	run := decide(at(time.Second), inPhase(running), requestOf(onExited)).run
	if a := run.GetAttempts()[0]; a.GetSafeAt() != 0 || a.GetSafeBy() != recordv1.SafeBy_SAFE_BY_UNSPECIFIED {
		t.Errorf("safe at %d by %s", a.GetSafeAt(), a.GetSafeBy())
	}
}

func TestOverdueIsToldAfterItsAttemptIsOver(t *testing.T) {
	s := inPhase(running)
	s.run.OverdueAt = ms(time.Second)
	s.run.Spec.Retry = &recordv1.Retry{Retries: 1}
	before, _ := History(s.run)
	run := decide(at(2*time.Second), s, requestOf(onExited)).run
	after, _ := History(run)
	for _, events := range [][]Event{before, after} {
		if !slices.ContainsFunc(events, func(e Event) bool { return e.Kind == eventOverdue && e.At == ms(time.Second) }) {
			t.Errorf("attempt %d: %+v", run.GetAttempt(), events)
		}
	}
}
