package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func told[M any](effects []actors.Effect) (M, bool) {
	for _, effect := range effects {
		if tell, ok := effect.(actors.Tell); ok {
			if m, ok := tell.Message.(M); ok {
				return m, true
			}
		}
	}
	var none M
	return none, false
}

// heard returns the last message of a kind that was told to a run.
func heard[M any](s *station) M {
	s.t.Helper()
	for _, tell := range slices.Backward(s.tells) {
		if m, ok := tell.Message.(M); ok {
			return m
		}
	}
	var none M
	s.t.Fatalf("no %T was told: %v", none, s.tells)
	return none
}

func (s *station) reach(state string) {
	s.t.Helper()
	for _, step := range tableStates {
		step.then(s)
		if step.name == state {
			return
		}
	}
	s.t.Fatalf("there is no state %q", state)
}

func TestReserveRefusesInWords(t *testing.T) {
	ask := func() *actorv1.Reserve {
		return &actorv1.Reserve{Run: tableRun, Attempt: 1, Placement: 1, Driver: "null", CpuMillis: 1000, MemoryBytes: 1 << 20}
	}
	for _, test := range []struct {
		name    string
		prepare func(*station)
		ask     func(*actorv1.Reserve)
		refusal string
		reason  recordv1.Reason
	}{
		{name: "there is room"},
		{name: "not registered yet", prepare: func(s *station) { s.goal = PhaseAdopted; s.launch(); s.settle() }, refusal: "not registered yet"},
		{
			name: "driver not enabled", ask: func(r *actorv1.Reserve) { r.Driver = "containerd" },
			refusal: `driver "containerd" is not enabled`, reason: recordv1.Reason_REASON_START_ERROR,
		},
		{name: "more cpu than there is", ask: func(r *actorv1.Reserve) { r.CpuMillis = 4001 }, refusal: "cpu 4001m asked, 4000m of 4000m free"},
		{name: "more memory than there is", ask: func(r *actorv1.Reserve) { r.MemoryBytes = 1<<30 + 1 }, refusal: "memory"},
		{
			name: "count is full",
			prepare: func(s *station) {
				for i := range 8 {
					s.tell(&actorv1.Reserve{Run: fmt.Sprintf("r.default.other%d", i), Attempt: 1, Placement: 1, Driver: "null"})
				}
			},
			refusal: "8 of 8 sandboxes",
		},
		{
			name: "cpu is taken by another reservation",
			prepare: func(s *station) {
				s.tell(&actorv1.Reserve{Run: "r.default.other", Attempt: 1, Placement: 1, Driver: "null", CpuMillis: 3500})
			},
			refusal: "500m of 4000m free",
		},
		{
			name: "the other reservation has expired",
			prepare: func(s *station) {
				s.tell(&actorv1.Reserve{Run: "r.default.other", Attempt: 1, Placement: 1, Driver: "null", CpuMillis: 3500})
				s.pass(ReservationHold)
			},
		},
		{
			name: "asked again",
			prepare: func(s *station) {
				again := ask()
				again.CpuMillis = 3500
				s.tell(again)
			},
		},
		{
			name: "draining",
			prepare: func(s *station) {
				s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.Drain("n1")}}})
				s.watch()
			},
			refusal: "draining",
		},
		{
			name: "another node with a longer name drains",
			prepare: func(s *station) {
				s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: s.keys.Drain("n10")}}})
				s.watch()
			},
		},
		{
			name: "the journal fails",
			prepare: func(s *station) {
				s.reach("journaling starting")
				s.step(JournalWritten{Tag: s.writes[0].Tag, Err: fmt.Errorf("no space left on device")})
			},
			refusal: "journal",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			if test.prepare != nil {
				test.prepare(s)
			}
			r := ask()
			if test.ask != nil {
				test.ask(r)
			}
			answer, ok := told[*actorv1.Reserved](s.tell(r))
			if !ok {
				t.Fatal("no answer")
			}
			if answer.GetYes() != (test.refusal == "") || !strings.Contains(answer.GetMessage(), test.refusal) || answer.GetPermanentReason() != test.reason {
				t.Errorf("answer %v, want %q", answer, test.refusal)
			}
			if answer.GetYes() && (answer.GetSession() != s.machine.session || answer.GetUuid() != "uuid-1") {
				t.Errorf("answer %v", answer)
			}
		})
	}
}

