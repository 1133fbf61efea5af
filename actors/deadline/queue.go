package deadline

import (
	"container/heap"
	"strings"
)

// entry is one live run. There may be a hundred thousand.
type entry struct {
	// run shares its bytes with the mirror's key.
	run string
	at  int64
	// in is the queue that holds it, index its place there.
	in *queue
	// host and session are where the run is placed; seat is its place among the
	// host's.
	host        *host
	session     int64
	index, seat int32
	// wakes counts those since the last sign of life.
	wakes int32
	// waits says that it is placed nowhere.
	waits bool
}

// queue is a heap of entries by time, then by run so that its order is the same
// every time. The zero queue is empty.
type queue struct{ entries []*entry }

// put adds an entry, or moves it here from where it is, for a time.
func (q *queue) put(e *entry, at int64) {
	if e.in == q {
		e.at = at
		heap.Fix(q, int(e.index))
		return
	}
	if e.in != nil {
		e.in.remove(e)
	}
	e.at, e.in = at, q
	heap.Push(q, e)
}

func (q *queue) remove(e *entry) {
	heap.Remove(q, int(e.index))
	e.in = nil
}

func (q *queue) first() *entry {
	if len(q.entries) == 0 {
		return nil
	}
	return q.entries[0]
}

// Len, Less, Swap, Push and Pop are for container/heap alone.
func (q *queue) Len() int { return len(q.entries) }

// Less orders by time, then by run.
func (q *queue) Less(i, j int) bool {
	a, b := q.entries[i], q.entries[j]
	if a.at != b.at {
		return a.at < b.at
	}
	return strings.Compare(a.run, b.run) < 0
}

// Swap swaps two places.
func (q *queue) Swap(i, j int) {
	q.entries[i], q.entries[j] = q.entries[j], q.entries[i]
	q.entries[i].index, q.entries[j].index = int32(i), int32(j) //nolint:gosec // places of what is in memory
}

// Push appends.
func (q *queue) Push(x any) {
	e, ok := x.(*entry)
	if !ok {
		return
	}
	e.index = int32(len(q.entries)) //nolint:gosec // as above
	q.entries = append(q.entries, e)
}

// Pop takes the last off.
func (q *queue) Pop() any {
	last := len(q.entries) - 1
	e := q.entries[last]
	q.entries[last] = nil
	q.entries = q.entries[:last]
	return e
}
