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

var fenceBox = records.SandboxID(tableRun, 1, 1)

// newLeasedStation is a station whose session has a lease.
func newLeasedStation(t *testing.T) *station {
	t.Helper()
	s := &station{lab: newLeasedLab(), t: t}
	s.launch()
	s.settle()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	return s
}

// live lets time go by in which everything is answered at once.
func (s *station) live(d time.Duration) {
	for end := s.now.Mono + d; s.now.Mono < end; {
		s.pass(min(time.Second, end-s.now.Mono))
		s.settle()
	}
}

// cut keeps the node from the store: nothing that it asks is answered any more.
func (s *station) cut() { s.lessor.err = records.Errorf(records.ClassUnavailable, "cut") }

func (s *station) remaining() time.Duration { return s.fence.state.Deadline - s.now.Boot }

func TestLeasedSessionIsRegisteredWithItsLeaseAndItsWindow(t *testing.T) {
	s := newLeasedStation(t)
	kv, _ := s.key()
	info := &recordv1.NodeInfo{}
	if err := records.Decode(s.store.keys[s.keys.NodeInfo("n1")], info); err != nil {
		t.Fatal(err)
	}
	if kv.Lease == 0 || kv.Lease != s.meta.GetLease() || kv.Create != s.meta.GetSession() || info.GetWindowMs() != 45_000 {
		t.Errorf("key %+v, journal %v, info %v", kv, s.meta, info)
	}
	want := FenceState{BootID: s.boot, Session: kv.Create, Deadline: s.now.Boot + 45*time.Second, Window: 45 * time.Second}
	if s.fence.state != want {
		t.Errorf("fence %+v, want %+v", s.fence.state, want)
	}
}

func TestSoloNeitherRenewsNorFences(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.live(24 * time.Hour / 60)
	if len(s.calls) != 0 || s.fence.ok {
		t.Errorf("calls %v, fence %+v", s.calls, s.fence)
	}
}

func TestRenewalCountsFromBeforeItWasSentAndOnlyWhenConfirmed(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(s *station)
		moves bool
	}{
		{name: "confirmed", moves: true},
		{name: "refused", fault: func(s *station) { s.cut() }},
		{name: "answered by a deposed leader", fault: func(s *station) { s.lessor.deposed = true }},
		{name: "without a term", fault: func(s *station) { s.lessor.term = 0 }},
		{name: "the key is not held by the lease", fault: func(s *station) {
			kv, _ := s.key()
			s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: kv.Key, Value: kv.Value}}})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newLeasedStation(t)
			before := s.fence.state.Deadline
			if test.fault != nil {
				test.fault(s)
			}
			s.pass(5 * time.Second)
			sent := s.now.Boot
			s.advanceTo(s.now.Mono + 2*time.Second)
			s.settle()
			want := before
			if test.moves {
				want = sent + 45*time.Second
			}
			if s.fence.state.Deadline != want || s.fence.state.FencedAt != 0 {
				t.Errorf("deadline %s, want %s (sent at %s)", s.fence.state.Deadline, want, sent)
			}
			if (s.machine.trouble == "") != test.moves {
				t.Errorf("trouble %q", s.machine.trouble)
			}
		})
	}
}

func TestSessionThatIsRenewedLives(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	for range 12 {
		s.live(time.Second)
		s.expire()
		if s.remaining() < 35*time.Second {
			t.Fatalf("%s left", s.remaining())
		}
	}
	s.cut()
	s.live(30 * time.Second)
	s.lessor.err = nil
	s.live(10 * time.Second)
	if b := s.boxes[fenceBox]; b == nil || b.state != sandbox.StateRunning || s.machine.trouble != "" || s.remaining() < 35*time.Second {
		t.Errorf("box %+v, trouble %q, %s left", b, s.machine.trouble, s.remaining())
	}
}

