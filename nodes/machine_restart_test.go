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

// restart is a kill -9 and a new life, up to the given phase and the end of what
// follows from it.
func (s *station) restart() {
	s.tells = nil
	s.launch()
	s.settle()
}

// down lets time go by without a daemon.
func (s *station) down(d time.Duration) {
	s.now.Mono, s.now.Boot, s.now.Wall = s.now.Mono+d, s.now.Boot+d, s.now.Wall.Add(d)
}

func TestRestartGoesOnWhereTheJournalIs(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	for _, test := range []struct {
		name, state string
		meanwhile   func(*station)
		reason      recordv1.Reason
		code        int32
		void, runs  bool
	}{
		{name: "a create cut short is made again", state: "journaling starting", runs: true},
		{name: "starting, not started", state: "starting", reason: recordv1.Reason_REASON_START_UNKNOWN},
		{name: "starting, and it runs", state: "starting", meanwhile: func(s *station) {
			s.perform(slices.IndexFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbStart }))
		}, runs: true},
		{name: "started and held, and it runs", state: "started, held", runs: true},
		{name: "started and held, and ended meanwhile", state: "started, held", meanwhile: func(s *station) { s.end(id, 3, 0) }, code: 3},
		{
			name: "started and held, and gone", state: "started, held",
			meanwhile: func(s *station) { delete(s.boxes, id) }, reason: recordv1.Reason_REASON_START_UNKNOWN,
		},
		{name: "started and running", state: "running", runs: true},
		{name: "started and ended meanwhile", state: "running", meanwhile: func(s *station) { s.end(id, 3, 0) }, code: 3},
		{name: "started and gone", state: "running", meanwhile: func(s *station) { delete(s.boxes, id) }, reason: recordv1.Reason_REASON_SANDBOX_LOST},
		{
			name: "rebooted, and the exit was recorded before", state: "running",
			meanwhile: func(s *station) { s.end(id, 3, 0); s.boxes[id].alive = false; s.boot = "boot-2" }, code: 3,
		},
		{
			name: "rebooted while it ran", state: "running",
			meanwhile: func(s *station) { delete(s.boxes, id); s.boot = "boot-2" }, reason: recordv1.Reason_REASON_SANDBOX_LOST,
		},
		{
			name: "rebooted during the start", state: "starting",
			meanwhile: func(s *station) { delete(s.boxes, id); s.boot = "boot-2" }, reason: recordv1.Reason_REASON_START_UNKNOWN,
		},
		{name: "rebooted before the start", state: "creating", meanwhile: func(s *station) { s.boot = "boot-2" }, void: true},
		{name: "exited and not acknowledged", state: "reporting", code: 143},
		{name: "a stop whose signal was not answered for", state: "stopping", meanwhile: func(s *station) { s.end(id, 143, 15) }, code: 143},
		{
			name: "the store has another session", state: "running",
			meanwhile: func(s *station) {
				s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: s.keys.Node("n1")}}})
			},
			reason: recordv1.Reason_REASON_SANDBOX_LOST,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.reach(test.state)
			if test.meanwhile != nil {
				test.meanwhile(s)
			}
			s.restart()
			if s.reached != PhaseAnnounced {
				t.Fatalf("phase %s, %v", s.reached, s.failure)
			}
			switch {
			case test.runs:
				s.pass(StartHold)
				s.settle()
				heard[*actorv1.Started](s)
				if b := s.boxes[id]; b == nil || b.starts != 1 || b.state != sandbox.StateRunning {
					t.Errorf("sandbox %+v", b)
				}
			case test.void:
				heard[*actorv1.Voided](s)
			default:
				exit := heard[*actorv1.Exited](s).GetExit()
				if exit.GetReason() != test.reason || exit.GetCode() != test.code || (exit.Code == nil) != (test.reason != 0) {
					t.Errorf("exit %v", exit)
				}
				boots := "its boot id was boot-1 and is boot-2"
				if rebooted := s.boot == "boot-2" && exit.Code == nil; rebooted != strings.Contains(exit.GetMessage(), boots) {
					t.Errorf("the end is told as %q", exit.GetMessage())
				}
				if strings.Contains(test.name, "stop") && !exit.GetStopDelivered() {
					t.Errorf("the stop is not told: %v", exit)
				}
			}
		})
	}
}

func TestSessionOpenedJustBeforeACrashIsResumed(t *testing.T) {
	s := newStation(t)
	session := s.machine.session
	s.meta.Session = 0
	s.restart()
	if s.machine.session != session || s.meta.GetSession() != session {
		t.Errorf("session %d, journal %d, opened as %d", s.machine.session, s.meta.GetSession(), session)
	}
}

func TestJournalThatWentBackInTimeDoesNotVoid(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.entries, s.boxes = map[PlacementKey]*recordv1.JournalEntry{}, map[string]*labBox{}
	s.meta.Generation, s.meta.Session, s.boot = 0, 0, "boot-2"
	s.restart()
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_START_UNKNOWN {
		t.Errorf("exit %v", exit)
	}
}

