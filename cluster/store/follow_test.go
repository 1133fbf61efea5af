package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"github.com/errand-run/errand/cluster/records"
)

// follower keeps a mirror of a follow and lets a test wait for it.
type follower struct {
	t       *testing.T
	batches chan records.Batch
	mirror  records.Mirror
	resets  int
	changes []records.Event
	stop    func()
}

func followPrefix(t *testing.T, s *Store, prefix string) *follower {
	t.Helper()
	f := &follower{t: t, batches: make(chan records.Batch, 10_000)}
	f.stop = s.Follow(prefix, func(batch records.Batch) { f.batches <- batch })
	t.Cleanup(f.stop)
	return f
}

// until takes batches until the condition holds.
func (f *follower) until(what string, condition func() bool) {
	f.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !condition() {
		select {
		case batch := <-f.batches:
			if !batch.Reset && batch.Revision <= f.mirror.Revision() {
				f.t.Fatalf("a batch at %d after one at %d", batch.Revision, f.mirror.Revision())
			}
			if batch.Reset {
				f.resets++
			}
			f.changes = append(f.changes, f.mirror.Apply(batch)...)
		case <-limit.C:
			f.t.Fatalf("no %s within %v: %d resets, keys %v at %d", what, patience, f.resets, f.mirror.Keys(), f.mirror.Revision())
		}
	}
}

func (f *follower) has(key, value string) func() bool {
	return func() bool {
		revisions, ok := f.mirror.Get(key)
		return ok && slices.ContainsFunc(f.changes, func(change records.Event) bool {
			return change.KV.Key == key && change.KV.Mod == revisions.Mod && string(change.KV.Value) == value
		})
	}
}

func (f *follower) lacks(key string) func() bool {
	return func() bool {
		_, ok := f.mirror.Get(key)
		return !ok && f.mirror.Revision() > 0
	}
}

func TestFollowDeliversAResetThenChangesInOrder(t *testing.T) {
	s := openEmbedded(t)
	do(t, s, putTxn("p/1", "a"))
	do(t, s, putTxn("p10", "beside the prefix"))
	f := followPrefix(t, s, "p/")
	first := <-f.batches
	if !first.Reset || len(first.Events) != 1 || first.Events[0].KV.Key != "p/1" || string(first.Events[0].KV.Value) != "a" {
		t.Fatalf("the first batch is %+v", first)
	}
	f.mirror.Apply(first)
	revision := do(t, s, records.Txn{Then: []records.Op{
		{Kind: records.OpPut, Key: "p/2", Value: []byte("b")}, {Kind: records.OpDelete, Key: "p/1"},
	}}).Revision
	batch := <-f.batches
	if batch.Reset || batch.Revision != revision || len(batch.Events) != 2 {
		t.Fatalf("the second batch is %+v, want both changes at %d", batch, revision)
	}
	f.mirror.Apply(batch)
	kept, ok := f.mirror.Get("p/2")
	if !ok || kept.Mod != revision || !f.lacks("p/1")() || string(batch.Events[0].KV.Value) != "b" || batch.Events[1].KV.Mod != revision {
		t.Fatalf("after the changes: %v", f.mirror.Keys())
	}
	for i := range 200 {
		do(t, s, putTxn("p/2", fmt.Sprint(i)))
	}
	f.until("last change", f.has("p/2", "199"))
	for i := 1; i < len(f.changes); i++ {
		if f.changes[i].KV.Mod <= f.changes[i-1].KV.Mod {
			t.Fatalf("change %d at %d after %d", i, f.changes[i].KV.Mod, f.changes[i-1].KV.Mod)
		}
	}
	if f.resets != 0 || len(f.changes) != 200 {
		t.Errorf("%d more resets, %d changes", f.resets, len(f.changes))
	}
}

func TestFollowReadsManyPagesAtOneRevision(t *testing.T) {
	s := openEmbedded(t)
	const keys = 2*pageKeys + 7
	for from := 0; from < keys; from += 100 {
		var ops []records.Op
		for i := from; i < min(from+100, keys); i++ {
			ops = append(ops, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("p/%05d", i)})
		}
		do(t, s, records.Txn{Then: ops})
	}
	f := followPrefix(t, s, "p/")
	first := <-f.batches
	if len(first.Events) != keys {
		t.Fatalf("the reset has %d keys, want %d", len(first.Events), keys)
	}
}