func TestFenceEndsEverythingAndTheNodeRegistersAnew(t *testing.T) {
	for _, test := range []struct {
		name string
		cut  func(s *station)
		at   time.Duration
	}{
		{name: "by time", cut: func(s *station) { s.cut() }, at: 45 * time.Second},
		{name: "by the leader's lies", cut: func(s *station) { s.lessor.deposed = true }, at: 45 * time.Second},
		{name: "by the watch", cut: func(s *station) { s.deleteKey(s.keys.Node("n1")); s.watch() }},
		{name: "by the confirming read", cut: func(s *station) {
			s.deleteKey(s.keys.Node("n1"))
			s.watched = nil
			s.pass(5 * time.Second)
			s.settle()
		}, at: 5 * time.Second},
		{name: "by the key of another session", cut: func(s *station) {
			s.deleteKey(s.keys.Node("n1"))
			s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.Node("n1")}}})
			s.watched = s.watched[len(s.watched)-1:]
			s.watch()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newLeasedStation(t)
			s.reach("running")
			session, start := s.machine.session, s.now.Boot
			s.killing = func(string) {
				if s.fence.state.FencedAt == 0 || s.fence.state.Session != session {
					t.Errorf("killed with the fence at %+v", s.fence.state)
				}
				if e := s.entries[PlacementKey{tableRun, 1, 1}]; !e.GetExit().GetFenced() {
					t.Errorf("killed with the journal at %v", e)
				}
			}
			test.cut(s)
			s.live(start + test.at - s.now.Boot)
			s.settle()
			if b := s.boxes[fenceBox]; b != nil && b.alive {
				t.Fatalf("alive at %s", s.now.Boot-start)
			}
			exit := heard[*actorv1.Exited](s).GetExit()
			if exit.Code != nil || !exit.GetFenced() || exit.GetReason() != recordv1.Reason_REASON_NODE_FENCED {
				t.Errorf("exit %v", exit)
			}
			s.lessor.err, s.lessor.deposed = nil, false
			s.live(10 * time.Second)
			kv, ok := s.key()
			if !ok || kv.Create == session || kv.Create != s.machine.session || s.machine.fenced() || s.remaining() < 30*time.Second ||
				s.machine.trouble != "" || s.reached != PhaseAnnounced {
				t.Errorf("key %+v, session %d, fence %+v, trouble %q", kv, s.machine.session, s.fence.state, s.machine.trouble)
			}
			if kv.Lease != s.meta.GetLease() || s.meta.GetSession() != kv.Create {
				t.Errorf("key %+v, journal %v", kv, s.meta)
			}
		})
	}
}

func TestFencedNodeTakesNothing(t *testing.T) {
	s := newLeasedStation(t)
	s.hang = func(SandboxVerb) error { return records.Errorf(records.ClassUnavailable, "away") }
	s.assign(s.assignment())
	s.watch()
	s.settle()
	other := s.assignment()
	other.Run = "r.default.two"
	s.deleteKey(s.keys.Node("n1"))
	s.watch()
	reserve := s.tell(&actorv1.Reserve{Run: "r.default.three", Attempt: 1, Placement: 1, Driver: "null"})
	if answer, _ := told[*actorv1.Reserved](reserve); answer.GetYes() || !strings.Contains(answer.GetMessage(), "fenced") {
		t.Errorf("answer %v", answer)
	}
	s.assign(other)
	s.tell(&actorv1.Start{Assignment: other, Commit: s.commit})
	s.watch()
	s.settle()
	if v := heard[*actorv1.Voided](s); v.GetRun() != other.GetRun() || len(s.boxes) != 0 {
		t.Errorf("void %v, boxes %v", v, s.boxes)
	}
}

func TestNothingIsStartedCloseToTheDeadline(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("journaling starting")
	s.advanceTo(s.now.Mono + s.remaining() - s.session.StartMargin)
	s.machine.placements[fenceBox].syncingFrom = s.now.Mono
	s.write()
	if slices.ContainsFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbStart }) {
		t.Fatal("started")
	}
	s.settle()
	heard[*actorv1.Voided](s)
}

func TestStartThatIsAnsweredAfterTheFenceIsKilledOnceMore(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("starting")
	s.advanceTo(s.now.Mono + s.remaining())
	s.step(actors.TimerFired{Name: "fence"})
	s.write()
	s.do(VerbKill) // it finds nothing, for the start is still under way
	if slices.ContainsFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbFlush }) {
		t.Fatal("taken for empty while the start is under way")
	}
	s.do(VerbStart)
	if b := s.boxes[fenceBox]; !b.alive {
		t.Fatal("the start did not happen")
	}
	s.live(2 * time.Second)
	if b := s.boxes[fenceBox]; b != nil && b.alive {
		t.Error("it lives")
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); !exit.GetFenced() {
		t.Errorf("exit %v", exit)
	}
}

func TestStuckJournalDoesNotHoldUpTheKill(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	s.deleteKey(s.keys.Node("n1"))
	s.watch()
	s.pass(FenceSyncMax - time.Millisecond)
	s.settleOps()
	if !s.boxes[fenceBox].alive {
		t.Fatal("killed before the journal had its time")
	}
	s.pass(time.Millisecond)
	s.settleOps()
	if s.boxes[fenceBox].alive {
		t.Fatal("alive because of the disk")
	}
}

