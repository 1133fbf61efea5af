package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
)

// revisionBump is by how much the n-th restore moves the revision on, times n: far more
// than can have been lost, and never to revisions that a restore of before has reached.
const revisionBump = 1_000_000_000

// firstCopy is when the first copy of the store is made: one of before would not know
// whose the names of the nodes are, which only their administrators do.
const firstCopy = 5 * time.Second

// applyRestore replaces the store by an older copy.
func (w *World) applyRestore(a *active, f plan.StoreRestored) (end func()) {
	switch {
	case a.snapshot == nil:
		return nil
	case f.Raw:
		w.replaceStore(a.snapshot, true)
		return nil
	case w.online(f):
		w.refreshStoreLinks()
		return func() {
			if w.timeline.Now()-a.Begin.D() >= w.goneFor() {
				w.replaceStore(a.snapshot, false)
			}
			w.refreshStoreLinks()
		}
	default:
		var ends []func()
		for _, s := range w.sorted {
			ends = append(ends, w.withoutDaemon(s, func() { w.exit(s, -1) }))
		}
		w.replaceStore(a.snapshot, false)
		return func() {
			for _, end := range ends {
				end()
			}
		}
	}
}

// online tells whether a restore leaves the daemons as they are. A store that lives in
// the daemon itself is down with it.
func (w *World) online(f plan.StoreRestored) bool { return f.Online && !w.plan.Options.Solo }

// goneFor is how long nobody may have reached the store before a copy is put in its
// place under the eyes of nodes: by then all that they ran is over.
func (w *World) goneFor() time.Duration {
	s := w.plan.Options.Session
	window := (s.Lease - s.Margin).D()
	return window + time.Duration(float64(window)*s.Drift) + s.KillBudget.D()
}

// replaceStore is what an administrator does: he restores the copy and, unless it is
// raw, raises the epoch above all that there were and deletes all sessions.
func (w *World) replaceStore(snapshot *etcd.Snapshot, raw bool) {
	bump := revisionBump * w.epoch
	if raw {
		bump = 0
	}
	w.Store.Restore(snapshot, bump)
	w.history.Add(history.Event{
		Step: w.steps, At: w.timeline.Now(), Kind: history.KindRestore, Text: fmt.Sprintf("the store is that of revision %d", w.Store.State().Revision()-bump),
		Detail: history.Restore{Records: slices.Collect(w.Store.State().Range(w.keys.Root)), Raw: raw},
	})
	if raw {
		return
	}
	w.epoch++
	kv, ok := w.Store.State().Get(w.keys.Cluster())
	cluster := &recordv1.Cluster{}
	if !ok || records.Decode(kv, cluster) != nil {
		panic("world: the copy holds no cluster")
	}
	cluster.Epoch, cluster.RestoredThrough = w.epoch, w.Store.State().Revision()
	cluster.RestoredAt = w.timeline.Now().Milliseconds()
	_, err := w.Store.Admin(&etcd.Txn{Then: []etcd.Op{
		{Kind: etcd.Put, Span: etcd.Span{Key: kv.Key}, Value: records.Encode(cluster)},
		{Kind: etcd.Delete, Span: etcd.Span{Key: w.keys.Nodes(), Prefix: true}},
	}})
	if err != nil {
		panic(fmt.Sprintf("world: raise the epoch: %v", err))
	}
}
