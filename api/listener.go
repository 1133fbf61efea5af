package api

import (
	"context"
	"time"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
)

const (
	// reachRevisions is how far before its window a hub looks for a listener that has
	// been away: over a restart of the node, a hub begins with an empty window.
	reachRevisions = 8192
	// One answer to a listener holds about this many changes and bytes: a few more, so
	// that it ends between two revisions.
	changesPerAnswer     = 256
	changeBytesPerAnswer = 1 << 20
)

// listener is told of all changes of an app, or of every app, from a revision on. Its
// fields belong to the hub's lock.
type listener struct {
	hub *hub
	// app is empty for all.
	app string
	// cursor is the revision up to which it was told everything.
	cursor int64
	// missed tells that what came after cursor is not known any more.
	missed bool
	// changed holds a token while there is something to take.
	changed chan struct{}
}

// wake lets next go on.
func (l *listener) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// listen makes a listener from a revision on, 0 being now. The caller calls leave in
// the end, unless there is an error.
func (h *hub) listen(ctx context.Context, app string, since int64) (*listener, error) {
	l := &listener{hub: h, app: app, changed: make(chan struct{}, 1)}
	h.mu.Lock()
	h.listeners[l] = struct{}{}
	h.begin()
	h.mu.Unlock()
	if err := l.start(ctx, since); err != nil {
		l.leave()
		return nil, err
	}
	return l, nil
}

// start finds the listener's place. The follow may have to begin first, and the window
// to reach further back.
func (l *listener) start(ctx context.Context, since int64) error {
	h := l.hub
	if err := h.begun(ctx); err != nil {
		return err
	}
	placed, ahead, _ := l.place(since)
	if !placed {
		if err := h.reachBack(ctx); err != nil {
			return err
		}
		var begins int64
		if placed, ahead, begins = l.place(since); !placed {
			return listAgain("the changes since revision %d are not known any more, only those since %d", since, begins)
		}
	}
	if ahead {
		return h.confirm(ctx, since)
	}
	return nil
}

// begun waits until the hub hears what changes.
func (h *hub) begun(ctx context.Context) error {
	h.mu.Lock()
	ready, closed := h.ready, h.closed
	h.mu.Unlock()
	if closed {
		return stoppingError()
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// place puts the listener at a revision, 0 being now, unless the window begins after it.
// ahead tells that the hub has not heard of the revision yet.
func (l *listener) place(since int64) (placed, ahead bool, begins int64) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if since == 0 {
		since = h.head
	}
	if since < h.window.start {
		return false, false, h.window.start
	}
	l.cursor, l.missed = since, false
	l.wake()
	return true, since > h.head, h.window.start
}

// confirm refuses a revision that the store has not reached.
func (h *hub) confirm(ctx context.Context, since int64) error {
	result, err := h.store.Do(ctx, records.Read(records.Op{Kind: records.OpGet, Key: h.prefix, KeysOnly: true}))
	if err != nil {
		return storeError(ctx, "read the revision", err)
	}
	if result.Revision < since {
		return listAgain("revision %d lies in the future: the store is at %d", since, result.Revision)
	}
	return nil
}

func listAgain(format string, args ...any) error {
	return fail(codes.ListAgain, format+": list again, and go on from that list's position", args...)
}

// reach is a look at the changes before the window. err is written before ended is
// closed.
type reach struct {
	ended chan struct{}
	err   error
}

// reachBack extends the window into the past, once for all who ask.
func (h *hub) reachBack(ctx context.Context) error {
	h.mu.Lock()
	r := h.reach
	if r == nil && !h.closed {
		r = &reach{ended: make(chan struct{})}
		h.reach = r
		until := h.window.start
		h.past.Go(func() { h.readPast(r, until) })
	}
	h.mu.Unlock()
	if r == nil {
		return stoppingError()
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return contextError(ctx)
	}
	if r.err == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reach == r {
		h.reach = nil // who comes later tries again
	}
	return storeError(ctx, "read past changes", r.err)
}

func (h *hub) readPast(r *reach, until int64) {
	defer close(r.ended)
	events, from, err := h.store.Past(h.running, h.prefix, max(until-reachRevisions, 0), until, windowChanges)
	if r.err = err; err != nil {
		return
	}
	past := make([]*change, 0, len(events))
	for _, event := range events {
		if c := changeOf(event); c != nil {
			past = append(past, c)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reach == r {
		h.window.extend(past, from, until)
	}
}

// tell wakes those who wait for an app's changes; the caller holds h.mu.
func (h *hub) tell(c *change, app string) {
	for l := range h.waiting[app] {
		if c.mod <= l.cursor {
			continue
		}
		// Nothing between its place and this change is its business.
		l.cursor = c.mod - 1
		h.unwait(l)
		l.wake()
	}
}

func (h *hub) unwait(l *listener) {
	delete(h.waiting[l.app], l)
	if len(h.waiting[l.app]) == 0 {
		delete(h.waiting, l.app)
	}
}

func (l *listener) leave() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	h.unwait(l)
	h.linger()
}

// next waits for changes and returns some, with the revision up to which the listener
// has been told everything then. After a quiet time it returns that alone.
func (l *listener) next(ctx context.Context, quiet time.Duration) ([]*change, int64, error) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-l.changed:
		case <-timer.C:
			return nil, l.position(), nil
		case <-ctx.Done():
			return nil, 0, contextError(ctx)
		}
		changes, position, err := l.take()
		if err != nil || len(changes) > 0 {
			return changes, position, err
		}
	}
}

// position is the revision up to which the listener has been told everything.
func (l *listener) position() int64 {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if _, waits := l.hub.waiting[l.app][l]; waits {
		return max(l.cursor, l.hub.head)
	}
	return l.cursor
}

// take moves on in the window. At its end the listener waits.
func (l *listener) take() ([]*change, int64, error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.missed || l.cursor < h.window.start {
		return nil, 0, listAgain("the changes since revision %d are not known any more", l.cursor)
	}
	var changes []*change
	bytes := 0
	for i := h.window.after(l.cursor); i < h.window.count; i++ {
		c := h.window.at(i)
		if c.mod > l.cursor && (len(changes) >= changesPerAnswer || bytes >= changeBytesPerAnswer) && c.mod > changes[len(changes)-1].mod {
			l.cursor = changes[len(changes)-1].mod
			l.wake()
			return changes, l.cursor, nil
		}
		if l.app == "" || l.app == c.app {
			if changes == nil {
				changes = make([]*change, 0, min(h.window.count-i, changesPerAnswer))
			}
			changes = append(changes, c)
			bytes += len(c.value)
		}
	}
	l.cursor = max(l.cursor, h.head)
	if h.waiting[l.app] == nil {
		h.waiting[l.app] = map[*listener]struct{}{}
	}
	h.waiting[l.app][l] = struct{}{}
	return changes, l.cursor, nil
}
