package api

import (
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
type hub struct {
	store  Store
	prefix string

	mu sync.Mutex
	// stop ends the follow; nil when there is none. life tells one follow's calls from
	// those of the one before.
	stop func()
	life int
	// live tells that the follow hears what changes.
	live    bool
	closed  bool
	idle    *time.Timer
	watches map[string]map[*runWatch]struct{}
}

func newHub(store Store, prefix string) *hub {
	return &hub{store: store, prefix: prefix, watches: map[string]map[*runWatch]struct{}{}}
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
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop == nil && !h.closed {
		h.life++
		life := h.life
		h.stop = h.store.FollowChanges(h.prefix, func(batch records.Batch) { h.deliver(life, batch) })
	}
	return h.live
}

func (h *hub) leave(w *runWatch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watches[w.key], w)
	if len(h.watches[w.key]) > 0 {
		return
	}
	delete(h.watches, w.key)
	if len(h.watches) == 0 && h.idle == nil && !h.closed {
		h.idle = time.AfterFunc(hubLinger, h.rest)
	}
}

// rest ends the follow unless somebody has come meanwhile.
func (h *hub) rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watches) == 0 {
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
		h.stop, h.live = nil, false
	}
}

// close ends the follow for good. Watches that are left hear nothing more.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.end()
}

func (h *hub) deliver(life int, batch records.Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop == nil || life != h.life {
		return
	}
	if batch.Reset {
		h.live = true
		for _, watches := range h.watches {
			for w := range watches {
				w.look()
			}
		}
	}
	for _, event := range batch.Events {
		for w := range h.watches[event.KV.Key] {
			w.hear(event)
		}
	}
}
