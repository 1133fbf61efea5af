// Package virtual is time and chance for a simulated world: one timeline that
// moves from event to event, and named streams of random numbers that all come
// from one seed. Everything in it belongs to one goroutine.
package virtual

import (
	"container/heap"
	"time"
)

// Timeline is the true time of a world and what will happen in it. It stands still
// until it is moved. Events of one instant happen in the order in which they were
// set.
type Timeline struct {
	now      time.Duration
	sequence uint64
	events   events
}

type event struct {
	at       time.Duration
	sequence uint64
	index    int
	deliver  func()
}

// Now is the true time since the world began. No part of the world may read it but
// the models and the checkers.
func (t *Timeline) Now() time.Duration { return t.now }

// After calls deliver when d has passed, in the call that moves the timeline there.
// stop ends that; it may be called at any time.
func (t *Timeline) After(d time.Duration, deliver func()) (stop func()) {
	t.sequence++
	e := &event{at: t.now + max(d, 0), sequence: t.sequence, deliver: deliver}
	heap.Push(&t.events, e)
	return func() {
		if e.index >= 0 {
			heap.Remove(&t.events, e.index)
		}
	}
}

// Next moves the timeline to its earliest event and lets that happen. It reports
// false when nothing will ever happen.
func (t *Timeline) Next() bool {
	if len(t.events) == 0 {
		return false
	}
	e, _ := heap.Pop(&t.events).(*event)
	t.now = e.at
	e.deliver()
	return true
}

// NextAt is when the earliest event will happen; ok is false when nothing will.
func (t *Timeline) NextAt() (at time.Duration, ok bool) {
	if len(t.events) == 0 {
		return 0, false
	}
	return t.events[0].at, true
}

// events is a heap by time, then by sequence.
type events []*event

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].sequence < e[j].sequence
}

func (e events) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *events) Push(x any) {
	added, _ := x.(*event)
	added.index = len(*e)
	*e = append(*e, added)
}

func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = nil
	*e = (*e)[:len(*e)-1]
	last.index = -1
	return last
}
