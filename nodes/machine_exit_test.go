package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// settleEnds lets every end be one that the driver has on its disk, with nothing left
// to do.
func (s *station) settleEnds() {
	s.ended = func(id string, _ int32) {
		b := s.boxes[id]
		b.alive = false
		b.exit.Durable, b.exit.Settled, b.exit.LogComplete = true, true, true
	}
}

func (s *station) exits() (told []*recordv1.Exit) {
	for _, tell := range s.tells {
		if m, ok := tell.Message.(*actorv1.Exited); ok {
			told = append(told, m.GetExit())
		}
	}
	return told
}

func (s *station) under(verb SandboxVerb) bool {
	return slices.ContainsFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == verb })
}

func (s *station) box() string {
	for id := range s.boxes {
		return id
	}
	s.t.Fatal("there is no sandbox")
	return ""
}

func TestAnEndOnTheDriversDiskIsToldBesideTheJournalAndKeptUntilItHoldsIt(t *testing.T) {
	for _, before := range []string{"journaling started", "running"} {
		t.Run(before, func(t *testing.T) {
			s := newStation(t)
			s.settleEnds()
			s.reach(before)
			s.end(s.box(), 3, 0)
			s.do(VerbWait)
			exits := s.exits()
			if len(exits) != 1 || exits[0].GetCode() != 3 || !exits[0].GetLogComplete() || s.under(VerbKill) || s.under(VerbFlush) {
				t.Fatalf("told %v, under way %v", exits, s.ops)
			}
			if s.under(VerbRemove) {
				t.Fatal("the sandbox is removed while nothing else knows the end")
			}
			s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
			if s.under(VerbRemove) {
				t.Fatal("an acknowledgement passes for the journal")
			}
			for len(s.writes) > 0 {
				s.write()
			}
			if exits := s.exits(); len(exits) != 1 {
				t.Errorf("told again: %v", exits)
			}
			s.do(VerbRemove)
			for len(s.writes) > 0 {
				s.write()
			}
			if len(s.entries) != 0 || len(s.boxes) != 0 {
				t.Errorf("left over: %v, %v", s.entries, s.boxes)
			}
		})
	}
}

func TestAnEndThatWasToldBesideTheJournalIsToldAgainAfterALossOfPower(t *testing.T) {
	s := newStation(t)
	s.settleEnds()
	s.reach("running")
	s.end(s.box(), 3, 0)
	s.do(VerbWait)
	if len(s.exits()) != 1 {
		t.Fatal("it was not told")
	}
	s.boot, s.tells = "boot-2", nil
	s.launch()
	s.settle()
	exits := s.exits()
	if len(exits) == 0 || exits[0].Code == nil || exits[0].GetCode() != 3 {
		t.Errorf("told %v", exits)
	}
}

func TestAnEndIsJournaledBeforeItIsTold(t *testing.T) {
	for name, change := range map[string]func(*station){
		"not on the driver's disk": func(s *station) {
			s.ended = func(id string, _ int32) { s.boxes[id].alive, s.boxes[id].exit.Settled = false, true }
		},
		// That a signal was delivered stands nowhere else.
		"after a stop": func(s *station) {
			s.boxes[s.box()].deaf = true
			s.settleEnds()
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
			s.write()
			s.do(VerbSignal)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			s.reach("running")
			change(s)
			s.end(s.box(), 3, 0)
			s.do(VerbWait)
			if exits := s.exits(); len(exits) != 0 {
				t.Fatalf("told %v", exits)
			}
			for len(s.writes) > 0 {
				s.write()
			}
			if exits := s.exits(); len(exits) != 1 {
				t.Errorf("told %v", exits)
			}
		})
	}
}

func TestAnEndIsToldOnceWhenTheJournalHoldsItToo(t *testing.T) {
	s := newStation(t)
	s.settleEnds()
	s.reach("running")
	s.end(s.box(), 3, 0)
	s.do(VerbWait)
	for len(s.writes) > 0 {
		s.write()
	}
	if exits := s.exits(); len(exits) != 1 {
		t.Errorf("told %v", exits)
	}
}

// A kill of the whole sandbox that is not the engine's is somebody else's: how its command
// would have ended, nobody knows. One of the engine's was seen to end it.
func TestKillFromOutsideIsALossAndOneOfTheEnginesIsNot(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	for _, test := range []struct {
		name, state string
		restart     bool
		lost        bool
	}{
		{name: "while it runs", state: "running", lost: true},
		{name: "while nobody looks", state: "running", restart: true, lost: true},
		{name: "after a stop", state: "signaled"},
		{name: "after a stop whose answer a crash has lost", state: "stopping", restart: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.reach(test.state)
			s.end(id, 137, 9)
			s.boxes[id].exit.Slain = true
			if test.restart {
				s.restart()
			}
			s.settle()
			exit := heard[*actorv1.Exited](s).GetExit()
			switch {
			case test.lost && (exit.Code != nil || exit.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST || !strings.Contains(exit.GetMessage(), "killed from outside") || exit.GetEmptiedAt() == 0):
				t.Errorf("exit %v", exit)
			case !test.lost && (exit.GetCode() != 137 || exit.GetSignal() != 9 || exit.GetStopCause() != recordv1.StopCause_STOP_CAUSE_CANCEL || !exit.GetStopDelivered()):
				t.Errorf("exit %v", exit)
			}
		})
	}
}

// A full disk under the logs is told with the end, and counted for whoever watches the node.
func TestLogThatItsDiskDidNotTakeIsToldAndCounted(t *testing.T) {
	for _, settled := range []bool{true, false} {
		t.Run(fmt.Sprintf("settled %t", settled), func(t *testing.T) {
			s := newStation(t)
			s.ended = func(id string, _ int32) {
				b := s.boxes[id]
				b.alive = false
				b.exit.Durable, b.exit.Settled, b.exit.LogUnwritten = settled, settled, true
			}
			s.reach("running")
			s.end(s.box(), 3, 0)
			s.do(VerbWait)
			if !settled {
				s.do(VerbKill)
				s.do(VerbFlush)
			}
			for len(s.writes) > 0 {
				s.write()
			}
			exits := s.exits()
			if len(exits) == 0 || exits[0].GetCode() != 3 || exits[0].GetLogComplete() || !exits[0].GetLogUnwritten() {
				t.Errorf("told %v", exits)
			}
			if shown := s.machine.shown; shown.LogsIncomplete != 1 || shown.LogsUnwritten != 1 {
				t.Errorf("the node shows %+v", shown)
			}
			if !slices.Contains(s.logs, "log of a run is not complete") {
				t.Errorf("the log says %q", s.logs)
			}
		})
	}
}

// flushed is what a driver answers to a Flush of the box.
func (b *labBox) flushed() SandboxResult {
	if b != nil && b.exit.LogUnwritten {
		return SandboxResult{Err: fmt.Errorf("flush: %w", sandbox.ErrLogUnwritten)}
	}
	return SandboxResult{Complete: true}
}
