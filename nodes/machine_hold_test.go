package nodes

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// toldOf counts what was told of a kind.
func toldOf[M any](s *station) (n int) {
	for _, tell := range s.tells {
		if _, ok := tell.Message.(M); ok {
			n++
		}
	}
	return n
}

func TestEndOvertakesTheNewsOfItsStart(t *testing.T) {
	for _, test := range []struct {
		name string
		// after is when the command ends.
		after   time.Duration
		starts  int
		written int
	}{
		{"at once", 0, 0, 1},
		{"just in time", StartHold - 1, 0, 1},
		{"when the start is told", StartHold, 1, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.reach("started, held")
			s.tells = nil
			id := records.SandboxID(tableRun, 1, 1)
			s.pass(test.after)
			written := 0
			for len(s.writes) > 0 {
				s.write()
				written++
			}
			from := s.now.Mono
			s.end(id, 3, 0)
			s.do(VerbWait)
			written += len(s.writes)
			s.settle()
			exit := heard[*actorv1.Exited](s).GetExit()
			if exit.GetCode() != 3 || exit.GetStartedAt() == 0 {
				t.Errorf("told %v", exit)
			}
			if s.now.Mono != from {
				t.Errorf("the end was told %s late", s.now.Mono-from)
			}
			s.pass(time.Second)
			s.settle()
			if starts := toldOf[*actorv1.Started](s); starts != test.starts {
				t.Errorf("%d starts were told, want %d", starts, test.starts)
			}
			if written != test.written {
				t.Errorf("%d writes until the end was told, want %d", written, test.written)
			}
		})
	}
}

func TestNewsOfStartsAreHeldByOneTimer(t *testing.T) {
	s := newStation(t)
	var ids []string
	timers := 0
	s.stepped = func(in actors.Input, _ []actors.Effect) {
		if fired, ok := in.(actors.TimerFired); ok && fired.Name == timerHeld {
			timers++
		}
	}
	seen := map[string]time.Duration{}
	told := func() {
		for _, tell := range s.tells {
			if started, ok := tell.Message.(*actorv1.Started); ok && seen[started.GetRun()] == 0 {
				seen[started.GetRun()] = s.now.Mono
			}
		}
	}
	from := map[string]time.Duration{}
	for i := range 5 {
		a := s.assignment()
		a.Run = fmt.Sprintf("r.default.many%d", i)
		s.assign(a)
		s.settle()
		ids, from[a.GetRun()] = append(ids, a.GetRun()), s.now.Mono
		s.pass(time.Millisecond)
		s.settle()
		told()
	}
	for range 10 {
		s.pass(time.Millisecond)
		s.settle()
		told()
	}
	for _, run := range ids {
		if waited := seen[run] - from[run]; seen[run] == 0 || waited < StartHold/2 || waited > StartHold {
			t.Errorf("the start of %s was told after %s, want %s to %s", run, waited, StartHold/2, StartHold)
		}
	}
	if timers != 2 {
		t.Errorf("the timer fired %d times for five starts within a hold, want twice", timers)
	}
	if len(s.machine.held) != 0 {
		t.Errorf("%d starts are still held", len(s.machine.held))
	}
}

func TestHeldStartIsNotToldBeforeTheJournalHoldsIt(t *testing.T) {
	s := newStation(t)
	s.reach("started, held")
	s.tells = nil
	// What reminds is answered by what is told anyway.
	s.tell(stopMessage(recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED, false))
	if n := toldOf[*actorv1.Started](s); n != 0 {
		t.Fatal("it was told and is in no journal")
	}
	s.pass(StartHold)
	if n := toldOf[*actorv1.Started](s); n != 0 {
		t.Fatal("it was told before it was written")
	}
	s.settle()
	if n := toldOf[*actorv1.Started](s); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}
