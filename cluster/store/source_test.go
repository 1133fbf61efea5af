package store

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestAWatchOfTheEmbeddedServer(t *testing.T) {
	s := openEmbedded(t)
	conn := s.conn.Load()
	first := do(t, s, putTxn("p/1", "first")).Revision
	do(t, s, putTxn("p/1", "second"))
	last := do(t, s, putTxn("q/1", "not below the prefix")).Revision
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begin := func(t *testing.T, from int64) *within {
		t.Helper()
		w, err := watchWithin(ctx, conn.changes, "p/", from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		return w
	}
	next := func(t *testing.T, w *within) heard {
		t.Helper()
		h, err := w.next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}

	t.Run("from a revision on tells each change since, and then how far it has come", func(t *testing.T) {
		w := begin(t, first)
		var values []string
		for len(values) < 2 {
			for _, event := range next(t, w).events {
				values = append(values, string(event.KV.Value))
			}
		}
		if values[0] != "first" || values[1] != "second" {
			t.Errorf("heard %q", values)
		}
		// It counts as caught up only in the server's next round, so it is asked until it says so.
		for h := (heard{}); h.revision < last; {
			w.ask()
			asking, stop := context.WithTimeout(ctx, probeAgain)
			if told, err := w.next(asking); err == nil {
				h = told
			}
			stop()
			if ctx.Err() != nil {
				t.Fatalf("told nothing beyond %d, want %d", h.revision, last)
			}
		}
	})
	t.Run("from now on tells what is written once it has begun", func(t *testing.T) {
		w := begin(t, 0)
		do(t, s, putTxn("p/2", "third"))
		if h := next(t, w); len(h.events) != 1 || string(h.events[0].KV.Value) != "third" {
			t.Errorf("heard %v", h.events)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		w := begin(t, 0)
		over, end := context.WithCancelCause(ctx)
		end(errSilent)
		if _, err := w.next(over); !errors.Is(err, errSilent) {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("of what is compacted away says so", func(t *testing.T) {
		if _, err := conn.client.Compact(ctx, last); err != nil {
			t.Fatal(err)
		}
		if _, err := begin(t, first).next(ctx); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("ended with %v", err)
		}
	})
}