func TestFollowEndsAtStop(t *testing.T) {
	s := openEmbedded(t)
	t.Run("called from deliver", func(t *testing.T) {
		calls, stopped := make(chan records.Batch, 100), make(chan struct{})
		var stop func()
		ready := make(chan struct{})
		stop = s.Follow("q/", func(batch records.Batch) {
			<-ready
			calls <- batch
			stop()
			stop()
			close(stopped)
		})
		close(ready)
		<-stopped
		do(t, s, putTxn("q/1", ""))
		witness := followPrefix(t, s, "q/")
		witness.until("witness", witness.has("q/1", ""))
		if len(calls) != 1 {
			t.Errorf("%d calls", len(calls))
		}
	})
	t.Run("no call begins afterwards", func(t *testing.T) {
		f := followPrefix(t, s, "r/")
		f.until("reset", func() bool { return f.resets == 1 })
		f.stop()
		witness := followPrefix(t, s, "r/")
		do(t, s, putTxn("r/1", ""))
		witness.until("witness", witness.has("r/1", ""))
		if len(f.batches) != 0 {
			t.Errorf("a batch after stop: %v", <-f.batches)
		}
	})
	t.Run("after Close", func(t *testing.T) {
		other := openEmbedded(t)
		f := followPrefix(t, other, "r/")
		f.until("reset", func() bool { return f.resets == 1 })
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		f.stop()
		other.Follow("r/", func(records.Batch) { t.Error("a closed store delivers") })()
	})
}

// server is an embedded store that other stores reach through a proxy.
type server struct {
	dir   string
	store *Store
	proxy *proxy
}

func startServer(t *testing.T) *server {
	t.Helper()
	dir := dataDir(t)
	return &server{dir: dir, store: openAt(t, Config{DataDir: dir}), proxy: startProxy(t, dir)}
}

func (s *server) restart(t *testing.T) {
	t.Helper()
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s.store = openAt(t, Config{DataDir: s.dir})
}

// wipe starts a server of another cluster in the place of this one.
func (s *server) wipe(t *testing.T) {
	t.Helper()
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, serverName)); err != nil {
		t.Fatal(err)
	}
	s.store = openAt(t, Config{DataDir: s.dir})
}

func (s *server) connect(t *testing.T) *Store {
	t.Helper()
	return openAt(t, Config{Endpoints: []string{s.proxy.address()}})
}

func TestFollowResumesOverARestartOfTheServer(t *testing.T) {
	server := startServer(t)
	f := followPrefix(t, server.connect(t), "p/")
	do(t, server.store, putTxn("p/1", "before"))
	f.until("change before", f.has("p/1", "before"))
	server.restart(t)
	do(t, server.store, putTxn("p/1", "after"))
	do(t, server.store, putTxn("p/2", "after"))
	f.until("changes after", func() bool { return f.has("p/1", "after")() && f.has("p/2", "after")() })
}

// The client takes its watches up again where they were, which a store that has lost what
// it had only comes to much later: until then they would hear of nothing.
func TestFollowBeginsAnewAtAStoreThatHasLostEverything(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	f := followPrefix(t, s, "p/")
	resets := make(chan records.Batch, 100)
	t.Cleanup(s.FollowChanges("p/", func(batch records.Batch) {
		if batch.Reset {
			resets <- batch
		}
	}))
	var last int64
	for range 20 {
		last = do(t, server.store, putTxn("p/1", "before")).Revision
	}
	f.until("change before", f.has("p/1", "before"))
	f.until("position", func() bool { return f.mirror.Revision() >= last })
	<-resets
	server.wipe(t)
	do(t, server.store, putTxn("p/2", "after"))
	limit := time.After(patience)
	for batch := (records.Batch{}); !slices.ContainsFunc(batch.Events, func(e records.Event) bool { return e.KV.Key == "p/2" }); {
		select {
		case batch = <-f.batches:
		case <-limit:
			t.Fatalf("nothing was heard of a change after within %v", patience)
		}
	}
	if reset := <-resets; reset.Revision >= last {
		t.Errorf("changes are told from %d on, the store that was lost had come to %d", reset.Revision, last)
	}
}

