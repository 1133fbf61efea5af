package etcd

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

func TestClientCommitsFollowsAndLeases(t *testing.T) {
	for _, members := range []int{1, 3, 5} {
		b := newBench(uint64(members), DefaultOptions(members))
		c := b.cluster.Client("n1")
		var mirror records.Mirror
		resets := 0
		c.Follow("/p/", func(batch records.Batch) {
			if batch.Reset {
				resets++
			}
			mirror.Apply(batch)
		})
		first := b.txn(t, c, put("/p/1", "a"))
		if first.Err != nil || first.Revision != firstRevision+1 || first.Term != firstTerm {
			t.Fatalf("%+v", first)
		}
		b.until(t, "change", func() bool { _, ok := mirror.Get("/p/1"); return ok })
		lease := b.lease(t, func(deliver func(actors.LeaseResult)) { c.Grant(3*time.Second, deliver) })
		if lease.Err != nil || lease.TTL != 3*time.Second {
			t.Fatalf("%+v", lease)
		}
		granted := b.line.Now()
		if r := b.txn(t, c, records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "/p/2", Lease: lease.Lease}}}); r.Err != nil {
			t.Fatal(r.Err)
		}
		b.advance(2 * time.Second)
		if r := b.lease(t, func(deliver func(actors.LeaseResult)) { c.KeepAlive(lease.Lease, deliver) }); r.Err != nil || r.Term != firstTerm {
			t.Fatalf("%+v", r)
		}
		b.until(t, "expiry", func() bool { _, ok := mirror.Get("/p/2"); return !ok })
		if took := b.line.Now() - granted; took < 5*time.Second || took > 6*time.Second {
			t.Errorf("expired after %v", took)
		}
		if r := b.lease(t, func(deliver func(actors.LeaseResult)) { c.KeepAlive(lease.Lease, deliver) }); records.ClassOf(r.Err) != records.ClassNotFound {
			t.Errorf("keepalive of a lease that is gone: %+v", r)
		}
		revision := b.txn(t, c, put("/q", "")).Revision
		b.advance(probeInterval + time.Second)
		if mirror.Revision() != revision || resets != 1 {
			t.Errorf("at %d after %d resets, want %d", mirror.Revision(), resets, revision)
		}
	}
}
