package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// The windows of the default session.
const (
	ordinaryWindow = 45 * time.Second
	restartWindow  = 105 * time.Second
)

// newLongStation is a leased station whose run takes longer than any restart.
func newLongStation(t *testing.T) *station {
	t.Helper()
	s := newLeasedStation(t)
	s.timeoutMs = time.Hour.Milliseconds()
	return s
}

// checkReach fails when the fence ever reaches further than others wait.
func (s *station) checkReach() {
	check := func() {
		if beyond := s.beyond(); beyond > 0 {
			s.t.Errorf("the fence %+v reaches %s further than others wait", s.fence.state, beyond)
		}
	}
	s.committed = check
	s.stepped = func(actors.Input, []actors.Effect) { check() }
}

// leave stops the daemon as an update does, as far as more says.
func (s *station) leave(more func() bool) {
	s.step(Leave{})
	s.settleWhile(more)
}

func always() bool { return true }

func TestPlannedRestartHasMoreTimeThanASilence(t *testing.T) {
	for _, test := range []struct {
		name    string
		away    time.Duration
		resumed bool
	}{
		{name: "shorter than any silence", away: 3 * time.Second, resumed: true},
		{name: "longer than the ordinary lease", away: 70 * time.Second, resumed: true},
		{name: "just in time", away: restartWindow - time.Second, resumed: true},
		{name: "at the end of its time", away: restartWindow},
		{name: "much longer", away: 10 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newLongStation(t)
			s.checkReach()
			s.reach("running")
			session := s.machine.session
			s.leave(always)
			if !s.left || s.remaining() != restartWindow || s.window() != restartWindow {
				t.Fatalf("left %t, %s of time, window %s", s.left, s.remaining(), s.window())
			}
			if kv, _ := s.key(); kv.Create != session || kv.Lease != s.meta.GetRestartLease() || kv.Lease == s.meta.GetLease() {
				t.Fatalf("key %+v, journal %v", kv, s.meta)
			}
			s.advanceTo(s.now.Mono + test.away)
			s.guard()
			s.expire()
			s.restart()
			s.live(5 * time.Second)
			if s.reached != PhaseAnnounced || (s.machine.session == session) != test.resumed {
				t.Fatalf("phase %s, %v, session %d of %d", s.reached, s.failure, s.machine.session, session)
			}
			kv, _ := s.key()
			if kv.Lease != s.meta.GetLease() || s.window() != ordinaryWindow || s.remaining() < ordinaryWindow-6*time.Second || s.remaining() > ordinaryWindow {
				t.Errorf("key %+v, journal %v, window %s, %s left", kv, s.meta, s.window(), s.remaining())
			}
			if test.resumed {
				if b := s.boxes[fenceBox]; !b.alive || b.starts != 1 {
					t.Errorf("box %+v", b)
				}
				return
			}
			if exit := heard[*actorv1.Exited](s).GetExit(); !exit.GetFenced() || exit.Code != nil {
				t.Errorf("exit %v", exit)
			}
		})
	}
}

// TestPlannedRestartThatIsCutShort is a daemon that is killed on its way out, after so
// many answers: whatever of it the store has, the next daemon finds a session that is
// its own, and the fence never reaches further than others wait.
func TestPlannedRestartThatIsCutShort(t *testing.T) {
	done := false
	for answers := 0; !done; answers++ {
		for _, away := range []time.Duration{10 * time.Second, 60 * time.Second, 4 * time.Minute} {
			s := newLongStation(t)
			s.checkReach()
			s.reach("running")
			session := s.machine.session
			left := answers
			s.leave(func() bool { left--; return left >= 0 })
			done = s.left
			resumed := away < s.remaining()
			s.advanceTo(s.now.Mono + away)
			s.guard()
			s.expire()
			s.restart()
			s.live(5 * time.Second)
			if s.reached != PhaseAnnounced || (s.machine.session == session) != resumed || s.window() != ordinaryWindow {
				t.Errorf("after %d answers and %s: phase %s, %v, session %d of %d, window %s", answers, away, s.reached, s.failure, s.machine.session, session, s.window())
			}
		}
	}
}

// TestReturnFromAPlannedRestartThatIsCutShort is the same on the way back.
func TestReturnFromAPlannedRestartThatIsCutShort(t *testing.T) {
	done := false
	for answers := 0; !done; answers++ {
		for _, away := range []time.Duration{10 * time.Second, 70 * time.Second} {
			s := newLongStation(t)
			s.checkReach()
			s.reach("running")
			session := s.machine.session
			s.leave(always)
			s.advanceTo(s.now.Mono + away)
			s.expire()
			s.tells = nil
			s.launch()
			left := answers
			s.settleWhile(func() bool { left--; return left >= 0 })
			done = s.reached == PhaseAnnounced
			s.advanceTo(s.now.Mono + time.Second)
			s.restart()
			s.live(5 * time.Second)
			if s.reached != PhaseAnnounced || s.machine.session != session || s.window() != ordinaryWindow || s.remaining() > ordinaryWindow {
				t.Errorf("after %d answers and %s: phase %s, %v, session %d of %d, window %s, %s left", answers, away, s.reached, s.failure, s.machine.session, session, s.window(), s.remaining())
			}
			if b := s.boxes[fenceBox]; !b.alive || b.starts != 1 {
				t.Errorf("after %d answers and %s: box %+v", answers, away, b)
			}
		}
	}
}

