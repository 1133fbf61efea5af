package machine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/simulation/history"
)

// since is how far each clock has gone between two readings.
func since(a, b actors.Instant) [3]time.Duration {
	return [3]time.Duration{b.Mono - a.Mono, b.Boot - a.Boot, b.Wall.Sub(a.Wall)}
}

func TestPausesAreCountedByTheClocksThatCountThem(t *testing.T) {
	const s = second
	cases := []struct {
		how  Pause
		want [3]time.Duration // mono, boot, wall
		// fired is when a timer of 3 s that was set 1 s before a pause of 10 s fires.
		fired time.Duration
	}{
		{Stopped, [3]time.Duration{20 * s, 20 * s, 20 * s}, 11 * s},
		{Suspended, [3]time.Duration{10 * s, 20 * s, 20 * s}, 13 * s},
		{Frozen, [3]time.Duration{10 * s, 10 * s, 10 * s}, 13 * s},
	}
	for _, c := range cases {
		t.Run(c.how.String(), func(t *testing.T) {
			b := newBench(t, 1, calm())
			before, begin := b.life.Clock().Now(), b.line.Now()
			var fired time.Duration
			b.life.Clock().After(3*s, func() { fired = b.line.Now() - begin })
			b.pass(s)
			b.Pause(c.how)
			if !b.Paused() {
				t.Error("it is not paused")
			}
			b.pass(10 * s)
			if fired != 0 {
				t.Error("a timer fired in a pause")
			}
			b.Resume()
			b.pass(9 * s)
			if got := since(before, b.life.Clock().Now()); got != c.want {
				t.Errorf("the clocks counted %v, want %v", got, c.want)
			}
			if fired != c.fired {
				t.Errorf("the timer fired at %v, want %v", fired, c.fired)
			}
			outside := slices.ContainsFunc(b.events, func(e history.Event) bool {
				f, ok := e.Detail.(history.Fault)
				return ok && f.Outside
			})
			if outside != (c.how == Frozen) {
				t.Errorf("noted as outside the model: %v", outside)
			}
		})
	}
}

func TestPauseHoldsDeliveriesInOrder(t *testing.T) {
	b := newBench(t, 1, calm())
	var got []int
	note := func(n int) func() { return func() { got = append(got, n) } }
	b.Pause(Stopped)
	b.life.Clock().After(second, note(1))
	b.pass(2 * second)
	b.life.Deliver(note(2))
	stopped := b.life.Clock().After(second, note(9))
	b.life.Clock().After(second, func() {
		note(3)()
		b.Pause(Stopped) // again, before the rest
	})
	b.pass(2 * second)
	stopped()
	b.life.Deliver(note(4))
	b.Resume()
	b.life.Deliver(note(5))
	b.pass(0)
	if want := []int{1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	b.Resume()
	b.life.Deliver(note(6))
	b.pass(0)
	b.life.Deliver(note(7))
	if want := []int{1, 2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	b.Pause(Stopped)
	b.life.Deliver(note(8))
	b.life.Crash()
	b.Resume()
	b.pass(second)
	if len(got) != 7 {
		t.Errorf("a dead daemon got %v", got)
	}
}

func TestDriftedMachineRunsOnItsOwnRate(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Rate(100_000) // a tenth fast, far beyond the bound
	before, begin := b.life.Clock().Now(), b.line.Now()
	var fired time.Duration
	b.life.Clock().After(11*second, func() { fired = b.line.Now() - begin })
	b.pass(20 * second)
	if got := since(before, b.life.Clock().Now()); got != [3]time.Duration{22 * second, 22 * second, 22 * second} {
		t.Errorf("the clocks counted %v", got)
	}
	if fired != 10*second {
		t.Errorf("a timer of 11 s fired after %v", fired)
	}
	if texts := b.texts(history.KindFault); len(texts) != 1 {
		t.Errorf("faults %v", texts)
	}
	b.life.Clock().After(11*second, func() { fired = b.line.Now() - begin })
	b.pass(5 * second)
	b.Rate(0) // with 5.5 s left
	b.pass(20 * second)
	if want := 30*second + 500*ms; fired != want {
		t.Errorf("it fired at %v, want %v", fired, want)
	}
	b.Rate(9_000) // within the bound
	if texts := b.texts(history.KindFault); len(texts) != 2 {
		t.Errorf("faults %v", texts)
	}
}

func TestWallIsJudgedAsInProduction(t *testing.T) {
	b := newBench(t, 1, calm())
	healthy := func() bool { return b.life.Clock().Now().WallHealthy }
	if !healthy() {
		t.Error("a fresh clock is unhealthy")
	}
	b.pass(10 * time.Minute)
	b.StepWall(24 * time.Hour)
	if healthy() || b.WallOffset() != 24*time.Hour {
		t.Errorf("a step of a day is healthy, or lost: %v", b.WallOffset())
	}
	b.pass(10 * second)
	b.StepWall(-24 * time.Hour)
	b.pass(59 * second)
	if healthy() {
		t.Error("a step there and back is healthy")
	}
	b.pass(20 * second)
	if !healthy() {
		t.Error("it does not heal")
	}
	b.StepWall(400 * ms)
	if !healthy() {
		t.Error("a small step is unhealthy")
	}
	b.Slew(500)
	b.pass(time.Hour)
	if !healthy() {
		t.Error("a slow correction is unhealthy when nobody looked at it for long")
	}
	b.Slew(20_000)
	b.pass(time.Hour)
	if healthy() {
		t.Error("a fast one is healthy")
	}
}

func TestRebootBeginsTheClocksAgain(t *testing.T) {
	b := newBench(t, 1, calm())
	b.pass(time.Hour)
	id, before := b.BootID(), b.life.Clock().Now()
	fired := false
	b.life.Clock().After(second, func() { fired = true })
	b.Pause(Frozen)
	b.PowerOff()
	if !b.Off() || b.Paused() || !b.life.Dead() || b.Daemon() != nil {
		t.Error("there is life without power")
	}
	b.pass(time.Minute)
	b.PowerOn()
	b.life = b.Launch()
	after := b.life.Clock().Now()
	if b.BootID() == id || after.Mono > bootMax || after.Boot > bootMax || after.Mono < bootMin || fired {
		t.Errorf("boot %s, clocks %+v, old timer fired: %v", b.BootID(), after, fired)
	}
	if d := after.Wall.Sub(before.Wall); d != 60*second {
		t.Errorf("the wall moved by %v", d)
	}
}

func TestUnscaleIsTheLeastTimeThatScalesToAtLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(40*24*time.Hour)).Draw(t, "d"))
		ppm := rapid.Int64Range(-500_000, 1_000_000).Draw(t, "ppm")
		x := unscale(d, ppm)
		if scale(x, ppm) < d {
			t.Fatalf("%v at %d: %v is too short by %v", d, ppm, x, d-scale(x, ppm))
		}
		if x > 3 && scale(x-3, ppm) >= d && d > 0 {
			t.Fatalf("%v at %d: %v is too long", d, ppm, x)
		}
	})
}
