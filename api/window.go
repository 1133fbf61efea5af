package api

import (
	"sort"
	"sync"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The bounds of what a hub remembers.
const (
	windowChanges = 8192
	windowBytes   = 8 << 20
	// changeCost is what a change takes in memory beside its record.
	changeCost = 256
)

// change is a state that a run came to, shared by all who are told of it.
type change struct {
	id, app string
	mod     int64
	version int64
	deleted bool
	value   []byte

	decode sync.Once
	run    *errandv1.Run
	err    error
}

// changeOf returns nil for a key that is no run's.
func changeOf(event records.Event) *change {
	id := records.LastPart(event.KV.Key)
	app, err := records.AppOfRun(id)
	if err != nil {
		return nil
	}
	return &change{id: id, app: app, mod: event.KV.Mod, version: event.KV.Version, deleted: event.Deleted, value: event.KV.Value}
}

func (c *change) bytes() int { return changeCost + len(c.value) }

// public decodes the state once for all. The run is shared: nobody changes it.
func (c *change) public() (*errandv1.Run, error) {
	c.decode.Do(func() {
		if c.deleted {
			c.run = &errandv1.Run{Id: c.id, App: c.app, Revision: c.mod}
			return
		}
		at := records.KV{Key: c.id, Value: c.value, Mod: c.mod, Version: c.version}
		run, err := records.DecodeRun(at)
		if err != nil {
			c.err = err
			return
		}
		c.run = publicRun(run, at)
	})
	return c.run, c.err
}

// history decodes the state anew: few ask for it.
func (c *change) history() (*errandv1.RunHistory, error) {
	run, err := records.DecodeRun(records.KV{Key: c.id, Value: c.value, Mod: c.mod, Version: c.version})
	if err != nil {
		return nil, err
	}
	return publicHistory(run), nil
}

// window holds the newest changes, in order: all that came after start.
type window struct {
	start int64
	// ring holds the changes at [first, first+len) modulo its size, which grows up to
	// windowChanges.
	ring         []*change
	first, count int
	bytes        int
}

// reset forgets everything up to a revision.
func (w *window) reset(revision int64) { *w = window{start: revision} }

func (w *window) at(i int) *change { return w.ring[(w.first+i)%len(w.ring)] }

// add takes the next change and lets go of the oldest ones beyond the bounds.
func (w *window) add(c *change) {
	w.bytes += c.bytes()
	for w.count > 0 && (w.count >= windowChanges || w.bytes > windowBytes) {
		w.drop()
	}
	if w.bytes > windowBytes {
		// Too large by itself: who has not read it by now must look for itself.
		w.bytes, w.start = 0, c.mod
		return
	}
	if w.count == len(w.ring) {
		w.grow()
	}
	w.ring[(w.first+w.count)%len(w.ring)] = c
	w.count++
}

func (w *window) drop() {
	oldest := w.at(0)
	w.bytes -= oldest.bytes()
	// The rest of its revision tells only a part of it from now on.
	w.start = oldest.mod
	w.ring[w.first] = nil
	w.first = (w.first + 1) % len(w.ring)
	w.count--
}

func (w *window) grow() {
	ring := make([]*change, min(max(64, 2*len(w.ring)), windowChanges))
	for i := range w.count {
		ring[i] = w.at(i)
	}
	w.ring, w.first = ring, 0
}

// after returns the place of the first change that came after a revision.
func (w *window) after(revision int64) int {
	return sort.Search(w.count, func(i int) bool { return w.at(i).mod > revision })
}

// extend puts earlier changes before what is here: all of those in (from, until], if
// the window still begins at until.
func (w *window) extend(past []*change, from, until int64) {
	if w.start != until {
		return
	}
	longer := window{start: from}
	for _, c := range past {
		longer.add(c)
	}
	for i := range w.count {
		longer.add(w.at(i))
	}
	*w = longer
}
