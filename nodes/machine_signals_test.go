package nodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// signalsOf are the signals that an exit tells, by the time after a moment: "TERM
// 0s yes, KILL 1s ?".
func signalsOf(exit *recordv1.Exit, from time.Time) string {
	var texts []string
	for _, sent := range exit.GetSignals() {
		name := map[int32]string{9: "KILL", 15: "TERM"}[sent.GetSignal()]
		delivered := "?"
		if sent.Delivered != nil {
			delivered = map[bool]string{true: "yes", false: "no"}[sent.GetDelivered()]
		}
		texts = append(texts, fmt.Sprintf("%s %s %s", name, time.UnixMilli(sent.GetAt()).Sub(from), delivered))
		if sent.GetCause() != exit.GetStopCause() {
			texts = append(texts, "for "+records.Word(sent.GetCause()))
		}
	}
	return strings.Join(texts, ", ")
}

// until lets time pass until the exit is told.
func (s *station) until(d time.Duration) {
	for range d / time.Second {
		s.settle()
		s.pass(time.Second)
	}
	s.settle()
}

// The station's assignment has a grace of 10 s.
func TestExitTellsWhichStopSignalsWereSent(t *testing.T) {
	away := func(verb SandboxVerb) error {
		if verb == VerbSignal {
			return records.Errorf(records.ClassUnavailable, "away")
		}
		return nil
	}
	for _, test := range []struct {
		name string
		deaf bool
		// stop is what ends the command; a Stop if it is nil.
		stop func(*station)
		want string
	}{
		{name: "a command that heeds TERM", want: "TERM 0s yes"},
		{name: "a command that ignores TERM", deaf: true, want: "TERM 0s yes, KILL 10s yes"},
		{name: "by force", deaf: true, stop: func(s *station) { s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, true)) }, want: "KILL 0s yes"},
		{name: "forced later", deaf: true, stop: func(s *station) {
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
			s.until(3 * time.Second)
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, true))
		}, want: "TERM 0s yes, KILL 3s yes"},
		{name: "the timeout", deaf: true, stop: func(s *station) { s.now.Boot += time.Hour; s.pass(TimeoutStep) }, want: "TERM 1m0s yes, KILL 1m10s yes"},
		{name: "the driver does not answer", deaf: true, stop: func(s *station) {
			s.hang = away
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
		}, want: "TERM 0s ?, KILL 10s ?"},
		{name: "an end of its own", stop: func(s *station) { s.end(records.SandboxID(tableRun, 1, 1), 0, 0) }},
		{name: "an end just before the signal", stop: func(s *station) {
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
			s.end(records.SandboxID(tableRun, 1, 1), 0, 0)
		}, want: "TERM 0s no"},
		{name: "a command that is gone", stop: func(s *station) {
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
			s.write()
			delete(s.boxes, records.SandboxID(tableRun, 1, 1))
		}, want: "TERM 0s no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.deaf = test.deaf
			s.reach("running")
			from := s.now.Wall
			if test.stop == nil {
				test.stop = func(s *station) { s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false)) }
			}
			test.stop(s)
			s.until(time.Minute)
			exit := heard[*actorv1.Exited](s).GetExit()
			if got := signalsOf(exit, from); got != test.want {
				t.Errorf("signals %q, want %q", got, test.want)
			}
			for _, entry := range s.entries {
				if len(entry.GetSignals()) > 0 {
					t.Errorf("the entry keeps its signals beside those of its exit: %v", entry)
				}
			}
		})
	}
}

// TestStopThatIsHeededCostsNoFurtherWrite: the cause, then the exit with the signal.
// One that is not heeded is written in between.
func TestStopThatIsHeededCostsNoFurtherWrite(t *testing.T) {
	for deaf, want := range map[bool]int{false: 2, true: 3} {
		s := newStation(t)
		s.deaf = deaf
		s.reach("running")
		writes, over := 0, false
		s.stepped = func(_ actors.Input, effects []actors.Effect) {
			for _, effect := range effects {
				if _, ok := effect.(WriteJournal); ok && !over {
					writes++
				}
			}
			if _, ok := told[*actorv1.Exited](effects); ok {
				over = true
			}
		}
		s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
		s.until(12 * time.Second)
		if !over || writes != want {
			t.Errorf("deaf %t: %d writes, want %d", deaf, writes, want)
		}
	}
}