// TestNodeDoesNotRegisterAnewBeforeTheJournalHoldsEachEnd: after a crash in the next
// session the fence's kill would pass for the command's own end.
func TestNodeDoesNotRegisterAnewBeforeTheJournalHoldsEachEnd(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	s.refuseWrite = func(change JournalChange) error {
		if len(change.Puts) > 0 {
			return records.Errorf(records.ClassUnavailable, "input/output error")
		}
		return nil
	}
	s.deleteKey(s.keys.Node("n1"))
	s.live(20 * time.Second)
	if _, ok := s.key(); ok || s.boxes[fenceBox].alive {
		t.Fatalf("registered %t, alive %t", ok, s.boxes[fenceBox].alive)
	}
	s.refuseWrite = nil
	s.live(10 * time.Second)
	if _, ok := s.key(); !ok {
		t.Errorf("not registered: %s", s.machine.trouble)
	}
	if exit := heard[*actorv1.Exited](s).GetExit(); !exit.GetFenced() || exit.Code != nil {
		t.Errorf("exit %v", exit)
	}
}

func TestNodeThatCanNotBeEmptiedDoesNotRegisterAndSaysSo(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	session := s.machine.session
	s.hang = func(verb SandboxVerb) error {
		if verb == VerbKill {
			return records.Errorf(records.ClassUnavailable, "away")
		}
		return nil
	}
	s.deleteKey(s.keys.Node("n1"))
	s.live(30 * time.Second)
	if _, ok := s.key(); ok || !strings.Contains(s.machine.trouble, "can not be emptied") || s.machine.session != session {
		t.Fatalf("registered %t, trouble %q", ok, s.machine.trouble)
	}
	s.hang = nil
	s.live(5 * time.Second)
	if kv, ok := s.key(); !ok || kv.Create != s.machine.session || s.machine.trouble != "" {
		t.Errorf("key %+v, trouble %q", kv, s.machine.trouble)
	}
}

// TestRestartWithALease is a daemon that was dead for a while, with or without a
// guard that killed in its stead.
func TestRestartWithALease(t *testing.T) {
	const window = 45 * time.Second
	for _, test := range []struct {
		name      string
		meanwhile func(s *station)
		away      time.Duration
		resumed   bool
		reason    recordv1.Reason
		code      int32
	}{
		{name: "before the deadline", away: window - time.Second, resumed: true},
		{name: "before the deadline, and the command has ended", away: 10 * time.Second, resumed: true, code: 3, meanwhile: func(s *station) { s.end(fenceBox, 3, 0) }},
		{name: "at the deadline", away: window, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "after the deadline, and the guard had killed", away: time.Minute, meanwhile: func(s *station) {
			s.advanceTo(s.now.Mono + window)
			s.guard()
		}, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "after the deadline, and the command had ended before", away: time.Minute, code: 3, meanwhile: func(s *station) {
			s.end(fenceBox, 3, 0)
			s.boxes[fenceBox].alive = false
		}},
		{name: "after the deadline, and the sandbox is gone", away: time.Minute, meanwhile: func(s *station) {
			s.advanceTo(s.now.Mono + window)
			s.guard()
			delete(s.boxes, fenceBox)
		}, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "the key is gone", away: time.Second, meanwhile: func(s *station) { s.deleteKey(s.keys.Node("n1")) }, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "the key is another session's", away: time.Second, meanwhile: func(s *station) {
			kv, _ := s.key()
			s.deleteKey(kv.Key)
			s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: kv.Key, Value: kv.Value, Lease: kv.Lease}}})
		}, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "the key is held by another lease", away: time.Second, meanwhile: func(s *station) {
			kv, _ := s.key()
			s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: kv.Key, Value: kv.Value}}})
		}, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "another boot, and it had ended before", away: time.Second, meanwhile: func(s *station) {
			s.end(fenceBox, 137, 9)
			s.boxes[fenceBox].alive, s.boot, s.fence = false, "boot-2", labFence{}
		}, reason: recordv1.Reason_REASON_NODE_FENCED},
		{name: "the fence is lost", away: time.Second, meanwhile: func(s *station) { s.fence = labFence{} }, reason: recordv1.Reason_REASON_NODE_FENCED},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newLeasedStation(t)
			s.reach("running")
			session, deadline := s.machine.session, s.now.Mono+test.away
			if test.meanwhile != nil {
				test.meanwhile(s)
			}
			s.advanceTo(max(deadline, s.now.Mono))
			s.expire()
			s.restart()
			s.live(5 * time.Second)
			if s.reached != PhaseAnnounced || (s.machine.session == session) != test.resumed {
				t.Fatalf("phase %s, %v, session %d of %d", s.reached, s.failure, s.machine.session, session)
			}
			if test.resumed && test.code == 0 {
				heard[*actorv1.Started](s)
				if b := s.boxes[fenceBox]; !b.alive || b.starts != 1 {
					t.Errorf("box %+v", b)
				}
				return
			}
			exit := heard[*actorv1.Exited](s).GetExit()
			if exit.GetReason() != test.reason || exit.GetCode() != test.code || (exit.Code == nil) != (test.code == 0) || exit.GetFenced() != (test.code == 0) {
				t.Errorf("exit %v", exit)
			}
			if b := s.boxes[fenceBox]; b != nil && b.alive {
				t.Error("it lives")
			}
			if kv, ok := s.key(); !ok || kv.Create != s.machine.session || kv.Lease != s.meta.GetLease() {
				t.Errorf("key %+v, session %d", kv, s.machine.session)
			}
		})
	}
}