func TestPlannedRestartWithoutTheStoreHasTheTimeOfASilence(t *testing.T) {
	s := newLongStation(t)
	s.checkReach()
	s.reach("running")
	deadline := s.fence.state.Deadline
	s.cut()
	s.leave(always)
	s.live(4 * time.Second)
	if s.left || s.fence.state.Deadline != deadline || s.window() != ordinaryWindow {
		t.Fatalf("left %t, fence %+v, window %s", s.left, s.fence.state, s.window())
	}
	// The store is there again before anybody has lost patience.
	s.lessor.err = nil
	s.live(6 * time.Second)
	if !s.left || s.fence.state.Deadline <= deadline || s.window() != restartWindow {
		t.Errorf("left %t, fence %+v, window %s", s.left, s.fence.state, s.window())
	}
}

// TestPlannedRestartWhoseOutcomeIsUnknown reads whether the store has it, before the
// fence is moved.
func TestPlannedRestartWhoseOutcomeIsUnknown(t *testing.T) {
	for _, committed := range []bool{true, false} {
		s := newLongStation(t)
		s.checkReach()
		s.reach("running")
		deadline := s.fence.state.Deadline
		s.leave(func() bool {
			return !slices.ContainsFunc(s.commits, func(c actors.Commit) bool { return len(c.Txn.Then) == 2 && len(c.Txn.If) == 2 })
		})
		if len(s.commits) != 1 {
			t.Fatalf("commits %v", s.commits)
		}
		commit := s.commits[0]
		s.commits = nil
		if committed {
			s.lab.commit(commit.Txn)
		}
		s.step(actors.Committed{Tag: commit.Tag, Result: records.Result{Err: records.Errorf(records.ClassOutcomeUnknown, "timeout")}})
		if s.left || s.fence.state.Deadline != deadline {
			t.Fatalf("left %t, fence %+v", s.left, s.fence.state)
		}
		s.live(time.Second)
		if !s.left || s.remaining() < restartWindow-2*time.Second || s.window() != restartWindow {
			t.Errorf("left %t, %s left, window %s", s.left, s.remaining(), s.window())
		}
		// What is carried out much later changes nothing any more.
		s.restart()
		key, _ := s.key()
		if result := s.lab.commit(commit.Txn); result.Succeeded || result.Err != nil {
			t.Errorf("a transaction of the daemon before was carried out: %+v", result)
		}
		if now, _ := s.key(); now.Mod != key.Mod || now.Lease != s.meta.GetLease() {
			t.Errorf("key %+v, before %+v", now, key)
		}
	}
}

func TestNodeThatIsLeftTakesNothingAndRenewsNothing(t *testing.T) {
	s := newLongStation(t)
	s.reach("running")
	s.leave(always)
	reserve := s.tell(&actorv1.Reserve{Run: "r.default.three", Attempt: 1, Placement: 1, Driver: "null"})
	if answer, _ := told[*actorv1.Reserved](reserve); answer.GetYes() || !strings.Contains(answer.GetMessage(), "being stopped") {
		t.Errorf("answer %v", answer)
	}
	deadline := s.fence.state.Deadline
	s.live(20 * time.Second)
	if s.fence.state.Deadline != deadline || len(s.calls) > 0 {
		t.Errorf("fence %+v, calls %v", s.fence.state, s.calls)
	}
	// A daemon that does not end is fenced like any other.
	s.live(restartWindow)
	if b := s.boxes[fenceBox]; b != nil && b.state == sandbox.StateRunning {
		t.Error("it runs")
	}
}

// TestRenewalUnderWayDoesNotOutliveTheLeave: its answer is about a lease that does not
// hold the session any more.
func TestRenewalUnderWayDoesNotOutliveTheLeave(t *testing.T) {
	s := newLongStation(t)
	s.reach("running")
	s.pass(s.session.Renew)
	if len(s.calls) != 1 {
		t.Fatalf("calls %v", s.calls)
	}
	s.leave(always)
	s.live(2 * s.session.Renew)
	if !s.left || s.machine.trouble != "" || s.remaining() < restartWindow-3*s.session.Renew {
		t.Errorf("left %t, trouble %q, %s left", s.left, s.machine.trouble, s.remaining())
	}
}

func TestNodeWithNothingToGainLeavesAtOnce(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *station)
	}{
		{name: "solo", change: func(s *station) { s.session = SessionConfig{} }},
		{name: "no time for restarts", change: func(s *station) { s.session.RestartMax = 0 }},
		{name: "no more time than for a silence", change: func(s *station) { s.session.RestartMax = s.session.Lease }},
		{name: "not registered", change: func(s *station) { s.goal = PhaseAdopted }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &station{lab: newLeasedLab(), t: t}
			test.change(s)
			s.launch()
			s.settle()
			s.step(Leave{})
			if !s.left || len(s.calls) > 0 {
				t.Errorf("left %t, calls %v", s.left, s.calls)
			}
			s.left = false
			if s.step(Leave{}); !s.left {
				t.Error("asked again it does not answer")
			}
		})
	}
}

// TestSessionThatEndsWhileItIsLeftIsNotProlonged: an end that is seen on the way out is
// the end.
func TestSessionThatEndsWhileItIsLeftIsNotProlonged(t *testing.T) {
	s := newLongStation(t)
	s.reach("running")
	session := s.machine.session
	s.deleteKey(s.keys.Node("n1"))
	s.watched = nil
	s.leave(always)
	if !s.left || s.fence.state.Session != session || s.remaining() > ordinaryWindow {
		t.Errorf("left %t, fence %+v", s.left, s.fence.state)
	}
	info := &recordv1.NodeInfo{}
	if err := records.Decode(s.store.keys[s.keys.NodeInfo("n1")], info); err != nil || info.GetWindowMs() != ordinaryWindow.Milliseconds() {
		t.Errorf("info %v, %v", info, err)
	}
}