func TestSandboxFindsTheEnginesVariablesAndNoForgedOnes(t *testing.T) {
	s := newStation(t)
	var env []string
	s.created = func(spec sandbox.Spec) { env = spec.Spec.GetEnv() }
	s.reach("journaling starting")
	want := []string{
		"A=1", "ERRAND_APP=default", "ERRAND_ATTEMPT=1",
		fmt.Sprintf("ERRAND_FENCING_TOKEN=%d", uint64(1)<<48|uint64(s.commit)), "ERRAND_RUN_ID=" + tableRun,
	}
	if !slices.Equal(env, want) {
		t.Errorf("environment %v, want %v", env, want)
	}
}

func TestPlacementWhoseStartingIsSlowToReachTheDiskIsGivenBack(t *testing.T) {
	for delay, state := range map[time.Duration]recordv1.JournalState{
		StartingSyncMax:                    recordv1.JournalState_JOURNAL_STATE_STARTING,
		StartingSyncMax + time.Millisecond: recordv1.JournalState_JOURNAL_STATE_VOID,
	} {
		s := newStation(t)
		s.reach("journaling starting")
		s.advanceTo(s.now.Mono + delay)
		s.write()
		for _, p := range s.machine.placements {
			if got := p.entry.GetState(); got != state {
				t.Errorf("after %s: %s, want %s", delay, got, state)
			}
		}
	}
}

func TestTimeoutCountsSuspendedTime(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.now.Boot += time.Hour
	s.pass(TimeoutStep)
	s.settle()
	if exit := heard[*actorv1.Exited](s).GetExit(); exit.GetStopCause() != recordv1.StopCause_STOP_CAUSE_TIMEOUT || !exit.GetStopDelivered() || exit.GetCode() != 143 {
		t.Errorf("exit %v", exit)
	}
}

func TestStartWhoseOutcomeIsUnknownIsAskedForAndNotRepeated(t *testing.T) {
	s := newStation(t)
	s.startErr = func(string) error { return records.Errorf(records.ClassOutcomeUnknown, "cut") }
	s.reach("starting")
	s.settle()
	s.pass(StartHold)
	s.settle()
	if heard[*actorv1.Started](s) == nil {
		t.Error("what runs was not found")
	}
	id := records.SandboxID(tableRun, 1, 1)
	if starts := s.boxes[id].starts; starts != 1 {
		t.Errorf("%d starts", starts)
	}
}

func TestOutcomeOfAnUnknownRunIsKeptForADay(t *testing.T) {
	s := newStation(t)
	s.reach("removed")
	s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Unknown: true})
	s.settle()
	s.pass(QuarantineHold - time.Second)
	s.settle()
	if len(s.entries) != 1 {
		t.Fatalf("%d entries", len(s.entries))
	}
	s.pass(2 * time.Second)
	s.settle()
	if len(s.entries) != 0 {
		t.Errorf("%d entries after a day", len(s.entries))
	}
}

func TestStartsInFlightAreBoundedUntilTheyWaitForTheNetwork(t *testing.T) {
	s := newStation(t)
	for i := range 5 {
		a := s.assignment()
		a.Run = fmt.Sprintf("r.default.run%d", i)
		s.assign(a)
	}
	s.watch()
	creates := func() (n int) {
		for _, op := range s.ops {
			if op.Op.Verb == VerbCreate {
				n++
			}
		}
		return n
	}
	if n := creates(); n != 2 {
		t.Errorf("%d creates at once", n)
	}
	s.pass(StartSlotPatience)
	if n := creates(); n != 4 {
		t.Errorf("%d creates after the patience", n)
	}
	if order := s.ops[0].Op.Spec.Run + s.ops[1].Op.Spec.Run; order != "r.default.run0r.default.run1" {
		t.Errorf("order %s", order)
	}
}

