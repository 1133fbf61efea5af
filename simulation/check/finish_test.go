package check_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

func ready(node string) check.Machine { return check.Machine{Node: node, Ready: true} }

// What is judged at the end: what was left, lost, or waits without a word.
func TestTheEndIsJudged(t *testing.T) {
	lostAndBack := func(s *script) {
		s.create(one)
		s.place(one, "n1")
		s.start(one, "n1", 1, 1)
		s.running(one)
		s.fault("n1", "cut", true, false)
		s.exit(one, "n1", 1, 1, 0, "itself")
		s.finish(one, failed, nodeLost, nil)
		s.fault("n1", "cut", false, false)
	}
	for _, c := range []struct {
		name      string
		guarantee check.Guarantee
		want      string
		play      func(s *script)
		machine   check.Machine
	}{
		{"all is done", "", "", func(s *script) { s.whole(one, "n1") }, ready("n1")},
		{
			"a sandbox is left", check.G10, "a sandbox that runs is left", func(s *script) { s.whole(one, "n1") },
			check.Machine{Node: "n1", Ready: true, Left: []check.Leftover{{What: "sandbox", Run: one, Running: true}}},
		},
		{
			"a sandbox is left on a broken machine", "", "", func(s *script) { s.whole(one, "n1") },
			check.Machine{Node: "n1", Broken: true, Left: []check.Leftover{{What: "sandbox", Run: one}}},
		},
		{"an exit that came late was lost", check.G8, "the record does not say so", lostAndBack, ready("n1")},
		{"an exit that came late was lost with its journal", "", "", lostAndBack, check.Machine{Node: "n1", Ready: true, JournalLost: true}},
		{"an exit that came late is in the record", "", "", func(s *script) {
			lostAndBack(s)
			run := s.record(one)
			run.LateExits = append(run.LateExits, &recordv1.LateExit{Attempt: 1, Placement: 1, Exit: &recordv1.Exit{Code: proto.Int32(0)}})
			s.commit(keys.Note(run, 1).Then...)
		}, ready("n1")},
		{"a run hangs with a word", check.Liveness, "PENDING since 1ms: no node has room", func(s *script) {
			s.create(one)
			s.update(one, func(run *recordv1.Run) { run.HoldMessage = "no node has room" })
		}, ready("n1")},
		{
			"a node does not come up", check.Liveness, "not ready since 0s: the store is away", func(*script) {},
			check.Machine{Node: "n1", Trouble: "the store is away"},
		},
		{
			"a journal entry stays", check.Liveness, "EXITED", func(s *script) { s.whole(one, "n1") },
			check.Machine{Node: "n1", Ready: true, Journal: []*recordv1.JournalEntry{{Run: one, State: recordv1.JournalState_JOURNAL_STATE_EXITED}}},
		},
		{
			"a journal entry of a deleted run is in quarantine", "", "", func(s *script) { s.whole(one, "n1"); s.remove(one) },
			check.Machine{Node: "n1", Ready: true, Journal: []*recordv1.JournalEntry{{Run: one}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			c.play(s)
			facts := s.settled(c.machine)
			expect(t, s.set.Finish(facts), c.guarantee, c.want)
			if pending := len(s.set.Pending(facts)) > 0; pending == s.set.Settled(facts) || pending != (c.guarantee == check.Liveness) {
				t.Errorf("pending: %v", s.set.Pending(facts))
			}
		})
	}
}

// A run that nobody serves breaks its start deadline, can not say why, and is shown
// with where and since when.
func TestAForgottenRunIsFound(t *testing.T) {
	s := newScript()
	s.create(one)
	s.wait(time.Hour)
	found := map[check.Guarantee]bool{}
	for _, v := range s.set.Finish(s.settled()) {
		found[v.Guarantee] = true
	}
	if len(found) != 3 || !found[check.G9] || !found[check.G11] || !found[check.Liveness] || s.set.LiveRuns(func(string) bool { return false }) != 1 {
		t.Errorf("%v", found)
	}
	if text := s.set.Pending(s.settled())[0].String(); !strings.Contains(text, one) || !strings.Contains(text, "nothing says why") {
		t.Error(text)
	}
}

// While a fault lasts a run may wait: nothing is promised then.
func TestAWaitUnderAFaultIsNoViolation(t *testing.T) {
	s := newScript()
	s.create(one)
	s.fault("", "outage", true, false)
	s.wait(time.Hour)
	s.set.Step(9, s.now)
	s.set.Expensive()
	expect(t, s.set.Violations(), "", "")
	s.fault("", "outage", false, false)
	s.wait(time.Hour)
	s.set.Step(10, s.now)
	s.set.Expensive()
	expect(t, s.set.Violations(), check.G9, "waited 1h")
}

func TestAWishThatIsNotHeardIsFound(t *testing.T) {
	s := newScript()
	s.create(one)
	s.place(one, "n1")
	s.start(one, "n1", 1, 1)
	s.running(one)
	s.update(one, func(run *recordv1.Run) { run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED} })
	s.wait(100 * time.Second) // above the grace, not yet above the timeout
	s.set.Step(9, s.now)
	s.set.Expensive()
	expect(t, s.set.Violations(), check.G9, "was to end (CANCELED)")
}

