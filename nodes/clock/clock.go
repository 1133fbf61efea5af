// Package clock is the node's time in production: the clocks of the kernel and the
// timers of the runtime, as the actors' Clock port.
//
// Three clocks are read together, for each is right for something else: the
// monotonic one for waiting, boottime for promises that must hold through a
// suspend, and the wall for what people read and schedules mean. The wall is
// trusted only while it keeps pace with boottime.
package clock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes/pace"
)

const (
	// readSpanMax is how long one reading may take for its clocks to belong together.
	readSpanMax = 10 * time.Millisecond
	// readsMax is how often a reading that took too long is tried again.
	readsMax = 3
)

// Clock implements actors.Clock. Its methods may be called from any goroutine.
type Clock struct {
	start     time.Time
	startMono time.Duration
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu     sync.Mutex
	health pace.Health
	timers map[*timer]struct{}
	closed bool
}

type timer struct{ timer *time.Timer }

var _ actors.Clock = (*Clock)(nil)

// New starts a clock. It must be closed.
func New() *Clock {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Clock{start: time.Now(), startMono: kernel(unix.CLOCK_MONOTONIC), cancel: cancel, timers: map[*timer]struct{}{}}
	c.Now()
	c.running.Go(func() { c.sample(ctx) })
	return c
}

// sample looks at the wall until the context ends.
func (c *Clock) sample(ctx context.Context) {
	ticker := time.NewTicker(pace.SampleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.Now()
		case <-ctx.Done():
			return
		}
	}
}

// Now reads all clocks at one moment.
func (c *Clock) Now() actors.Instant {
	now, together := c.read()
	for range readsMax - 1 {
		if together {
			break
		}
		now, together = c.read()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if together {
		c.health.Observe(now.Boot, now.Wall)
	}
	now.WallHealthy = c.health.Good(now.Boot)
	return now
}

// read reports false when the process was held up between the readings.
func (c *Clock) read() (now actors.Instant, together bool) {
	boot := kernel(unix.CLOCK_BOOTTIME)
	wall := time.Now()
	together = kernel(unix.CLOCK_BOOTTIME)-boot <= readSpanMax
	return actors.Instant{Mono: c.startMono + wall.Sub(c.start), Boot: boot, Wall: wall.Round(0)}, together
}

// After calls deliver once, d from now, on a goroutine of its own.
func (c *Clock) After(d time.Duration, deliver func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return func() {}
	}
	t := &timer{}
	c.timers[t] = struct{}{}
	t.timer = time.AfterFunc(d, func() {
		if c.take(t) {
			defer c.running.Done()
			deliver()
		}
	})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, t)
		t.timer.Stop()
	}
}

// take reports whether a timer that has run down is still wanted, and counts its
// callback as running.
func (c *Clock) take(t *timer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, wanted := c.timers[t]; !wanted {
		return false
	}
	delete(c.timers, t)
	c.running.Add(1)
	return true
}

// Close stops all timers and waits for the callbacks that run. Later calls of After
// do nothing. A callback must not call it.
func (c *Clock) Close() {
	c.mu.Lock()
	c.closed = true
	for t := range c.timers {
		t.timer.Stop()
	}
	c.timers = nil
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// kernel reads one of the kernel's clocks. Linux has both that are used; without
// them nothing of a node's promises holds.
func kernel(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock: read kernel clock %d: %v", id, err))
	}
	return time.Duration(ts.Nano())
}
