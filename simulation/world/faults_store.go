package world

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/plan"
)

// cutAfterPause is how long a node is cut off once the leader that it may have
// renewed at wakes up.
const cutAfterPause = time.Minute

// applyStore applies the faults of the store and of the ways to it.
func (w *World) applyStore(a *active) (end func()) {
	switch f := a.What.(type) {
	case plan.StoreAway, plan.WatchLag, plan.Unknown:
		w.refreshStoreLinks()
		return w.refreshStoreLinks
	case plan.LeaderPause:
		return w.pauseLeader(f)
	case plan.LeaderChange:
		w.Store.MoveLeader()
		return nil
	case plan.MemberCut:
		member := f.Member % w.Store.Members()
		w.Store.Isolate(member)
		return func() { w.Store.Rejoin(member) }
	case plan.KeyRemoved:
		w.Store.Delete(w.keys.Node(f.Node))
		return nil
	case plan.LeaseDropped:
		w.Store.Unlease(w.keys.Node(f.Node))
		return nil
	case plan.LeaseRevoked:
		if s := w.seats[f.Node]; s != nil {
			w.revoke(s)
		}
		return nil
	case plan.Compaction:
		_ = w.Store.Compact(0) // somebody may have compacted further
		return nil
	case plan.StoreRefuses:
		w.refreshStoreLinks()
		return w.refreshStoreLinks
	case plan.StoreRestored:
		return w.applyRestore(a, f)
	default:
		panic(fmt.Sprintf("world: nobody applies %s", a.What.Kind()))
	}
}

// revoke ends the lease of a node's session.
func (w *World) revoke(s *seat) {
	if kv, ok := w.Store.State().Get(w.keys.Node(s.name)); ok && kv.Lease != 0 {
		w.Store.DropLease(kv.Lease)
	}
}

// pauseLeader stops the leader, and may cut a node off when it wakes up: what that
// node has renewed at it in the meantime counts for nothing.
func (w *World) pauseLeader(f plan.LeaderPause) (end func()) {
	leader, _ := w.Store.Leader()
	w.Store.Pause(leader)
	if f.Then != "" {
		for _, s := range w.sorted {
			if s.daemon != nil && s.name == f.Then {
				s.daemon.store.UseMember(leader)
			}
		}
	}
	return func() {
		w.Store.Resume(leader)
		if f.Then == "" || w.faults.over {
			return
		}
		link := w.Store.Link(f.Then)
		link.CutAll()
		w.timeline.After(cutAfterPause, func() {
			if !w.faults.over {
				w.refreshStoreLinks()
			}
		})
	}
}

// refreshStoreLinks derives how every node's way to the store is from the faults
// under way.
func (w *World) refreshStoreLinks() {
	w.Store.Faults = etcd.Faults{}
	for _, s := range w.sorted {
		link := w.Store.Link(s.name)
		link.WatchLag, link.Unknown, link.Late = 0, 0, 0
		cut, mute := false, false
		for _, a := range w.faults.active {
			switch f := a.What.(type) {
			case plan.StoreAway:
				if f.Node == "" || f.Node == s.name {
					cut, mute = cut || !f.Answers, mute || f.Answers
				}
			case plan.StoreRestored:
				cut = cut || w.online(f)
			case plan.WatchLag:
				if f.Node == s.name {
					link.WatchLag = max(link.WatchLag, f.By.D())
				}
			case plan.Unknown:
				if f.Node == s.name {
					link.Unknown, link.Late = max(link.Unknown, f.Chance), max(link.Late, f.Late.D())
				}
			case plan.StoreRefuses:
				if f.Full {
					w.Store.Faults.Full = true
				} else {
					w.Store.Faults.Overload = 0.7
				}
			}
		}
		if cut {
			link.CutAll()
		} else {
			link.HealAll()
		}
		link.LoseAnswers(mute)
	}
}