// The order of a client's calls about one run must agree with what it was told; a
// call without an answer may have been done, or not.
func TestClientsAreToldWhatHappened(t *testing.T) {
	seen := func(status recordv1.Status) *recordv1.Run { return &recordv1.Run{Status: status} }
	submitted := func(s *script) {
		answer := s.calls(check.VerbSubmit, one)
		s.create(one)
		answer("ok", nil)
	}
	for _, c := range []struct {
		name      string
		guarantee check.Guarantee
		play      func(s *script)
	}{
		{"submit, look, end, look", "", func(s *script) {
			submitted(s)
			s.calls(check.VerbGet, one)("ok", seen(pending))
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
			s.calls(check.VerbGet, one)("ok", seen(canceled))
		}},
		{"a submit without an answer that was done", "", func(s *script) {
			s.calls(check.VerbSubmit, one)
			s.create(one)
			s.calls(check.VerbGet, one)("ok", seen(pending))
		}},
		{"a submit without an answer that was not done", "", func(s *script) {
			s.calls(check.VerbSubmit, one)("unknown", nil)
			s.calls(check.VerbGet, one)("ok", (*recordv1.Run)(nil))
		}},
		{"a look that overlaps the end", "", func(s *script) {
			submitted(s)
			early := s.calls(check.VerbGet, one)
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
			early("ok", seen(pending))
		}},
		{"a look after the end sees a run that goes on", check.Linearizable, func(s *script) {
			submitted(s)
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
			s.calls(check.VerbGet, one)("ok", seen(pending))
		}},
		{"a look before the end sees it", check.Linearizable, func(s *script) {
			submitted(s)
			s.calls(check.VerbGet, one)("ok", seen(canceled))
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
		}},
		{"a submitted run is not found", check.Linearizable, func(s *script) {
			submitted(s)
			s.calls(check.VerbCancel, one)("refused", records.ClassNotFound)
		}},
		{"a conflict with nothing", check.Linearizable, func(s *script) {
			s.calls(check.VerbSubmit, one)("refused", records.ClassConflict)
		}},
		{"a deleted run is refused, and not after its tombstone has gone", "", func(s *script) {
			submitted(s)
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
			answer := s.calls(check.VerbDelete, one)
			s.remove(one)
			answer("ok", nil)
			s.calls(check.VerbSubmit, one)("refused", records.ClassInvalid)
			s.calls(check.VerbGet, one)("ok", (*recordv1.Run)(nil))
			s.commit(records.Op{Kind: records.OpDelete, Key: keys.Gone(one)})
			submitted(s)
		}},
		{"a run that goes on is said to have ended", check.Linearizable, func(s *script) {
			submitted(s)
			s.calls(check.VerbCancel, one)("refused", records.ClassInvalid)
		}},
		{"a deleted run is seen", check.Linearizable, func(s *script) {
			submitted(s)
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, nil)
			answer := s.calls(check.VerbDelete, one)
			s.remove(one)
			answer("ok", nil)
			s.calls(check.VerbGet, one)("ok", seen(canceled))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			c.play(s)
			expect(t, s.set.Finish(check.Facts{}), c.guarantee, "")
		})
	}
}

// What a client waits for in vain is shown like all else that has not come to rest.
func TestASubmitThatNobodyTakesIsPending(t *testing.T) {
	s := newScript()
	facts := s.settled(ready("n1"))
	if !s.set.Settled(facts) {
		t.Fatalf("%v", s.set.Pending(facts))
	}
	facts.Waiting = []check.Pending{{Run: one, Node: "n1", What: "a submit that is not taken", Why: "nobody listens"}}
	expect(t, s.set.Finish(facts), check.Liveness, "nobody listens")
}
