package null

import (
	"math"
	"time"
)

// ends are the sandboxes that wait for their end, the next one first. One timer serves
// all of them. The driver's lock guards it.
type ends struct {
	heap endHeap
	// timer fires at the time wound, or later; wound is 0 when it does not run.
	timer *time.Timer
	wound int64
}

// due is when its program ends a started sandbox.
func (x *box) due() int64 {
	if after := int64(x.program.After); after <= math.MaxInt64-x.started {
		return x.started + after
	}
	return math.MaxInt64
}

// wind sets the timer to the next end, unless it fires before that. The caller holds
// the lock.
func (d *Driver) wind() {
	e := &d.ends
	if d.closed || e.heap.Len() == 0 {
		if e.timer != nil && d.closed {
			e.timer.Stop()
		}
		return
	}
	at := e.heap[0].due()
	if e.wound != 0 && e.wound <= at {
		return
	}
	e.wound = at
	left := time.Until(time.Unix(0, at))
	if e.timer == nil {
		e.timer = time.AfterFunc(left, d.ring)
	} else {
		e.timer.Reset(left)
	}
}

// ring ends what is due.
func (d *Driver) ring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.ends.wound = 0
	for now := time.Now().UnixNano(); d.ends.heap.Len() > 0 && d.ends.heap[0].due() <= now; {
		d.finish(d.ends.heap[0])
	}
	d.wind()
}

// endHeap orders by time. Its methods are for container/heap alone.
type endHeap []*box

// Len is the number of sandboxes.
func (h endHeap) Len() int { return len(h) }

// Less orders by time.
func (h endHeap) Less(i, j int) bool { return h[i].due() < h[j].due() }

// Swap swaps two seats.
func (h endHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].seat, h[j].seat = i+1, j+1
}

// Push appends.
func (h *endHeap) Push(x any) {
	if x, ok := x.(*box); ok {
		*h = append(*h, x)
		x.seat = len(*h)
	}
}

// Pop takes the last off.
func (h *endHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	x.seat = 0
	return x
}