func TestSecondAttemptWaitsUntilTheFirstIsGone(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	second := s.assignment()
	second.Attempt = 2
	s.withdraw()
	s.assign(second)
	s.watch()
	for i := 0; i < 50 && len(s.writes)+len(s.ops) > 0; i++ {
		if first := s.boxes[records.SandboxID(tableRun, 1, 1)]; first != nil && first.alive && s.boxes[records.SandboxID(tableRun, 2, 1)] != nil {
			t.Fatal("the second was created while the first was alive")
		}
		switch {
		case len(s.writes) > 0:
			s.write()
		default:
			s.settleOps()
		}
	}
	s.settle()
	if b := s.boxes[records.SandboxID(tableRun, 2, 1)]; b == nil || b.starts != 1 {
		t.Errorf("the second attempt: %+v", b)
	}
}

func TestPlacementTakenAheadOfTheWatchIsWithdrawnWhenItsKeyIsGone(t *testing.T) {
	for name, next := range map[string]func(*station){
		"and nothing followed": func(*station) {},
		"and another followed": func(s *station) {
			other := s.assignment()
			other.Placement = 2
			s.assign(other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			s.assign(s.assignment())
			s.tell(s.start())
			s.withdraw()
			next(s)
			// The watch was cut and shows only what is there now.
			s.resync(s.keys.AssignmentsOf("n1"))
			s.watch()
			p := s.machine.placements[records.SandboxID(tableRun, 1, 1)]
			if p.entry.GetState() != recordv1.JournalState_JOURNAL_STATE_VOID {
				t.Errorf("the placement is %s", p.entry.GetState())
			}
		})
	}
}

func TestStartOfAForgottenPlacementIsDropped(t *testing.T) {
	for name, late := range map[string]func(*station){
		"at once": func(*station) {},
		"by the next life, before its watch": func(s *station) {
			s.launch()
			for s.reached < PhaseRegistered {
				switch {
				case len(s.inputs) > 0:
					in := s.inputs[0]
					s.inputs = s.inputs[1:]
					s.step(in)
				case len(s.commits) > 0:
					c := s.commits[0]
					s.commits = s.commits[1:]
					s.step(actors.Committed{Tag: c.Tag, Result: s.lab.commit(c.Txn)})
				default:
					s.settleOps()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			s.reach("removed")
			s.withdraw()
			s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
			s.settle()
			if len(s.entries) != 0 {
				t.Fatal("not forgotten")
			}
			late(s)
			s.tell(s.start())
			s.settle()
			if len(s.machine.placements) != 0 || len(s.boxes) != 0 {
				t.Error("the command was started again")
			}
		})
	}
}

func TestAssignmentOfAnotherSessionIsNeverStarted(t *testing.T) {
	s := newStation(t)
	before := s.assignment()
	before.Session--
	s.assign(before)
	if effects := s.tell(&actorv1.Start{Assignment: before, Commit: s.commit}); describe(effects) != "-" {
		t.Errorf("a Start of the session before: %s", describe(effects))
	}
	s.watch()
	s.settle()
	heard[*actorv1.Voided](s)
	later := s.assignment()
	later.Session++
	later.Placement = 2
	s.assign(later)
	s.tell(&actorv1.Start{Assignment: later, Commit: s.commit})
	s.watch()
	s.settle()
	if len(s.boxes) != 0 {
		t.Errorf("sandboxes %v", s.boxes)
	}
}

// TestStopThatTheDriverDoesNotAnswerForIsDelivered: what ended the command was our
// KILL, although no answer says that TERM reached it.
func TestStopThatTheDriverDoesNotAnswerForIsDelivered(t *testing.T) {
	for _, test := range []struct {
		name string
		// code is what the driver says of the end, nil if it hangs there too.
		code *int32
	}{{"an end by KILL", proto.Int32(137)}, {"no word of the end", nil}} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.reach("stopping")
			s.hang = func(verb SandboxVerb) error {
				if verb == VerbSignal || verb == VerbWait && test.code == nil {
					return records.Errorf(records.ClassDeadline, "the supervisor does not answer")
				}
				return nil
			}
			s.settle()
			s.pass(10 * time.Second)
			s.settle()
			for range 60 {
				s.pass(time.Second)
				s.settle()
			}
			exit := heard[*actorv1.Exited](s).GetExit()
			if !exit.GetStopDelivered() || exit.GetStopCause() != recordv1.StopCause_STOP_CAUSE_CANCEL {
				t.Errorf("exit %v", exit)
			}
			if (exit.Code == nil) != (test.code == nil) || exit.GetCode() != int32OrZero(test.code) {
				t.Errorf("exit %v, want the code %v", exit, test.code)
			}
		})
	}
}

