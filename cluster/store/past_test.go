package store

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/records"
)

func compact(t *testing.T, s *Store, revision int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.conn.Load().client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

func TestPastReturnsTheChangesOfItsRevisions(t *testing.T) {
	s := openEmbedded(t)
	first := do(t, s, putTxn("p/1", "a")).Revision
	do(t, s, putTxn("elsewhere", "a"))
	do(t, s, putTxn("p/2", "a"))
	do(t, s, deleteTxn("p/1"))
	both := do(t, s, records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "p/3"}, {Kind: records.OpPut, Key: "p/4"}}}).Revision
	last := do(t, s, putTxn("elsewhere", "b")).Revision
	for _, c := range []struct {
		name         string
		after, until int64
		limit        int
		want         string
		from         int64
	}{
		{"all", 0, last, 100, "1 2 -1 3 4", 0},
		{"what came after the first", first, last, 100, "2 -1 3 4", first},
		{"none", both, last, 100, "", both},
		{"nothing at all", last, last, 100, "", last},
		{"some in the middle", first, first + 2, 100, "2", first},
		{"the newest", 0, last, 3, "-1 3 4", first + 2},
		{"no part of a revision", 0, last, 1, "", both},
	} {
		t.Run(c.name, func(t *testing.T) {
			events, from, err := s.Past(t.Context(), "p/", c.after, c.until, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, event := range events {
				text := strings.TrimPrefix(event.KV.Key, "p/")
				if event.Deleted {
					text = "-" + text
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != c.want || from != c.from {
				t.Errorf("%v from %d, want %s from %d", got, from, c.want, c.from)
			}
		})
	}
}

func TestPastBeginsWhereTheStoreIsCompacted(t *testing.T) {
	s := openEmbedded(t)
	do(t, s, putTxn("p/1", "a"))
	compacted := do(t, s, putTxn("p/1", "b")).Revision
	last := do(t, s, putTxn("p/1", "c")).Revision
	compact(t, s, compacted)
	events, from, err := s.Past(t.Context(), "p/", 1, last, 100)
	if err != nil || from != compacted || len(events) != 1 || events[0].KV.Mod != last {
		t.Errorf("%v from %d, %v, want the change at %d from %d", events, from, err, last, compacted)
	}
}

func TestPastIsBounded(t *testing.T) {
	s := openEmbedded(t)
	const large = 1 << 20
	var last int64
	for i := range 12 {
		last = do(t, s, putTxn("large/1", strings.Repeat(string(rune('a'+i)), large))).Revision
	}
	events, from, err := s.Past(t.Context(), "large/", 0, last, 100)
	if err != nil || len(events) != pastBytesMax/large || from != last-pastBytesMax/large {
		t.Errorf("%d large changes from %d, %v; the last is at %d", len(events), from, err, last)
	}
	if _, _, err := s.Past(t.Context(), "p/", 5, 4, 1); records.ClassOf(err) != records.ClassInvalid {
		t.Errorf("revisions the wrong way round: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := s.Past(ctx, "p/", 0, 1<<40, 1); records.ClassOf(err) != records.ClassDeadline {
		t.Errorf("a revision that the store does not reach: %v", err)
	}
}

func TestFollowChangesGoesOnOverAnInterruption(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, server *server)
		resets    int
	}{
		"where it was": {func(*testing.T, *server) {}, 1},
		"anew when what it missed is compacted": {func(t *testing.T, server *server) {
			compact(t, server.store, do(t, server.store, putTxn("elsewhere", "")).Revision)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t)
			batches := make(chan records.Batch, 100)
			t.Cleanup(server.connect(t).FollowChanges("c/", func(batch records.Batch) { batches <- batch }))
			resets, heard := 0, ""
			await := func(mark string) {
				t.Helper()
				for timeout := time.After(patience); !strings.HasSuffix(heard, mark); {
					select {
					case batch := <-batches:
						if batch.Reset {
							resets++
							if resets == 2 {
								return
							}
						}
						for _, event := range batch.Events {
							heard += string(event.KV.Value)
						}
					case <-timeout:
						t.Fatalf("heard %s in %d resets, not %s", heard, resets, mark)
					}
				}
			}
			if batch := <-batches; !batch.Reset {
				t.Fatalf("begins with %+v", batch)
			}
			resets++
			do(t, server.store, putTxn("c/1", "a"))
			await("a")
			server.proxy.set(func(p *proxy) { p.refuse = true })
			server.proxy.cut()
			for i := range 3 {
				do(t, server.store, putTxn(fmt.Sprintf("c/%d", i), "b"))
			}
			c.meanwhile(t, server)
			server.proxy.set(func(p *proxy) { p.refuse = false })
			if c.resets == 1 {
				await("abbb")
			} else {
				await("never")
			}
			if resets != c.resets {
				t.Errorf("%d resets, want %d", resets, c.resets)
			}
		})
	}
}

func TestFollowChangesGoesOnWithAnotherWatch(t *testing.T) {
	s := openEmbedded(t)
	batches := make(chan records.Batch, 100)
	t.Cleanup(s.FollowChanges("c/", func(batch records.Batch) { batches <- batch }))
	if first := <-batches; !first.Reset {
		t.Fatalf("begins with %+v", first)
	}
	var heard string
	next := func(want string) {
		t.Helper()
		for timeout := time.After(patience); heard != want; {
			select {
			case batch := <-batches:
				if batch.Reset {
					t.Fatalf("began anew after %q", heard)
				}
				for _, event := range batch.Events {
					heard += string(event.KV.Value)
				}
			case <-timeout:
				t.Fatalf("heard %q, want %q", heard, want)
			}
		}
	}
	do(t, s, putTxn("c/1", "a"))
	next("a")
	_, listeners := s.listeners()
	s.restart(listeners, errSilent)
	do(t, s, putTxn("c/1", "b"))
	do(t, s, putTxn("c/2", "c"))
	next("abc")
}
