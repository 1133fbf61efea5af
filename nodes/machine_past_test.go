package nodes

import (
	"slices"
	"testing"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// pastOf returns how many ranks the messages of a type that were told have passed over.
func pastOf[M any](s *station) (past []int) {
	for _, tell := range s.tells {
		if _, ok := tell.Message.(M); ok {
			past = append(past, tell.Past)
		}
	}
	return past
}

func TestReportsThatNobodyAcknowledgesPassOverTheOwnerAndComeAround(t *testing.T) {
	const ranks = actors.PastHere + 1
	for _, c := range []struct {
		name string
		end  func(s *station)
		told func(s *station) []int
		// remind has somebody who knows the placement ask for it now and then.
		remind bool
	}{
		{name: "exited", end: endOfCommand, told: pastOf[*actorv1.Exited]},
		{name: "exited and reminded", end: endOfCommand, told: pastOf[*actorv1.Exited], remind: true},
		{name: "voided", end: endBeforeStart, told: pastOf[*actorv1.Voided]},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStation(t)
			c.end(s)
			for len(c.told(s)) <= ranks*actors.RepeatsPerRank {
				s.pass(RetryMax)
				s.settle()
				if c.remind {
					s.tell(s.start())
				}
			}
			for i, past := range c.told(s) {
				if past != actors.Past(i) {
					t.Fatalf("passed over %v", c.told(s))
				}
			}
			s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision})
			told := len(c.told(s))
			s.pass(10 * RetryMax)
			if got := len(c.told(s)); got != told {
				t.Errorf("told %d times more after the acknowledgement", got-told)
			}
		})
	}
}

func endOfCommand(s *station) {
	s.reach("running")
	s.end(s.box(), 3, 0)
	s.settle()
}

func endBeforeStart(s *station) {
	s.reach("creating")
	s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
	s.settle()
}

func TestStartThatWasNotHeardIsToldOneRankFurtherEachTime(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	for range actors.PastHere + 1 {
		s.tell(s.start())
	}
	if got := pastOf[*actorv1.Started](s); !slices.Equal(got, []int{0, 1, 2, actors.PastHere, 0}) {
		t.Errorf("passed over %v", got)
	}
}