func int32OrZero(of *int32) int32 {
	if of == nil {
		return 0
	}
	return *of
}

// TestStopOfACommandThatIsGoneIsNotDelivered: both signals came to nobody, nothing
// was left to kill, and nobody knows the end.
func TestStopOfACommandThatIsGoneIsNotDelivered(t *testing.T) {
	s := newStation(t)
	s.reach("stopping")
	delete(s.boxes, records.SandboxID(tableRun, 1, 1))
	s.settle()
	for range 60 {
		s.pass(time.Second)
		s.settle()
	}
	exit := heard[*actorv1.Exited](s).GetExit()
	if exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST || exit.GetStopDelivered() {
		t.Errorf("exit %v", exit)
	}
}

// TestEndIsToldWhenItIsDurableAndNothingIsLeft: both are under way at one time,
// unless the end is one that a kill could pass for.
func TestEndIsToldWhenItIsDurableAndNothingIsLeft(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	exited := func(s *station) bool {
		return slices.ContainsFunc(s.tells, func(tell actors.Tell) bool {
			_, ok := tell.Message.(*actorv1.Exited)
			return ok
		})
	}
	clears := func(s *station) bool {
		return slices.ContainsFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbKill })
	}
	ended := func(t *testing.T) *station {
		t.Helper()
		s := newStation(t)
		s.reach("running")
		s.tells = nil
		s.end(id, 3, 0)
		s.do(VerbWait)
		return s
	}
	t.Run("the disk is last", func(t *testing.T) {
		s := ended(t)
		s.do(VerbKill)
		s.do(VerbFlush)
		if exited(s) || len(s.ops) > 0 {
			t.Fatalf("told %v, asked for %v before the end is durable", s.tells, s.ops)
		}
		s.write()
		if exit := heard[*actorv1.Exited](s).GetExit(); exit.GetCode() != 3 || !exit.GetLogComplete() {
			t.Errorf("exit %v", exit)
		}
	})
	t.Run("the disk is first", func(t *testing.T) {
		s := ended(t)
		s.write()
		s.do(VerbKill)
		if exited(s) {
			t.Fatal("told before the log is complete")
		}
		s.do(VerbFlush)
		heard[*actorv1.Exited](s)
	})
	t.Run("an end without a code", func(t *testing.T) {
		s := newStation(t)
		s.reach("running")
		s.tells = nil
		delete(s.boxes, id)
		s.do(VerbWait)
		if clears(s) {
			t.Fatal("killed before the end is durable")
		}
		s.write()
		if !clears(s) || exited(s) {
			t.Errorf("told %v, asked for %v", s.tells, s.ops)
		}
	})
}
