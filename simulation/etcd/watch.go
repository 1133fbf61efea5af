package etcd

import (
	"slices"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/history"
)

// watch is one prefix that a client listens to at a member.
type watch struct {
	client *Client
	member int
	prefix string
	// requireLeader ends it soon after the member has lost its leader.
	requireLeader bool
	// position is up to where everything was sent when it became deaf.
	position int64
	// deaf says that what happens does not reach the client for now.
	deaf  bool
	ended bool
	// last is when the newest message arrives: none overtakes another.
	last    time.Duration
	pending []records.Event
	// take is called for each message, fail once if the member ends the watch.
	take func(records.Batch)
	fail func(error)
}

// watches finds those that hear of a key: by each length that some prefix has.
type watches struct {
	all      []*watch
	byPrefix map[string][]*watch
	lengths  []int
	ofLength map[int]int
	touched  []*watch
}

func newWatches() watches {
	return watches{byPrefix: map[string][]*watch{}, ofLength: map[int]int{}}
}

func (h *watches) add(w *watch) {
	h.all = append(h.all, w)
	h.byPrefix[w.prefix] = append(h.byPrefix[w.prefix], w)
	n := len(w.prefix)
	if h.ofLength[n]++; h.ofLength[n] == 1 {
		at, _ := slices.BinarySearch(h.lengths, n)
		h.lengths = slices.Insert(h.lengths, at, n)
	}
}

func (h *watches) remove(w *watch) {
	at := slices.Index(h.all, w)
	if at < 0 {
		return
	}
	h.all = slices.Delete(h.all, at, at+1)
	same := h.byPrefix[w.prefix]
	at = slices.Index(same, w)
	if same = slices.Delete(same, at, at+1); len(same) == 0 {
		delete(h.byPrefix, w.prefix)
	} else {
		h.byPrefix[w.prefix] = same
	}
	n := len(w.prefix)
	if h.ofLength[n]--; h.ofLength[n] == 0 {
		at, _ = slices.BinarySearch(h.lengths, n)
		h.lengths = slices.Delete(h.lengths, at, at+1)
	}
}

// notify sends a commit to every watch that hears it.
func (c *Cluster) notify(commit *history.Commit) {
	h := &c.watches
	for i := range commit.Changes {
		change := &commit.Changes[i]
		for _, n := range h.lengths {
			if n > len(change.Key) {
				break
			}
			for _, w := range h.byPrefix[change.Key[:n]] {
				if w.deaf || commit.Revision <= w.position {
					continue
				}
				if len(w.pending) == 0 {
					h.touched = append(h.touched, w)
				}
				w.pending = append(w.pending, eventOf(commit.Revision, change))
			}
		}
	}
	for _, w := range h.touched {
		batch := records.Batch{Revision: commit.Revision, Events: w.pending}
		w.pending = nil
		c.send(w, batch, w.client.link.WatchLag)
	}
	clear(h.touched)
	h.touched = h.touched[:0]
}

func eventOf(revision int64, change *history.Change) records.Event {
	if change.After == nil {
		return records.Event{KV: records.KV{Key: change.Key, Mod: revision}, Deleted: true}
	}
	return records.Event{KV: *change.After}
}

// send lets a message travel to the client, behind all before it.
func (c *Cluster) send(w *watch, batch records.Batch, lag time.Duration) {
	now := c.timeline.Now()
	w.last = max(w.last, now+c.latency(w.client.link)+lag)
	c.timeline.After(w.last-now, func() {
		if !w.ended {
			w.take(batch)
		}
	})
}

// hears tells whether what happens reaches a watch.
func (c *Cluster) hears(w *watch) bool {
	return c.serves(w.member) && w.client.link.answers(w.member)
}

// refresh finds the watches that no longer hear and those that do again. What those
// have missed is sent, if it is still there.
func (c *Cluster) refresh() {
	for _, w := range slices.Clone(c.watches.all) {
		switch hears := c.hears(w); {
		case !hears && !w.deaf:
			w.deaf, w.position = true, c.state.revision
		case hears && w.deaf && !w.ended:
			w.deaf = false
			c.catchUp(w)
		}
	}
}

// catchUp sends what a watch has missed since its position.
func (c *Cluster) catchUp(w *watch) {
	if w.position+1 < c.state.compacted {
		c.end(w, ErrCompacted)
		return
	}
	batch := records.Batch{Revision: c.state.revision}
	span := Span{Key: w.prefix, Prefix: true}
	for _, commit := range c.state.since(w.position) {
		for i := range commit.Changes {
			if span.contains(commit.Changes[i].Key) {
				batch.Events = append(batch.Events, eventOf(commit.Revision, &commit.Changes[i]))
				batch.Revision = commit.Revision
			}
		}
	}
	if len(batch.Events) > 0 {
		c.send(w, batch, w.client.link.WatchLag)
	}
}

// end is a member's end of a watch. The client hears of it unless it is cut off.
func (c *Cluster) end(w *watch, err error) {
	c.forget(w)
	if !w.client.link.answers(w.member) {
		return
	}
	c.timeline.After(c.latency(w.client.link), func() { w.fail(err) })
}

// forget is the end of a watch of which nobody is told.
func (c *Cluster) forget(w *watch) {
	w.ended = true
	c.watches.remove(w)
}

// endLeaderless ends the watches that require a leader at a member without one.
func (c *Cluster) endLeaderless(m int) {
	for _, w := range slices.Clone(c.watches.all) {
		if w.member == m && w.requireLeader {
			c.end(w, ErrNoLeader)
		}
	}
}

// breakConnections ends the watches at a member whose process has ended.
func (c *Cluster) breakConnections(m int) {
	for _, w := range slices.Clone(c.watches.all) {
		if w.member == m {
			c.end(w, errReset)
		}
	}
}
