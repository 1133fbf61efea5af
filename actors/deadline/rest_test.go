package deadline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

func TestTakeoverLeavesAloneWhatRests(t *testing.T) {
	for _, c := range []struct {
		name    string
		event   records.Event
		unwell  bool
		nodes   []records.Event
		woken   bool
		session bool
	}{
		{name: "runs for an hour", event: placed("a", time.Hour)},
		{name: "runs for a little more than a minute", event: placed("a", waitingMax+time.Second)},
		{name: "placed, and waits for its start or its end", event: placed("a", waitingMax), woken: true},
		{name: "placed, by a clock that was not trusted", event: placed("a", -24*time.Hour), woken: true},
		{name: "waits for a node", event: live("a", 0, time.Hour), woken: true},
		{name: "runs, and the clock here can not be trusted", event: placed("a", time.Hour), unwell: true, woken: true},
		{name: "runs in a session that is over", event: placedLive("a", "n1", 10), nodes: []records.Event{session("n1", 20)}, session: true, woken: true},
		{name: "runs in a session that lives", event: placedLive("a", "n1", 10), nodes: []records.Event{session("n1", 10)}, session: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			if c.session {
				b = newSessionsBench(t, c.nodes...)
				b.machine.taken = false // its first Reset is this one
				b.take()
			}
			b.now.WallHealthy = !c.unwell
			b.change(true, c.event)
			b.until(b.now.Mono + takeoverSpread - time.Millisecond)
			if got := len(b.take()) > 0; got != c.woken {
				t.Errorf("woken: %v, want %v", got, c.woken)
			}
		})
	}
}

// What a shard at rest costs is the looks of its actor, whatever lives in it.
func TestShardAtRestCostsAsMuchWithManyRunsAsWithOne(t *testing.T) {
	looks := func(runs int) (turns, wakes int) {
		b := newBench(t)
		events := make([]records.Event, runs)
		for i := range events {
			events[i] = placed(fmt.Sprintf("r%06d", i), 24*time.Hour)
		}
		b.change(true, events...)
		for end := b.now.Mono + 10*time.Minute; b.now.Mono < end; turns++ {
			b.until(max(b.timer, b.now.Mono+time.Millisecond))
		}
		return turns, len(b.take())
	}
	turns, wakes := looks(1)
	if many, more := looks(20_000); many != turns || more != 0 || wakes != 0 {
		t.Errorf("%d turns and %d wakes in ten minutes with 20,000 runs, %d and %d with one", many, more, turns, wakes)
	}
}

func TestTakeoverOfVeryManyIsSpreadByTheirNumber(t *testing.T) {
	const runs = 3 * takeoverWakesPerSecond
	b := newBench(t)
	events := make([]records.Event, runs)
	for i := range events {
		events[i] = live(fmt.Sprintf("r%06d", i), 0, 0)
	}
	b.change(true, events...)
	b.until(b.now.Mono + time.Second - time.Millisecond)
	if got := len(slices.Compact(slices.Sorted(slices.Values(b.take())))); got > takeoverWakesPerSecond+wakesPerTurn {
		t.Errorf("%d of %d woken within the first second", got, runs)
	}
}

// A store that was wiped, or put back to an older copy, counts its revisions anew.
func TestWhatAStoreHoldsThatHasGoneBackIsWoken(t *testing.T) {
	b := newBench(t)
	b.change(true, live("lost", 0, time.Hour))
	b.until(2 * time.Second)
	b.take()
	b.revision = 3
	b.change(true)
	b.change(false, live("fresh", 0, 4*time.Second))
	b.until(3900 * time.Millisecond)
	if got := b.take(); len(got) != 0 {
		t.Fatalf("woken too early: %v", got)
	}
	b.until(4100 * time.Millisecond)
	if got := b.take(); !slices.Equal(got, []string{"fresh"}) {
		t.Errorf("woken: %v", got)
	}
	b.until(2 * time.Hour)
	if got := b.take(); slices.Contains(got, "lost") {
		t.Error("a run that the store has lost is woken")
	}
}
