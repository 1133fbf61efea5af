package api

import (
	"context"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// hubLinger is how long the changes are followed after the last watch has left: the
// next one is then served without a new beginning.
const hubLinger = 30 * time.Second

// hub lets all watches of this node share one follow of all runs, so that a thousand
// of them cost the store what one does. It hands on what changes and reads nothing;
// who may have missed something is told to look for itself.
//
// Two kinds listen. A runWatch waits for one run and keeps its newest state. A listener
// is told of every change of an app or of all; it holds no more than its place in the
// window that all share, so that a slow one costs no memory and holds nobody up: when
// the window has left its place behind, it is told to list again.
type hub struct {
	store  Store
	prefix string
	// running ends with the hub; past waits for what it has begun.
	running context.Context
	stopAll context.CancelFunc
	past    sync.WaitGroup

	mu sync.Mutex
	// stop ends the follow; nil when there is none. life tells one follow's calls from
	// those of the one before.
	stop func()
	life int
	// live tells that the follow hears what changes; ready is closed when it does.
	live   bool
	ready  chan struct{}
	closed bool
	idle   *time.Timer
	// head is the revision up to which everything was heard, window what it was.
	head   int64
	window window
	// reach is the look further back than the window, under way or done.
	reach   *reach
	watches map[string]map[*runWatch]struct{}
	// Of the listeners, those that have been told everything wait by app; "" is all.
	listeners map[*listener]struct{}
	waiting   map[string]map[*listener]struct{}
}

func newHub(store Store, prefix string) *hub {
	h := &hub{
		store: store, prefix: prefix, ready: make(chan struct{}), watches: map[string]map[*runWatch]struct{}{},
		listeners: map[*listener]struct{}{}, waiting: map[string]map[*listener]struct{}{},
	}
	h.running, h.stopAll = context.WithCancel(context.Background())
	return h
}

// join hands the changes of a watch's key to it, from now on if live is true, and else
// from when the watch is told to look.
func (h *hub) join(w *runWatch) (live bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches[w.key] == nil {
		h.watches[w.key] = map[*runWatch]struct{}{}
	}
	h.watches[w.key][w] = struct{}{}
	h.begin()
	return h.live
}

// begin sees to it that the changes are followed; the caller holds h.mu.
func (h *hub) begin() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop == nil && !h.closed {
		h.life++
		life := h.life
		h.stop = h.store.FollowChanges(h.prefix, func(batch records.Batch) { h.deliver(life, batch) })
	}
}

func (h *hub) leave(w *runWatch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watches[w.key], w)
	if len(h.watches[w.key]) > 0 {
		return
	}
	delete(h.watches, w.key)
	h.linger()
}

// linger ends the follow some time after the last has left; the caller holds h.mu.
func (h *hub) linger() {
	if len(h.watches) == 0 && len(h.listeners) == 0 && h.idle == nil && !h.closed {
		h.idle = time.AfterFunc(hubLinger, h.rest)
	}
}

// rest ends the follow unless somebody has come meanwhile.
func (h *hub) rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watches) == 0 && len(h.listeners) == 0 {
		h.end()
	}
}

// end ends the follow; the caller holds h.mu.
func (h *hub) end() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
	if h.live {
		h.live, h.ready = false, make(chan struct{})
	}
	h.window, h.reach = window{}, nil
}

// close ends the follow for good. Watches that are left hear nothing more.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.end()
	h.mu.Unlock()
	h.stopAll()
	h.past.Wait()
}

func (h *hub) deliver(life int, batch records.Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop == nil || life != h.life {
		return
	}
	if batch.Reset {
		h.reset(batch.Revision)
	}
	for _, event := range batch.Events {
		for w := range h.watches[event.KV.Key] {
			w.hear(event)
		}
		if c := changeOf(event); c != nil {
			h.window.add(c)
			h.tell(c, "")
			h.tell(c, c.app)
		}
	}
	h.head = batch.Revision
}

// reset begins anew at a revision: what came before may have been missed.
func (h *hub) reset(revision int64) {
	if !h.live {
		h.live = true
		close(h.ready)
	}
	h.window.reset(revision)
	h.reach = nil
	for _, watches := range h.watches {
		for w := range watches {
			w.look()
		}
	}
	for l := range h.listeners {
		l.missed = true
		l.wake()
	}
}
