// Package pace judges whether a wall clock can be trusted: it can while it keeps pace
// with boottime. It is pure, so that a simulated clock is judged as a real one.
package pace

import (
	"slices"
	"time"
)

const (
	// SampleInterval is how often the wall is to be looked at when nobody asks, so that
	// a step is seen soon and a slow correction is not taken for one.
	SampleInterval = 5 * time.Second
	// stepMax is by how much the wall may move against boottime within healthWindow
	// and be trusted. Corrections of NTP by slewing stay below 30 ms a minute.
	stepMax = 500 * time.Millisecond
	// healthWindow is how long the wall is not trusted after a step was seen.
	healthWindow = time.Minute
	// healthSlots divide the window; a step is forgotten one slot late at most.
	healthSlots = 12
	slotLength  = healthWindow / healthSlots
)

// LeadMax is by how much a wall clock may differ from the middle of all and be trusted:
// more than NTP leaves, and more than what a comparison by messages is wrong by.
const LeadMax = 10 * time.Second

// Lead is by how much a clock is ahead of the middle of all, itself among them, where
// each is given by its offset from any one clock; negative when it is behind. Between
// the two in the middle of an even number nobody knows who is right, so whatever lies
// there is not ahead, and of two clocks neither is.
func Lead(own time.Duration, others []time.Duration) time.Duration {
	all := append(slices.Clone(others), own)
	slices.Sort(all)
	low, high := all[(len(all)-1)/2], all[len(all)/2]
	switch {
	case own > high:
		return own - high
	case own < low:
		return own - low
	default:
		return 0
	}
}

// Health watches how the wall moves against boottime. The zero value has seen nothing.
// It belongs to one goroutine.
type Health struct {
	slots [healthSlots + 1]slot
	// last is the newest offset; it opens the next slot, so that a step is seen
	// however long nobody looked.
	last time.Duration
	seen bool
}

// slot is the range of offsets (wall minus boottime) seen in one slot of time.
type slot struct {
	number   int64
	min, max time.Duration
}

// Observe takes one reading of both clocks, made at one moment.
func (h *Health) Observe(boot time.Duration, wall time.Time) {
	offset := time.Duration(wall.UnixNano()) - boot
	if !h.seen {
		h.seen, h.last = true, offset
	}
	number := int64(boot/slotLength) + 1
	s := &h.slots[number%int64(len(h.slots))]
	if s.number != number {
		*s = slot{number: number, min: h.last, max: h.last}
	}
	s.min, s.max = min(s.min, offset), max(s.max, offset)
	h.last = offset
}

// Good reports whether the wall has kept pace within the window before boot.
func (h *Health) Good(boot time.Duration) bool {
	newest := int64(boot/slotLength) + 1
	low, high := h.last, h.last
	for _, s := range h.slots {
		if s.number > 0 && newest-s.number <= healthSlots {
			low, high = min(low, s.min), max(high, s.max)
		}
	}
	return high-low <= stepMax
}