func TestSignalsOutliveACrash(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	for _, test := range []struct {
		name string
		// from is the state after which the node is killed, after a while.
		from      string
		heeds     bool
		after     time.Duration
		meanwhile func(*station)
		want      string
		delivered bool
	}{
		// A fresh grace: the second TERM was sent by the second life.
		{name: "between TERM and KILL", from: "signaled", after: 2 * time.Second, want: "TERM 0s yes, TERM 2s yes, KILL 12s yes", delivered: true},
		{name: "right after TERM", from: "signaled", after: SignalNoteDelay - time.Millisecond, want: "TERM 99ms yes, KILL 10.099s yes", delivered: true},
		{name: "before TERM is answered for", from: "stopping", after: 50 * time.Millisecond, want: "TERM 50ms yes, KILL 10.05s yes", delivered: true},
		{
			name: "and the command ends well meanwhile", from: "signaled", after: 2 * time.Second,
			meanwhile: func(s *station) { s.end(id, 0, 0) }, want: "TERM 0s yes", delivered: true,
		},
		{
			name: "and the command ends well before a note", from: "signaled",
			meanwhile: func(s *station) { s.end(id, 0, 0) },
		},
		{
			name: "and the sandbox is lost meanwhile", from: "signaled", after: 2 * time.Second,
			meanwhile: func(s *station) { delete(s.boxes, id) }, want: "TERM 0s yes", delivered: true,
		},
		{name: "after the exit", from: "emptying", heeds: true, want: "TERM 0s yes", delivered: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.deaf = !test.heeds
			s.reach(test.from)
			from := s.now.Wall
			s.pass(test.after)
			for len(s.writes) > 0 {
				s.write()
			}
			if test.meanwhile != nil {
				test.meanwhile(s)
			}
			s.restart()
			s.until(30 * time.Second)
			exit := heard[*actorv1.Exited](s).GetExit()
			if got := signalsOf(exit, from); got != test.want {
				t.Errorf("signals %q, want %q", got, test.want)
			}
			if test.delivered && !exit.GetStopDelivered() {
				t.Errorf("the stop is not told: %v", exit)
			}
		})
	}
}

func TestSignalsOfManyLivesAreBounded(t *testing.T) {
	s := newStation(t)
	s.deaf = true
	s.reach("signaled")
	from := s.now.Wall
	for range 7 {
		s.pass(time.Second)
		s.settle()
		s.restart()
	}
	s.until(30 * time.Second)
	if got, want := signalsOf(heard[*actorv1.Exited](s).GetExit(), from), "TERM 0s yes, TERM 6s yes, TERM 7s yes, KILL 17s yes"; got != want {
		t.Errorf("signals %q, want %q", got, want)
	}
}

// TestWhoSawTheEndKnowsWhetherASignalReachedTheCommand: neither what the driver said of
// a signal that it took, nor that a crash lost what it said, outweighs that.
func TestWhoSawTheEndKnowsWhetherASignalReachedTheCommand(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	for _, test := range []struct {
		name      string
		from      string
		crash     bool
		signal    int32
		reached   bool
		want      string
		delivered bool
	}{
		{name: "taken too late", from: "signaled", want: "TERM 0s no"},
		{name: "taken in time", from: "signaled", reached: true, want: "TERM 0s yes", delivered: true},
		{name: "in time, before a crash that lost it", from: "signaled", crash: true, reached: true, delivered: true},
		{name: "too late, before a crash, at an end that looks like ours", from: "signaled", crash: true, signal: 15},
		{name: "one that nobody of us has sent", from: "running", reached: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			s.deaf = true
			s.reach(test.from)
			from := s.now.Wall
			for len(s.writes) > 0 {
				s.write()
			}
			s.ended = func(id string, _ int32) {
				s.boxes[id].alive = false
				s.boxes[id].exit.Reached = &test.reached
			}
			s.end(id, map[bool]int32{true: 0, false: 128 + test.signal}[test.signal == 0], test.signal)
			if test.crash {
				s.restart()
			}
			s.until(30 * time.Second)
			exit := heard[*actorv1.Exited](s).GetExit()
			if got := signalsOf(exit, from); got != test.want || exit.GetStopDelivered() != test.delivered {
				t.Errorf("signals %q, want %q; %v", got, test.want, exit)
			}
		})
	}
}
