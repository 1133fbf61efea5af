package api

import (
	"fmt"
	"math"
	"testing"

	"github.com/errand-run/errand/cluster/records"
)

// tellCost is how many allocations it takes to hand one change on.
func tellCost(t *testing.T, watches, listeners int) float64 {
	t.Helper()
	s, store := newHubServer(t)
	h := s.watches
	// These are told nothing, and keep the sets of those who wait from coming and going.
	for _, app := range []string{"", "web"} {
		l := &listener{hub: h, app: app, cursor: math.MaxInt64}
		h.waiting[app] = map[*listener]struct{}{l: {}}
	}
	h.begin()
	store.reset()
	// A ring that has its size, so that it does not grow while it is measured.
	event := records.Event{KV: store.kv()}
	for i := range windowChanges {
		event.KV.Mod = int64(20 + i)
		h.deliver(h.life, records.Batch{Revision: event.KV.Mod, Events: []records.Event{event}})
	}
	for range watches {
		h.join(s.newWatch(hubRun))
	}
	var waiting []*listener
	for i := range listeners {
		l := &listener{hub: h, app: []string{"", "web"}[i%2], changed: make(chan struct{}, 1)}
		h.listeners[l] = struct{}{}
		waiting = append(waiting, l)
	}
	events := []records.Event{event}
	return testing.AllocsPerRun(200, func() {
		for _, l := range waiting {
			l.missed, l.cursor = false, h.head
			h.waiting[l.app][l] = struct{}{}
		}
		events[0].KV.Mod++
		h.deliver(h.life, records.Batch{Revision: events[0].KV.Mod, Events: events})
		for _, l := range waiting {
			select {
			case <-l.changed:
			default:
				t.Fatal("a listener was not told")
			}
		}
	})
}

func TestAChangeIsAllocatedOnceHoweverManyAreTold(t *testing.T) {
	for _, told := range []struct{ watches, listeners int }{{0, 0}, {1, 2}, {200, 0}, {0, 200}, {200, 200}} {
		t.Run(fmt.Sprintf("%d watches, %d listeners", told.watches, told.listeners), func(t *testing.T) {
			if got := tellCost(t, told.watches, told.listeners); got != 1 {
				t.Errorf("%v allocations, want 1", got)
			}
		})
	}
}

func TestNextAnswerIsOneSliceHoweverManyReadIt(t *testing.T) {
	s, store := newHubServer(t)
	h := s.watches
	l := &listener{hub: h, changed: make(chan struct{}, 1)}
	h.listeners[l] = struct{}{}
	h.begin()
	store.reset()
	start := h.head
	for i := range 100 {
		kv := store.kv()
		kv.Mod = start + 1 + int64(i)
		h.deliver(h.life, records.Batch{Revision: kv.Mod, Events: []records.Event{{KV: kv}}})
	}
	l.missed = false
	for _, public := range []bool{false, true} {
		got := testing.AllocsPerRun(100, func() {
			l.cursor = start
			changes, _, err := l.take()
			if err != nil || len(changes) != 100 {
				t.Fatal(len(changes), err)
			}
			if public {
				// Decoded for the first who asks, and shared by all others.
				for _, c := range changes {
					if _, err := c.public(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		if got != 1 {
			t.Errorf("%v allocations to read 100 changes, decoded %t, want 1", got, public)
		}
	}
}