func TestSandboxWithoutAnEntryIsKilledAndGoesWhenItsRunIsSeenGoneTwice(t *testing.T) {
	s := newStation(t)
	id := records.SandboxID("r.default.orphan", 1, 1)
	s.boxes[id] = strayBox("r.default.orphan", nil)
	s.restart()
	if b := s.boxes[id]; b == nil || b.alive {
		t.Fatalf("sandbox %+v", b)
	}
	s.pass(OrphanConfirm - time.Millisecond)
	s.settle()
	if s.boxes[id] == nil {
		t.Fatal("removed after one look")
	}
	s.pass(time.Millisecond)
	s.settle()
	if s.boxes[id] != nil {
		t.Error("not removed after two looks")
	}
}

func TestSandboxOfALiveRunWithoutAnEntryIsKeptForADay(t *testing.T) {
	s := newStation(t)
	run := &recordv1.Run{Id: "r.default.orphan", App: "default", Status: recordv1.Status_STATUS_RUNNING}
	s.lab.commit(s.keys.Create(run, 1))
	id := records.SandboxID(run.GetId(), 1, 1)
	s.boxes[id] = strayBox(run.GetId(), run.GetSpec())
	s.restart()
	s.pass(QuarantineHold - time.Second)
	s.settle()
	if b := s.boxes[id]; b == nil || b.alive {
		t.Fatalf("sandbox %+v", b)
	}
	s.pass(time.Second)
	s.settle()
	if s.boxes[id] != nil {
		t.Error("kept beyond the day")
	}
}

// TestSandboxWithoutAnEntryGoesWhenItsRunHasEnded: another attempt of the run may live
// on elsewhere for a while.
func TestSandboxWithoutAnEntryGoesWhenItsRunHasEnded(t *testing.T) {
	s := newStation(t)
	run := &recordv1.Run{Id: "r.default.orphan", App: "default", Status: recordv1.Status_STATUS_RUNNING}
	created := s.lab.commit(s.keys.Create(run, 1))
	id := records.SandboxID(run.GetId(), 1, 1)
	s.boxes[id] = strayBox(run.GetId(), run.GetSpec())
	s.restart()
	for range 5 {
		s.pass(OrphanConfirm)
		s.settle()
	}
	if s.boxes[id] == nil {
		t.Fatal("removed while its run lives")
	}
	run.Status, run.EndedAt = recordv1.Status_STATUS_SUCCEEDED, 1
	s.lab.commit(s.keys.End(run, created.Revision, ""))
	for range 2 {
		s.pass(OrphanConfirm)
		s.settle()
	}
	if s.boxes[id] != nil {
		t.Error("kept although its run has ended")
	}
}

// TestNodeThatComesBackTellsWhatMayNotHaveBeenHeard: of very many runs that have been
// running for long none is told again, for each of them would be woken by it.
func TestNodeThatComesBackTellsWhatMayNotHaveBeenHeard(t *testing.T) {
	for _, test := range []struct {
		name  string
		state string
		since time.Duration
		told  bool
	}{
		{name: "started just now", state: "running", since: startHeardMin / 2, told: true},
		{name: "started long ago", state: "running", since: 2 * startHeardMin},
		{name: "ended long ago and not acknowledged", state: "reporting", since: 2 * startHeardMin, told: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.reach(test.state)
			for _, entry := range s.entries {
				entry.TimeoutMs = time.Hour.Milliseconds()
			}
			s.down(test.since)
			s.restart()
			told := 0
			for _, tell := range s.tells {
				switch tell.Message.(type) {
				case *actorv1.Started, *actorv1.Exited:
					told++
				}
			}
			if s.reached != PhaseAnnounced || (told > 0) != test.told {
				t.Errorf("phase %s, told %v", s.reached, s.tells)
			}
		})
	}
}

// TestTimeoutThatPassedWithoutADaemonIsJournaledBeforeItsSignal: a daemon that dies
// between the two must not leave an end by our signal that passes for the command's own.
func TestTimeoutThatPassedWithoutADaemonIsJournaledBeforeItsSignal(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.down(time.Hour)
	signals := 0
	s.stepped = func(_ actors.Input, effects []actors.Effect) {
		for _, effect := range effects {
			if op, ok := effect.(DoSandbox); ok && op.Op.Verb == VerbSignal {
				signals++
				for _, entry := range s.entries {
					if entry.GetStopCause() != recordv1.StopCause_STOP_CAUSE_TIMEOUT {
						t.Errorf("signaled while the journal holds %v", entry.GetStopCause())
					}
				}
			}
		}
	}
	s.restart()
	if exit := heard[*actorv1.Exited](s).GetExit(); signals != 1 || exit.GetStopCause() != recordv1.StopCause_STOP_CAUSE_TIMEOUT || !exit.GetStopDelivered() {
		t.Errorf("%d signals, %v", signals, exit)
	}
}