func TestRestartWithoutTheStoreKillsAtTheDeadline(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	s.cut()
	s.restart()
	for range 50 {
		s.live(time.Second)
		alive := s.boxes[fenceBox] != nil && s.boxes[fenceBox].alive
		if alive && s.remaining() <= -5*time.Second || !alive && s.remaining() > 0 {
			t.Fatalf("alive %t with %s left", alive, s.remaining())
		}
	}
	s.lessor.err = nil
	s.live(10 * time.Second)
	if exit := heard[*actorv1.Exited](s).GetExit(); !exit.GetFenced() || s.reached != PhaseAnnounced {
		t.Errorf("exit %v, phase %s", exit, s.reached)
	}
}

func TestGuardThatKillsWhileTheSandboxesAreLookedAtIsNoticed(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	s.launch()
	for len(s.ops) == 0 {
		if len(s.inputs) == 0 {
			c := s.commits[0]
			s.commits = s.commits[1:]
			s.step(actors.Committed{Tag: c.Tag, Result: s.lab.commit(c.Txn)})
			continue
		}
		in := s.inputs[0]
		s.inputs = s.inputs[1:]
		s.step(in)
	}
	s.fence.state.Deadline = s.now.Boot
	s.guard()
	s.settle()
	s.live(time.Second)
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || !exit.GetFenced() {
		t.Errorf("exit %v", exit)
	}
}

func TestGuardThatFencedBeforeTheFenceWasArmedAgainIsFollowed(t *testing.T) {
	s := newLeasedStation(t)
	s.reach("running")
	session := s.machine.session
	s.fence.state.FencedAt = s.now.Boot
	s.live(6 * time.Second)
	if exit := heard[*actorv1.Exited](s).GetExit(); !exit.GetFenced() || s.machine.session == session {
		t.Errorf("exit %v, session %d", exit, s.machine.session)
	}
}

func TestSessionConfigIsRefusedWhenItCanNotStandALostRenewal(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(c *SessionConfig)
		want   string
	}{
		{name: "solo", change: func(c *SessionConfig) { *c = SessionConfig{} }},
		{name: "the default", change: func(*SessionConfig) {}},
		{name: "just enough", change: func(c *SessionConfig) { c.Lease = c.Margin + 3*c.Renew + 4*time.Second }},
		{name: "too short a lease", change: func(c *SessionConfig) { c.Lease = c.Margin + 3*c.Renew + 4*time.Second - 1 }, want: "at least 3 renewals"},
		{name: "no kill budget", change: func(c *SessionConfig) { c.KillBudget = 0 }, want: "kill budget"},
		{name: "no renewal", change: func(c *SessionConfig) { c.Renew = 0 }, want: "must be set"},
		{name: "no drift", change: func(c *SessionConfig) { c.Drift = 0 }},
		{name: "a clock that goes backwards", change: func(c *SessionConfig) { c.Drift = -0.1 }, want: "drift"},
		{name: "a clock that may go twice as fast", change: func(c *SessionConfig) { c.Drift = 1 }, want: "drift"},
		{name: "no time to start anything", change: func(c *SessionConfig) { c.StartMargin = time.Minute }, want: "start margin"},
		{name: "a restart of a minute", change: func(c *SessionConfig) { c.RestartMax = time.Minute }},
		{name: "a restart of less", change: func(c *SessionConfig) { c.RestartMax = time.Minute - 1 }, want: "time for a restart"},
		{name: "no time of its own for a restart", change: func(c *SessionConfig) { c.RestartMax = 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := DefaultSession()
			test.change(&c)
			err := c.Validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
