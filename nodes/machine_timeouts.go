package nodes

import (
	"container/heap"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// timerTimeouts is the one timer of all execution timeouts.
const timerTimeouts = "timeouts"

// timeouts holds the running placements that have an execution timeout, the next to
// end first. One timer serves all of them, so that a node at rest wakes once in a
// TimeoutStep, however much it runs.
type timeouts struct {
	heap timeoutHeap
	// armed is the boottime at which the timer fires; 0 when it does not run.
	armed time.Duration
}

// watchTimeout enforces the execution timeout on the clock that counts suspended
// time.
func (m *Machine) watchTimeout(p *placement) {
	if p.entry.GetTimeoutMs() <= 0 || p.timeoutSeat > 0 {
		return
	}
	p.timeoutAt = time.Duration(p.entry.GetStartedBoottimeNs()) + time.Duration(p.entry.GetTimeoutMs())*time.Millisecond
	if p.timeoutAt <= m.now.Boot {
		m.timeOut(p)
		return
	}
	heap.Push(&m.timeouts.heap, p)
	m.armTimeouts()
}

// unwatchTimeout forgets the timeout of a placement. The timer runs on: at worst it
// fires once for nothing.
func (m *Machine) unwatchTimeout(p *placement) {
	if p.timeoutSeat > 0 {
		heap.Remove(&m.timeouts.heap, int(p.timeoutSeat)-1)
	}
}

func (m *Machine) timeOut(p *placement) {
	m.stop(p, stopWish{cause: recordv1.StopCause_STOP_CAUSE_TIMEOUT, reason: recordv1.Reason_REASON_TIMEOUT})
}

// timeoutsDue stops what is overdue, in the order in which it became so.
func (m *Machine) timeoutsDue() {
	m.timeouts.armed = 0
	for h := &m.timeouts.heap; h.Len() > 0 && (*h)[0].timeoutAt <= m.now.Boot; {
		p := m.rouse((*h)[0])
		m.unwatchTimeout(p)
		m.timeOut(p)
	}
	m.armTimeouts()
}

// armTimeouts sets the timer to the next end, unless it fires before that.
func (m *Machine) armTimeouts() {
	if m.timeouts.heap.Len() == 0 {
		return
	}
	at := min(m.timeouts.heap[0].timeoutAt, m.now.Boot+TimeoutStep)
	if armed := m.timeouts.armed; armed > m.now.Boot && armed <= at {
		return
	}
	m.timeouts.armed = at
	m.after(timerTimeouts, at-m.now.Boot, m.timeoutsDue)
}

// timeoutHeap orders by time, then by sandbox, so that its order is the same every
// time. Its methods are for container/heap alone.
type timeoutHeap []*placement

// Len is the number of placements.
func (h timeoutHeap) Len() int { return len(h) }

// Less orders by time, then by sandbox.
func (h timeoutHeap) Less(i, j int) bool {
	if h[i].timeoutAt != h[j].timeoutAt {
		return h[i].timeoutAt < h[j].timeoutAt
	}
	return h[i].id < h[j].id
}

// Swap swaps two seats.
func (h timeoutHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timeoutSeat, h[j].timeoutSeat = int32(i)+1, int32(j)+1 //nolint:gosec // EntriesMax bounds them
}

// Push appends.
func (h *timeoutHeap) Push(x any) {
	if p, ok := x.(*placement); ok {
		*h = append(*h, p)
		p.timeoutSeat = int32(len(*h)) //nolint:gosec // EntriesMax bounds them
	}
}

// Pop takes the last off.
func (h *timeoutHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	p.timeoutSeat = 0
	return p
}
