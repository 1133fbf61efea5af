package deadline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
)

func TestWakesThatNobodyAnswersPassOverTheOwnerAndComeAround(t *testing.T) {
	b := newBench(t)
	b.change(true)
	b.change(false, live("a", 0, time.Second))
	const ranks = actors.PastHere + 1
	b.until((2*ranks*actors.RepeatsPerRank + 1) * time.Second)
	for i, past := range b.past {
		if want := i / actors.RepeatsPerRank % ranks; past != want {
			t.Fatalf("passed over %v", b.past)
		}
	}
	if !slices.Contains(b.past, actors.PastHere) || b.past[ranks*actors.RepeatsPerRank] != 0 {
		t.Errorf("passed over %v", b.past)
	}
}

func TestWakesBeginAtTheOwnerAgainAfterASignOfLife(t *testing.T) {
	for _, c := range []struct {
		name string
		sign func(b *bench)
	}{
		{"an answer that says when", func(b *bench) { b.answer("a", time.Second) }},
		{"an answer that the key is about to move", func(b *bench) { b.answer("a", 0) }},
		{"the key moves", func(b *bench) { b.change(false, live("a", 0, b.now.Mono+time.Second)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.change(true)
			b.change(false, live("a", 0, time.Second))
			b.until((actors.RepeatsPerRank + 2) * time.Second)
			if last := b.past[len(b.past)-1]; last != 1 {
				t.Fatalf("passed over %v", b.past)
			}
			b.past = nil
			c.sign(b)
			b.until(b.now.Mono + actors.RepeatsPerRank*time.Second)
			if !slices.Equal(b.past, make([]int, actors.RepeatsPerRank)) {
				t.Errorf("passed over %v", b.past)
			}
		})
	}
}

func TestWakesThatPassOverOwnersAreBoundedAndAllHaveTheirTurn(t *testing.T) {
	b := newBench(t)
	b.change(true)
	const runs = 2 * pastPerSecond
	for i := range runs {
		b.change(false, live(fmt.Sprintf("r%03d", i), 0, 500*time.Millisecond))
	}
	served := map[string]bool{}
	for second := range 4 * actors.RepeatsPerRank {
		b.until(time.Duration(second+1) * time.Second)
		passed := 0
		for i, past := range b.past {
			if past > 0 {
				passed++
				served[b.woken[i]] = true
			}
		}
		if passed > pastPerSecond {
			t.Fatalf("%d passed over their owner within a second", passed)
		}
		if woken := b.take(); len(woken) != runs {
			t.Fatalf("%d of %d woken", len(woken), runs)
		}
		b.past = nil
		for run := range served {
			b.answer(run, time.Second-time.Millisecond*500)
		}
	}
	if len(served) != runs {
		t.Errorf("%d of %d had their turn", len(served), runs)
	}
}
