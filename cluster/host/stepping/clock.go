package stepping

import (
	"slices"
	"time"
)

// Clock is a clock that stands still until it is moved. It belongs to the
// scheduler's goroutine.
type Clock struct {
	now      time.Duration
	sequence uint64
	// events are ordered by time, then by the order in which they were set.
	events []event
}

type event struct {
	at       time.Duration
	sequence uint64
	deliver  func()
}

// Now is how far the clock was moved.
func (c *Clock) Now() time.Duration { return c.now }

// After calls deliver when the clock has been moved d further, in the call that
// moves it.
func (c *Clock) After(d time.Duration, deliver func()) (stop func()) {
	c.sequence++
	e := event{at: c.now + max(d, 0), sequence: c.sequence, deliver: deliver}
	i, _ := slices.BinarySearchFunc(c.events, e, compare)
	c.events = slices.Insert(c.events, i, e)
	return func() {
		if i, found := slices.BinarySearchFunc(c.events, e, compare); found {
			c.events = slices.Delete(c.events, i, i+1)
		}
	}
}

// Next moves the clock to the earliest event and delivers that. It reports false
// when there is none.
func (c *Clock) Next() bool {
	if len(c.events) == 0 {
		return false
	}
	e := c.events[0]
	c.events = slices.Delete(c.events, 0, 1)
	c.now = e.at
	e.deliver()
	return true
}

// Waiting is how many events there are.
func (c *Clock) Waiting() int { return len(c.events) }

func compare(a, b event) int {
	if a.at != b.at {
		return int(a.at - b.at)
	}
	return int(a.sequence) - int(b.sequence) //nolint:gosec // far below the bound
}
