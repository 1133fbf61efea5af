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