func TestFollowResetsAfterACompactionOverDeletions(t *testing.T) {
	server := startServer(t)
	f := followPrefix(t, server.connect(t), "p/")
	do(t, server.store, putTxn("p/stays", "1"))
	do(t, server.store, putTxn("p/goes", "1"))
	f.until("both keys", func() bool { return f.mirror.Len() == 2 })
	server.proxy.set(func(p *proxy) { p.refuse = true })
	server.proxy.cut()
	do(t, server.store, deleteTxn("p/goes"))
	revision := do(t, server.store, putTxn("elsewhere", "")).Revision
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := server.store.conn.Load().client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	server.proxy.set(func(p *proxy) { p.refuse = false })
	f.until("deletion", f.lacks("p/goes"))
	if f.resets != 2 || !f.has("p/stays", "1")() {
		t.Errorf("%d resets, keys %v", f.resets, f.mirror.Keys())
	}
	last := f.changes[len(f.changes)-1]
	if !last.Deleted || last.KV.Key != "p/goes" {
		t.Errorf("the last change is %+v", last)
	}
}

func TestFollowNoticesASilentConnection(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	f := followPrefix(t, s, "p/")
	do(t, server.store, putTxn("p/1", "before"))
	f.until("change before", f.has("p/1", "before"))
	// What is open falls silent, what is opened anew works.
	server.proxy.set(func(p *proxy) { p.silentUpTo = p.accepted })
	do(t, server.store, putTxn("p/1", "after"))
	began := time.Now()
	f.until("change after", f.has("p/1", "after"))
	took := time.Since(began)
	t.Logf("noticed after %v", took)
	if limit := ProbeInterval + ProbeTimeout + busy; took > limit {
		t.Errorf("noticed after %v, want at most %v", took, limit)
	}
	do(t, s, putTxn("p/1", "written"))
	f.until("own change", f.has("p/1", "written"))
}

// One of two ways to the server falls silent: reads still work by the other.
func TestFollowNoticesASilentWatch(t *testing.T) {
	server := startServer(t)
	other := startProxy(t, server.dir)
	s := openAt(t, Config{Endpoints: []string{server.proxy.address(), other.address()}})
	var followers []*follower
	// The follows of folders share a stream, those of keys have several: some of
	// them go by the way that falls silent.
	for i := range 8 {
		prefix := fmt.Sprintf("p/%d", i)
		if i%2 == 0 {
			prefix += "/"
		}
		f := followPrefix(t, s, prefix)
		f.until("reset", func() bool { return f.resets == 1 })
		followers = append(followers, f)
	}
	server.proxy.set(func(p *proxy) { p.silentUpTo = p.accepted })
	for i := range followers {
		do(t, server.store, putTxn(fmt.Sprintf("p/%d/k", i), "1"))
	}
	began := time.Now()
	for i, f := range followers {
		f.until("change", f.has(fmt.Sprintf("p/%d/k", i), "1"))
	}
	took := time.Since(began)
	t.Logf("noticed after %v", took)
	if limit := ProbeInterval + 2*ProbeTimeout + busy; took > limit {
		t.Errorf("noticed after %v, want at most %v", took, limit)
	}
}

// deaf is a watcher whose first watch stops hearing when it is told to. Its channel
// never ends, whatever becomes of the watch's context.
type deaf struct {
	clientv3.Watcher
	mu      sync.Mutex
	silent  chan struct{}
	forward sync.WaitGroup
}

func (d *deaf) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	d.mu.Lock()
	silent := d.silent
	d.silent = nil
	d.mu.Unlock()
	heard := d.Watcher.Watch(ctx, key, options...)
	if silent == nil {
		return heard
	}
	passed := make(chan clientv3.WatchResponse)
	d.forward.Go(func() {
		for response := range heard {
			select {
			case <-silent:
			default:
				passed <- response
			}
		}
	})
	return passed
}

// deafServer is a server whose first watch stops hearing when it is told to.
type deafServer struct {
	watchable
	silent chan struct{}
}

func (d *deafServer) NewWatchStream() mvcc.WatchStream {
	stream := d.watchable.NewWatchStream()
	if d.silent == nil {
		return stream
	}
	deaf := &deafStream{WatchStream: stream, passed: make(chan mvcc.WatchResponse)}
	go deaf.forward(d.silent)
	d.silent = nil
	return deaf
}

type deafStream struct {
	mvcc.WatchStream
	passed chan mvcc.WatchResponse
}

