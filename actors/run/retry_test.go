package run

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// failed returns the record of an attempt that is over.
func failed(number int32, reason recordv1.Reason) *recordv1.Attempt {
	return &recordv1.Attempt{Number: number, Node: "n1", Placement: 1, Status: recordv1.Status_STATUS_FAILED, Reason: reason, EndedAt: 1}
}

func TestAttemptIsFollowedByAnother(t *testing.T) {
	codes := func(first, last int32) *recordv1.Failures {
		return &recordv1.Failures{Codes: []*recordv1.CodeRange{{First: first, Last: last}}}
	}
	killed := exitOf(137)
	killed.Signal = 9
	oom := proto.CloneOf(killed)
	oom.OomKilled = true
	late := exitOf(143)
	late.StopDelivered, late.StopCause = true, recordv1.StopCause_STOP_CAUSE_TIMEOUT
	drained := exitOf(143)
	drained.StopDelivered, drained.StopCause = true, recordv1.StopCause_STOP_CAUSE_DRAIN
	lost := &recordv1.Exit{Reason: recordv1.Reason_REASON_SANDBOX_LOST, At: 1}
	for _, test := range []struct {
		name   string
		retry  *recordv1.Retry
		before []recordv1.Reason
		exit   *recordv1.Exit
		wish   recordv1.Reason
		again  bool
	}{
		{name: "no word of retries", exit: exitOf(1)},
		{name: "none", retry: &recordv1.Retry{}, exit: exitOf(1)},
		{name: "one, and none used", retry: &recordv1.Retry{Retries: 1}, exit: exitOf(1), again: true},
		{name: "one, and used", retry: &recordv1.Retry{Retries: 1}, before: []recordv1.Reason{recordv1.Reason_REASON_EXIT_CODE}, exit: exitOf(1)},
		{name: "one, and another was lost", retry: &recordv1.Retry{Retries: 1}, before: []recordv1.Reason{recordv1.Reason_REASON_NODE_LOST}, exit: exitOf(1), again: true},
		{name: "success", retry: &recordv1.Retry{Retries: 3}, exit: exitOf(0)},
		{name: "not this code", retry: &recordv1.Retry{Retries: 3, Never: codes(42, 42)}, exit: exitOf(42)},
		{name: "another code than that", retry: &recordv1.Retry{Retries: 3, Never: codes(42, 42)}, exit: exitOf(43), again: true},
		{name: "only these codes", retry: &recordv1.Retry{Retries: 3, Only: codes(1, 5)}, exit: exitOf(5), again: true},
		{name: "beyond these codes", retry: &recordv1.Retry{Retries: 3, Only: codes(1, 5)}, exit: exitOf(6)},
		{name: "these, but never one of them", retry: &recordv1.Retry{Retries: 3, Only: codes(1, 5), Never: codes(3, 3)}, exit: exitOf(3)},
		{name: "a signal", retry: &recordv1.Retry{Retries: 3}, exit: killed, again: true},
		{name: "only codes, and a signal", retry: &recordv1.Retry{Retries: 3, Only: codes(1, 5)}, exit: killed},
		{name: "only signals", retry: &recordv1.Retry{Retries: 3, Only: &recordv1.Failures{Signal: true}}, exit: killed, again: true},
		{name: "a signal by the code that shells give it", retry: &recordv1.Retry{Retries: 3, Only: codes(137, 137)}, exit: killed, again: true},
		{name: "out of memory, never", retry: &recordv1.Retry{Retries: 3, Never: &recordv1.Failures{OomKilled: true}}, exit: oom},
		{name: "out of memory is no signal that was asked for", retry: &recordv1.Retry{Retries: 3, Only: &recordv1.Failures{Signal: true}}, exit: oom},
		{name: "the timeout", retry: &recordv1.Retry{Retries: 3}, exit: late, again: true},
		{name: "the timeout, never", retry: &recordv1.Retry{Retries: 3, Never: &recordv1.Failures{Timeout: true}}, exit: late},
		{name: "canceled too late for this attempt", retry: &recordv1.Retry{Retries: 3}, exit: exitOf(1), wish: recordv1.Reason_REASON_CANCELED},
		{name: "the command is not there", retry: &recordv1.Retry{Retries: 3}, exit: &recordv1.Exit{Reason: recordv1.Reason_REASON_NOT_FOUND}},
		{name: "lost, without a word of that", retry: &recordv1.Retry{Retries: 3}, exit: lost},
		{name: "lost, to be tried again", retry: &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY}, exit: lost, again: true},
		{name: "lost, to fail", retry: &recordv1.Retry{Retries: 3, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL}, exit: lost},
		{name: "drained", retry: &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY}, exit: drained, again: true},
		{
			name: "lost too often", retry: &recordv1.Retry{Retries: 3, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY}, exit: lost,
			before: slices.Repeat([]recordv1.Reason{recordv1.Reason_REASON_NODE_LOST}, 5),
		},
		{
			name: "lost for the fifth time", retry: &recordv1.Retry{Retries: 3, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY}, exit: lost, again: true,
			before: slices.Repeat([]recordv1.Reason{recordv1.Reason_REASON_NODE_LOST}, 4),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := inPhase(running)
			run := s.run
			run.Spec.Retry = test.retry
			run.Attempt = int32(len(test.before) + 1)
			run.Attempts[0].Number = run.Attempt
			for i, reason := range test.before {
				run.Attempts = slices.Insert(run.Attempts, i, failed(int32(i+1), reason))
			}
			if test.wish != 0 {
				run.Wish = &recordv1.Wish{Reason: test.wish}
			}
			d := decide(at(time.Minute), s, exited{&actorv1.Exited{Run: testID, Attempt: run.Attempt, Placement: 2, Node: "n1", Exit: test.exit}})
			if again := d.run.GetStatus() == recordv1.Status_STATUS_PENDING; again != test.again {
				t.Fatalf("another attempt: %t: %v", again, d.run)
			}
			if !test.again {
				if d.change != changeEnd || d.run.GetAttempt() != run.GetAttempt() {
					t.Errorf("change %d, %v", d.change, d.run)
				}
				return
			}
			ended, next := d.run.GetAttempts()[len(test.before)], d.run
			if d.change != changeUnplace || d.node != "n1" || len(d.after) != 1 {
				t.Errorf("change %d on %q, %d effects", d.change, d.node, len(d.after))
			}
			if ended.GetReason() == 0 || ended.GetMessage() == "" || ended.GetEndedAt() == 0 || !proto.Equal(&recordv1.Attempt{ExitCode: ended.ExitCode}, &recordv1.Attempt{ExitCode: test.exit.Code}) {
				t.Errorf("the attempt that is over says %v", ended)
			}
			if next.GetAttempt() != run.GetAttempt()+1 || next.GetPlacement() != nil || next.GetPlacements() != 0 || next.GetReason() != 0 ||
				next.ExitCode != nil || next.GetStartedAt() != run.GetStartedAt() || next.GetWish() != nil {
				t.Errorf("the run says %v", next)
			}
		})
	}
}

