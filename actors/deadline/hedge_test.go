package deadline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

var fiveNodes = []string{"n1", "n2", "n3", "n4", "n5"}

// seen is a view that a test changes.
type seen struct{ view *placement.View }

func see(nodes ...string) *seen { return &seen{placement.NewView(nodes)} }

func (s *seen) change(nodes ...string) { s.view = placement.NewView(nodes) }

// ranked makes the actor of shard 3 on the node that has a rank for it.
func ranked(t *testing.T, s *seen, rank int) *bench {
	t.Helper()
	node := s.view.Ranks(actors.KindDeadline, "3")[rank-1]
	return benchOf(t, Config{Keys: testKeys, Node: node, View: func() *placement.View { return s.view }})
}

func (b *bench) activate() { b.step(actors.Received{Message: &actorv1.Activate{}}) }

func TestWakeIsHedgedByTheNextInRank(t *testing.T) {
	for rank := 1; rank <= RanksMax; rank++ {
		t.Run(fmt.Sprintf("rank %d", rank), func(t *testing.T) {
			b := ranked(t, see(fiveNodes...), rank)
			delay := time.Duration(rank-1) * hedgeAfter
			b.change(true)
			b.change(false, live("a", 1, 5*time.Second), live("b", 1, 5*time.Second))
			b.until(5*time.Second + delay - time.Millisecond)
			if got := b.take(); len(got) > 0 {
				t.Fatalf("woken early: %v", got)
			}
			b.change(false, live("b", 1, time.Minute)) // another has woken it
			b.until(5*time.Second + delay + time.Millisecond)
			if got := b.take(); !slices.Equal(got, []string{"a"}) {
				t.Fatalf("woken: %v", got)
			}
			b.until(5*time.Second + delay + repeatAfter + time.Millisecond)
			if got := b.take(); !slices.Equal(got, []string{"a"}) {
				t.Fatalf("woken again: %v", got)
			}
		})
	}
}

func TestTakeoverIsHedgedByTheNextInRank(t *testing.T) {
	b := ranked(t, see(fiveNodes...), 2)
	b.change(true, live("a", 1, time.Hour), live("b", 1, time.Hour))
	b.until(hedgeAfter - time.Millisecond)
	if got := b.take(); len(got) > 0 {
		t.Fatalf("woken early: %v", got)
	}
	b.until(hedgeAfter + takeoverSpread/2 + 10*time.Millisecond)
	if got := b.take(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("woken: %v", got)
	}
}

func TestPromotionTakesEffectOnWhatWaits(t *testing.T) {
	s := see(fiveNodes...)
	ranks := s.view.Ranks(actors.KindDeadline, "3")
	stays := "a"
	for slices.Contains(ranks[:2], s.view.First(actors.KindRun, stays)) {
		stays += "a"
	}
	b := ranked(t, s, 3)
	b.change(true)
	b.change(false, live(stays, 1, 5*time.Second))
	b.until(4 * time.Second)
	s.change(ranks[2:]...)
	b.activate()
	b.until(5*time.Second + 10*time.Millisecond)
	if got := b.take(); !slices.Equal(got, []string{stays}) {
		t.Errorf("woken: %v", got)
	}
}

func TestRunsWhoseActorsMoveAreWoken(t *testing.T) {
	s := see(fiveNodes...)
	ranks := s.view.Ranks(actors.KindDeadline, "3")
	gone := ranks[4] // the actor's own rank stays
	b := ranked(t, s, 1)
	b.change(true)
	var runs, moved []string
	for i := range 40 {
		run := fmt.Sprintf("r.default.%02d", i)
		runs = append(runs, run)
		if s.view.First(actors.KindRun, run) == gone {
			moved = append(moved, run)
		}
		b.change(false, live(run, 1, time.Hour))
	}
	if len(moved) < 2 || len(moved) == len(runs) {
		t.Fatalf("%d of %d runs are on %s", len(moved), len(runs), gone)
	}
	b.until(time.Second)
	s.change(ranks[:4]...)
	b.activate()
	b.until(time.Second + takeoverSpread - time.Millisecond)
	if got := b.take(); !slices.Equal(got, moved) {
		t.Errorf("woken %v, moved %v", got, moved)
	}
	// The same nodes in a new view move nothing.
	for _, run := range moved {
		b.answer(run, time.Hour)
	}
	s.change(ranks[:4]...)
	b.activate()
	b.until(10 * time.Second)
	if got := b.take(); len(got) > 0 {
		t.Errorf("woken again: %v", got)
	}
}

func TestActorWithoutARankPassivatesAndWakesNobody(t *testing.T) {
	s := see(fiveNodes...)
	ranks := s.view.Ranks(actors.KindDeadline, "3")
	t.Run("from the beginning", func(t *testing.T) {
		b := ranked(t, s, RanksMax+1)
		if b.follows != 0 || b.passivations != 1 {
			t.Errorf("follows %d times, passivates %d times", b.follows, b.passivations)
		}
	})
	t.Run("after a change", func(t *testing.T) {
		s.change(ranks[1:]...)
		b := ranked(t, s, RanksMax)
		b.change(true)
		b.change(false, live("a", 1, 5*time.Second))
		s.change(ranks...)
		b.activate()
		if b.passivations != 1 {
			t.Fatalf("passivates %d times", b.passivations)
		}
		b.until(10 * time.Second)
		if got := b.take(); len(got) > 0 {
			t.Errorf("woken: %v", got)
		}
		// Refused, and it belongs here again: it goes on where it was.
		s.change(ranks[1:]...)
		b.activate()
		b.until(12 * time.Second)
		if got := b.take(); !slices.Contains(got, "a") || b.follows != 1 {
			t.Errorf("woken: %v, follows %d times", got, b.follows)
		}
	})
	t.Run("that gets one before it is stopped", func(t *testing.T) {
		s.change(ranks...)
		b := ranked(t, s, RanksMax+1)
		s.change(ranks[1:]...)
		b.activate()
		if b.follows != 1 {
			t.Errorf("follows %d times", b.follows)
		}
	})
}

func TestActorOfNoShardPassivates(t *testing.T) {
	for _, identity := range []string{"64", "-1", "x", ""} {
		effects := New(identity, Config{Keys: testKeys}).Step(actors.Instant{}, actors.Activated{})
		if !slices.ContainsFunc(effects, func(e actors.Effect) bool { _, ok := e.(actors.Passivate); return ok }) {
			t.Errorf("%q: %v", identity, effects)
		}
	}
}
