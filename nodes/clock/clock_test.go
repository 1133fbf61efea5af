package clock

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClockNowReadsAllClocks(t *testing.T) {
	c := New()
	defer c.Close()
	a := c.Now()
	if a.Mono <= 0 || a.Boot < a.Mono-time.Second || !a.WallHealthy {
		t.Errorf("got %+v", a)
	}
	if d := time.Since(a.Wall); d < -time.Second || d > time.Minute {
		t.Errorf("the wall is off by %v", d)
	}
	if b := c.Now(); b.Mono < a.Mono || b.Boot < a.Boot {
		t.Errorf("went back from %+v to %+v", a, b)
	}
}

func TestClockAfterDeliversOnce(t *testing.T) {
	c := New()
	defer c.Close()
	done := make(chan struct{}, 2)
	start := c.Now().Mono
	c.After(5*time.Millisecond, func() { done <- struct{}{} })
	<-done
	if took := c.Now().Mono - start; took < 5*time.Millisecond {
		t.Errorf("delivered after %v", took)
	}
}

func TestClockStoppedTimerDoesNotDeliver(t *testing.T) {
	c := New()
	defer c.Close()
	var delivered atomic.Bool
	stop := c.After(time.Hour, func() { delivered.Store(true) })
	stop()
	stop()
	later := make(chan struct{})
	c.After(time.Millisecond, func() { close(later) })
	<-later
	if delivered.Load() || len(c.timers) != 0 {
		t.Errorf("delivered %v, %d timers are left", delivered.Load(), len(c.timers))
	}
}

func TestClockCloseWaitsForCallbacksAndStopsTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		leave := make(chan struct{})
		var closed, late atomic.Bool
		c.After(0, func() { <-leave })
		c.After(time.Hour, func() { late.Store(true) })
		time.Sleep(time.Millisecond) // in the bubble: the first callback runs
		go func() {
			c.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("closed while a callback ran")
		}
		close(leave)
		synctest.Wait()
		if !closed.Load() {
			t.Error("not closed after the last callback")
		}
		c.After(0, func() { late.Store(true) })()
		c.After(0, func() { late.Store(true) })
		time.Sleep(2 * time.Hour)
		if late.Load() {
			t.Error("delivered after the close")
		}
	})
}

func TestHealth(t *testing.T) {
	type reading struct{ boot, offset time.Duration }
	const s, ms = time.Second, time.Millisecond
	every := func(interval, until time.Duration, offset func(boot time.Duration) time.Duration) (r []reading) {
		for boot := s; boot <= until; boot += interval {
			r = append(r, reading{boot, offset(boot)})
		}
		return r
	}
	stepAt := func(at, size time.Duration) func(time.Duration) time.Duration {
		return func(boot time.Duration) time.Duration {
			if boot >= at {
				return size
			}
			return 0
		}
	}
	cases := []struct {
		name     string
		readings []reading
		want     bool
	}{
		{"first reading", []reading{{s, 0}}, true},
		{"steady", every(s, 300*s, stepAt(0, 0)), true},
		{"step forward just now", every(s, 100*s, stepAt(100*s, s)), false},
		{"step back just now", every(s, 100*s, stepAt(100*s, -s)), false},
		{"step within the bound", every(s, 100*s, stepAt(100*s, 400*ms)), true},
		{"step 59 s ago", every(s, 159*s, stepAt(100*s, s)), false},
		{"step 70 s ago", every(s, 170*s, stepAt(100*s, s)), true},
		{"step there and back", append(every(s, 100*s, stepAt(99*s, s)), reading{101 * s, 0}), false},
		{"small steps that add up", every(s, 100*s, func(b time.Duration) time.Duration { return b / s * 20 * ms }), false},
		{"slewing of NTP", every(s, 300*s, func(b time.Duration) time.Duration { return b / 2000 }), true},
		{"step while nobody looked", []reading{{s, 0}, {900 * s, s}}, false},
		{"step while nobody looked, a minute later", []reading{{s, 0}, {900 * s, s}, {970 * s, s}}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var h health
			epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var boot time.Duration
			for _, r := range c.readings {
				boot = r.boot
				h.observe(boot, epoch.Add(boot+r.offset))
			}
			if got := h.good(boot); got != c.want {
				t.Errorf("healthy: %v, want %v", got, c.want)
			}
		})
	}
}