// TestWaitsBetweenAttemptsNeverGetShorter also holds for what a clock that was ahead
// has written: nothing waits longer than it would.
func TestWaitsBetweenAttemptsNeverGetShorter(t *testing.T) {
	for _, test := range []struct {
		name  string
		retry *recordv1.Retry
		want  []time.Duration
	}{
		{"constant", &recordv1.Retry{BackoffMs: 1000, BackoffMaxMs: 1000}, []time.Duration{time.Second, time.Second, time.Second}},
		{"doubling", &recordv1.Retry{BackoffMs: 1000, BackoffMaxMs: 5000}, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}},
		{"none", &recordv1.Retry{}, []time.Duration{0, 0}},
		{"a bound below the first", &recordv1.Retry{BackoffMs: 3000, BackoffMaxMs: 1000}, []time.Duration{3 * time.Second, 3 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i, want := range test.want {
				run := newRun()
				run.Spec.Retry, run.Attempt = test.retry, int32(i+2)
				if got := retryWait(run); got != want {
					t.Errorf("before attempt %d: %s, want %s", i+2, got, want)
				}
				run.Spec.Retry.JitterPercent = 50
				longer := retryWait(run)
				if longer < want || longer > want*3/2 {
					t.Errorf("before attempt %d with jitter: %s", i+2, longer)
				}
				run.NotBefore = at(24 * time.Hour).Milli()
				if got := untilNotBefore(at(0), run); got != 0 {
					t.Errorf("a time a day ahead is believed: %s", got)
				}
				run.NotBefore = milliAfter(at(0), longer)
				if got := untilNotBefore(at(0), run); got < longer || got > longer+time.Millisecond {
					t.Errorf("waits %s of %s", got, longer)
				}
				run.Spec.Retry.JitterPercent = 0
			}
		})
	}
	waits := map[time.Duration]bool{}
	for i := range 20 {
		run := newRun()
		run.Id, run.Attempt, run.Spec.Retry = fmt.Sprintf("r.default.%d", i), 2, &recordv1.Retry{BackoffMs: 10_000, JitterPercent: 100}
		waits[retryWait(run)] = true
	}
	if len(waits) < 15 {
		t.Errorf("20 runs wait %d different times", len(waits))
	}
}

