package clock

import "time"

const (
	// stepMax is by how much the wall may move against boottime within healthWindow
	// and be trusted. Corrections of NTP by slewing stay below 30 ms a minute.
	stepMax = 500 * time.Millisecond
	// healthWindow is how long the wall is not trusted after a step was seen.
	healthWindow = time.Minute
	// healthSlots divide the window; a step is forgotten one slot late at most.
	healthSlots = 12
	slotLength  = healthWindow / healthSlots
)

// health watches how the wall moves against boottime. It is pure.
type health struct {
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

// observe takes one reading of both clocks, made at one moment.
func (h *health) observe(boot time.Duration, wall time.Time) {
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

// good reports whether the wall has kept pace within the window before boot.
func (h *health) good(boot time.Duration) bool {
	newest := int64(boot/slotLength) + 1
	low, high := h.last, h.last
	for _, s := range h.slots {
		if s.number > 0 && newest-s.number <= healthSlots {
			low, high = min(low, s.min), max(high, s.max)
		}
	}
	return high-low <= stepMax
}