func (d *deafStream) Chan() <-chan mvcc.WatchResponse { return d.passed }

// forward ends when the stream is closed, which its owner waits for.
func (d *deafStream) forward(silent chan struct{}) {
	defer close(d.passed)
	for response := range d.WatchStream.Chan() {
		select {
		case <-silent:
		default:
			d.passed <- response
		}
	}
}

// Reads are answered, the connection lives, and yet a watch hears nothing.
func TestProbeDropsAWatchThatHearsNothing(t *testing.T) {
	t.Run("of a client", func(t *testing.T) {
		t.Parallel()
		s := openEmbedded(t)
		conn := s.conn.Load()
		silence := make(chan struct{})
		watcher := &deaf{Watcher: conn.client.Watcher, silent: silence}
		conn.client.Watcher, conn.changes = watcher, nil
		if took, limit := aWatchFallsSilent(t, s, silence), ProbeInterval+2*ProbeTimeout+busy; took > limit {
			t.Errorf("noticed after %v, want at most %v", took, limit)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		watcher.forward.Wait()
	})
	t.Run("of the embedded server", func(t *testing.T) {
		t.Parallel()
		s := openEmbedded(t)
		conn := s.conn.Load()
		silence := make(chan struct{})
		conn.changes = &deafServer{watchable: conn.changes, silent: silence}
		aWatchFallsSilent(t, s, silence)
	})
}

// aWatchFallsSilent has the first watch of a store do so, and returns how long it took until that was noticed.
func aWatchFallsSilent(t *testing.T, s *Store, silence chan struct{}) time.Duration {
	t.Helper()
	silent := followPrefix(t, s, "p/")
	do(t, s, putTxn("p/1", "before"))
	silent.until("change before", silent.has("p/1", "before"))
	healthy := followPrefix(t, s, "q/")
	healthy.until("reset", func() bool { return healthy.resets == 1 })
	close(silence)
	do(t, s, putTxn("p/1", "after"))
	do(t, s, putTxn("q/1", "after"))
	began := time.Now()
	silent.until("change after", silent.has("p/1", "after"))
	took := time.Since(began)
	healthy.until("change after", healthy.has("q/1", "after"))
	if silent.resets != 2 || healthy.resets != 1 {
		t.Errorf("%d resets of the silent watch, %d of the healthy one", silent.resets, healthy.resets)
	}
	do(t, s, putTxn("p/1", "again"))
	silent.until("change after the reset", silent.has("p/1", "again"))
	return took
}

func TestProbeLeavesHealthyWatchesAlone(t *testing.T) {
	s := openEmbedded(t)
	var followers []*follower
	for i := range 64 {
		do(t, s, putTxn(fmt.Sprintf("p/%d/k", i), "1"))
		followers = append(followers, followPrefix(t, s, fmt.Sprintf("p/%d/", i)))
	}
	for _, f := range followers {
		f.until("reset", func() bool { return f.resets == 1 })
	}
	revision := do(t, s, putTxn("elsewhere", "1")).Revision
	// A follow that begins at the newest revision must not hold up the others.
	fresh := followPrefix(t, s, "fresh/")
	fresh.until("reset", func() bool { return fresh.resets == 1 })
	for _, f := range followers {
		f.until("position", func() bool { return f.mirror.Revision() >= revision })
		if f.resets != 1 || len(f.changes) != 1 {
			t.Fatalf("%d resets, changes %v", f.resets, f.changes)
		}
	}
}

func TestFollowChangesLeavesOutWhatIsThere(t *testing.T) {
	s := openEmbedded(t)
	before := do(t, s, putTxn("c/1", "a")).Revision
	batches := make(chan records.Batch, 100)
	t.Cleanup(s.FollowChanges("c/", func(batch records.Batch) { batches <- batch }))
	first := <-batches
	if !first.Reset || len(first.Events) != 0 || first.Revision < before {
		t.Fatalf("the first batch is %+v, want a Reset at %d or later", first, before)
	}
	after := do(t, s, putTxn("c/1", "b")).Revision
	batch := <-batches
	if batch.Reset || batch.Revision != after || len(batch.Events) != 1 || string(batch.Events[0].KV.Value) != "b" {
		t.Fatalf("the second batch is %+v, want the change at %d", batch, after)
	}
}