func TestStartDeadlineOfAnotherAttemptIsItsOwn(t *testing.T) {
	s := inPhase(running)
	s.run.Spec.Retry = &recordv1.Retry{Retries: 1, BackoffMs: 60_000}
	end := 10 * time.Minute // long after the first deadline
	d := decide(at(end), s, exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: exitOf(1)}})
	next := snapshot{run: d.run, mod: 11}
	if d = decide(at(end+59*time.Second), next, wake{}); d.change != changeNothing || d.seek || d.lookAgain <= 0 {
		t.Errorf("in the backoff: %+v", d)
	}
	if d = decide(at(end+61*time.Second), next, wake{}); !d.seek {
		t.Errorf("after the backoff: %+v", d)
	}
	d = decide(at(end+61*time.Second+5*time.Minute), next, wake{})
	if d.run.GetStatus() != recordv1.Status_STATUS_TIMED_OUT || d.run.GetMessage() != "attempt 2 was not started within 5m" {
		t.Errorf("after its deadline: %v", d.run)
	}
}

func TestNodesThatFailARunAreAskedLast(t *testing.T) {
	s := inPhase(placed)
	d := decide(at(time.Second), s, requestOf(onVoided))
	if !slices.Equal(d.run.GetAvoided(), []string{"n1"}) {
		t.Fatalf("avoids %v after a failed start on n1", d.run.GetAvoided())
	}
	nodes := func(candidates []actors.Candidate) (names []string) {
		for _, c := range candidates {
			names = append(names, c.Node)
		}
		return names
	}
	got := nodes(askedLast([]actors.Candidate{{Node: "n3"}, {Node: "n1"}, {Node: "n2"}, {Node: "n4"}}, []string{"n2", "n3"}))
	if !slices.Equal(got, []string{"n1", "n4", "n2", "n3"}) {
		t.Errorf("asks %v", got)
	}
	run := newRun()
	for i := range 2 * avoidedMax {
		avoid(run, fmt.Sprint("n", i))
	}
	avoid(run, "n20")
	if a := run.GetAvoided(); len(a) != avoidedMax || a[avoidedMax-1] != "n20" || slices.Index(a, "n20") != avoidedMax-1 {
		t.Errorf("avoids %v", a)
	}
}

// TestExitOfALostAttemptIsKeptAsLate: what a node tells of an attempt that was given up
// with it decides nothing, is kept once, and is acknowledged each time.
func TestExitOfALostAttemptIsKeptAsLate(t *testing.T) {
	for _, p := range []phase{running, terminal} {
		s := inPhase(p)
		s.run.Attempt = 2
		s.run.Attempts[0].Number = 2
		s.run.Attempts = slices.Insert(s.run.Attempts, 0, failed(1, recordv1.Reason_REASON_NODE_LOST))
		late := exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Fenced: true, Reason: recordv1.Reason_REASON_NODE_FENCED}}}
		d := decide(at(time.Minute), s, late)
		if len(d.run.GetLateExits()) != 1 || len(d.after) != 1 || d.run.GetStatus() != s.run.GetStatus() {
			t.Fatalf("%s: %v", p, d.run)
		}
		s.run = d.run
		if d = decide(at(time.Minute), s, late); d.change != changeNothing || len(d.after) != 1 {
			t.Errorf("%s, told again: %v", p, d.run)
		}
	}
}
