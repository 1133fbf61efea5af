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

func TestClientMovesToAnotherMemberWhenItsOwnFails(t *testing.T) {
	cases := map[string]struct {
		fault func(b *bench, m int)
		write records.Class
		// read is how long a read may take.
		read time.Duration
	}{
		"stopped":  {func(b *bench, m int) { b.cluster.Stop(m) }, 0, 10 * time.Millisecond},
		"paused":   {func(b *bench, m int) { b.cluster.Pause(m) }, records.ClassOutcomeUnknown, 2100 * time.Millisecond},
		"cut":      {func(b *bench, m int) { b.cluster.Link("n1").Cut(m) }, records.ClassOutcomeUnknown, 2100 * time.Millisecond},
		"isolated": {func(b *bench, m int) { b.cluster.Isolate(m) }, records.ClassOutcomeUnknown, 2100 * time.Millisecond},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, write := range []bool{true, false} {
				b := newBench(3, DefaultOptions(3))
				client := b.cluster.Client("n1")
				m := b.follower()
				client.UseMember(m)
				c.fault(b, m)
				sent := b.line.Now()
				if !write {
					if r := b.txn(t, client, get("k")); r.Err != nil || b.line.Now()-sent > c.read {
						t.Errorf("read: %v after %v", r.Err, b.line.Now()-sent)
					}
					continue
				}
				r := b.txn(t, client, put("k", "1"))
				if c.write != 0 && records.ClassOf(r.Err) != c.write || c.write == 0 && r.Err != nil {
					t.Errorf("write: %v", r.Err)
				}
				if client.Member() == m {
					t.Error("the client stays")
				}
				if r := b.txn(t, client, put("k", "2")); r.Err != nil {
					t.Errorf("the next write: %v", r.Err)
				}
			}
		})
	}
}

func TestNothingIsSentWhereNobodyListens(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	for m := range 3 {
		b.cluster.Stop(m)
	}
	sent := b.line.Now()
	if r := b.txn(t, c, put("k", "1")); records.ClassOf(r.Err) != records.ClassUnavailable || b.line.Now()-sent > time.Second {
		t.Errorf("write: %v", r.Err)
	}
	sent = b.line.Now()
	if r := b.txn(t, c, get("k")); records.ClassOf(r.Err) != records.ClassUnavailable || b.line.Now()-sent != opTimeout {
		t.Errorf("read: %v after %v", r.Err, b.line.Now()-sent)
	}
}

func TestWritesBeyondThoseInFlightWaitAndAreNotSentTooLate(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	b.cluster.Link("n1").CutAll()
	classes := map[records.Class]int{}
	for range 2 * inFlightMax {
		c.Txn(put("k", "1"), func(r records.Result) { classes[records.ClassOf(r.Err)]++ })
	}
	if len(classes) != 0 {
		t.Error("answered within the call")
	}
	b.advance(opTimeout + time.Second)
	if classes[records.ClassOutcomeUnknown] != inFlightMax || classes[records.ClassUnavailable] != inFlightMax {
		t.Errorf("%v", classes)
	}
}

func TestCallsAboutLeasesAreBounded(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	b.cluster.Link("n1").CutAll()
	for what, call := range map[records.Class][]func(func(actors.LeaseResult)){
		records.ClassUnavailable: {func(d func(actors.LeaseResult)) { c.KeepAlive(1, d) }},
		records.ClassOutcomeUnknown: {
			func(d func(actors.LeaseResult)) { c.Grant(time.Minute, d) },
			func(d func(actors.LeaseResult)) { c.Revoke(1, d) },
		},
	} {
		for _, each := range call {
			sent := b.line.Now()
			if r := b.lease(t, each); records.ClassOf(r.Err) != what || b.line.Now()-sent != leaseTimeout {
				t.Errorf("%v after %v, want %v", r.Err, b.line.Now()-sent, what)
			}
		}
	}
}

func TestRefusalsAreDefiniteAndAsInProduction(t *testing.T) {
	b := newBench(1, DefaultOptions(1))
	c := b.cluster.Client("n1")
	op := records.Op{Kind: records.OpPut, Key: "k"}
	for name, want := range map[string]struct {
		txn   records.Txn
		class records.Class
	}{
		"a key put twice":              {records.Txn{Then: []records.Op{op, op}}, records.ClassInvalid},
		"an empty key":                 {records.Txn{Then: []records.Op{{Kind: records.OpPut}}}, records.ClassInvalid},
		"a lease that does not exist":  {records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "k", Lease: 77}}}, records.ClassLostOwnership},
		"an operation of no kind":      {records.Txn{Then: []records.Op{{Key: "k"}}}, records.ClassInvalid},
		"a compare of no target":       {records.Txn{If: []records.Compare{{Key: "k", Relation: records.Equal}}, Then: []records.Op{op}}, records.ClassInvalid},
		"more operations than allowed": {records.Txn{Then: make([]records.Op, OpsMax+1)}, records.ClassInvalid},
	} {
		if r := b.txn(t, c, want.txn); r.Err == nil || records.ClassOf(r.Err) != want.class || b.has("k") {
			t.Errorf("%s: %v (%v), want %v", name, r.Err, records.ClassOf(r.Err), want.class)
		}
	}
}
