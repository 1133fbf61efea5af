package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

// follower applies what a follow delivers and checks its promises.
type follower struct {
	t       *testing.T
	mirror  records.Mirror
	resets  int
	batches int
	stop    func()
}

func (b *bench) follow(t *testing.T, c *Client, prefix string) *follower {
	f := &follower{t: t}
	f.stop = c.Follow(prefix, func(batch records.Batch) {
		f.batches++
		switch {
		case batch.Reset:
			f.resets++
		case f.resets == 0:
			t.Error("changes before the first reset")
		case batch.Revision <= f.mirror.Revision():
			t.Errorf("a batch at %d after one at %d", batch.Revision, f.mirror.Revision())
		}
		f.mirror.Apply(batch)
	})
	b.until(t, "first reset", func() bool { return f.resets == 1 })
	return f
}

// same compares a follower with the true state.
func (b *bench) same(f *follower, prefix string) bool {
	n := 0
	for kv := range b.cluster.State().Range(prefix) {
		if known, _ := f.mirror.Get(kv.Key); known.Mod != kv.Mod {
			return false
		}
		n++
	}
	return n == f.mirror.Len()
}

func TestFollowHearsAllAgainAfterWhateverCutItOff(t *testing.T) {
	cases := map[string]struct {
		hurt, mend func(b *bench, c *Client)
		// within is how soon it must hear again while the fault lasts; 0 means only
		// after it has been mended.
		within time.Duration
	}{
		"its member is isolated": {
			func(b *bench, c *Client) { b.cluster.Isolate(c.Member()) },
			func(b *bench, _ *Client) { b.cluster.Rejoin(0); b.cluster.Rejoin(1); b.cluster.Rejoin(2) }, 20 * time.Second,
		},
		"its member is paused": {
			func(b *bench, c *Client) { b.cluster.Pause(c.Member()) },
			func(b *bench, _ *Client) { b.cluster.Resume(0); b.cluster.Resume(1); b.cluster.Resume(2) }, 20 * time.Second,
		},
		"its member stops": {
			func(b *bench, c *Client) { b.cluster.Stop(c.Member()) },
			func(b *bench, _ *Client) { b.cluster.Start(0); b.cluster.Start(1); b.cluster.Start(2) }, 5 * time.Second,
		},
		"the way to its member is cut": {
			func(b *bench, c *Client) { b.cluster.Link("n1").Cut(c.Member()) },
			func(b *bench, _ *Client) { b.cluster.Link("n1").HealAll() }, 20 * time.Second,
		},
		"every way is cut":        {func(b *bench, _ *Client) { b.cluster.Link("n1").CutAll() }, func(b *bench, _ *Client) { b.cluster.Link("n1").HealAll() }, 0},
		"answers are lost":        {func(b *bench, _ *Client) { b.cluster.Link("n1").LoseAnswers(true) }, func(b *bench, _ *Client) { b.cluster.Link("n1").LoseAnswers(false) }, 0},
		"all members are stopped": {func(b *bench, _ *Client) { b.cluster.Restart() }, func(*bench, *Client) {}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			seeds(t, 10, func(t *testing.T, seed uint64) {
				b := newBench(seed, DefaultOptions(3))
				client, other := b.cluster.Client("n1"), b.cluster.Client("n2")
				f := b.follow(t, client, "p/")
				b.txn(t, other, put("p/1", "1"))
				b.txn(t, other, put("p/2", "1"))
				b.until(t, "change", func() bool { return b.same(f, "p/") })
				c.hurt(b, client)
				b.advance(10 * time.Second)
				b.cluster.Delete("p/2")
				_, _ = b.cluster.Admin(&Txn{Then: []Op{putOp("p/3", "1")}})
				b.advance(c.within)
				if c.within > 0 && !b.same(f, "p/") {
					t.Errorf("%v after the change it has %v", c.within, f.mirror.Keys())
				}
				c.mend(b, client)
				b.advance(10 * time.Second)
				b.txn(t, other, put("p/1", "2"))
				b.advance(probeInterval)
				if !b.same(f, "p/") {
					t.Errorf("mended it has %v at %d", f.mirror.Keys(), f.mirror.Revision())
				}
			})
		})
	}
}

func TestFollowIsToldHowFarItHasHeard(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	f := b.follow(t, c, "p/")
	var last int64
	for i := range 20 {
		last = b.txn(t, c, put(fmt.Sprintf("q/%d", i), "")).Revision
	}
	b.advance(probeInterval + time.Second)
	if f.mirror.Revision() != last || f.batches != 2 {
		t.Errorf("at %d after %d batches, want %d", f.mirror.Revision(), f.batches, last)
	}
	for b.line.Next() { // an idle cluster has nothing left to do
	}
}

func TestFollowEndsWithItsStopAndItsClient(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c, other := b.cluster.Client("n1"), b.cluster.Client("n2")
	one, two := b.follow(t, c, "p/"), b.follow(t, c, "p/")
	b.txn(t, other, put("p/1", "1"))
	one.stop()
	one.stop()
	b.advance(time.Second)
	if one.batches != 1 || two.batches != 2 {
		t.Errorf("%d and %d batches", one.batches, two.batches)
	}
	b.txn(t, other, put("p/1", "2"))
	c.Close()
	heard := two.batches
	b.advance(time.Minute)
	if two.batches != heard || len(b.cluster.watches.all) != 0 || len(b.cluster.watches.lengths) != 0 {
		t.Errorf("%d batches; %d watches are left", two.batches, len(b.cluster.watches.all))
	}
}

func TestWatchLagDelaysChangesAndNothingElse(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	f := b.follow(t, c, "p/")
	b.cluster.Link("n1").WatchLag = 40 * time.Second
	sent := b.line.Now()
	b.txn(t, c, put("p/1", "1"))
	if took := b.line.Now() - sent; took > time.Second {
		t.Errorf("the write took %v", took)
	}
	b.cluster.Link("n1").WatchLag = 0
	b.txn(t, c, put("p/1", "2"))
	b.advance(30 * time.Second)
	if f.mirror.Len() != 0 {
		t.Error("heard too early")
	}
	b.until(t, "change", func() bool { return b.same(f, "p/") })
	if took := b.line.Now() - sent; took < 40*time.Second || f.resets != 1 {
		t.Errorf("heard after %v and %d resets", took, f.resets)
	}
}

func TestDeliveriesAreHeldByAMachineThatStandsStill(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	var held []func()
	c.Deliver = func(deliver func()) { held = append(held, deliver) }
	answers := 0
	c.Follow("p/", func(records.Batch) { answers++ })
	c.Txn(put("p/1", "1"), func(records.Result) { answers++ })
	c.Grant(time.Minute, func(actors.LeaseResult) { answers++ })
	b.advance(time.Second)
	if answers != 0 || len(held) < 3 {
		t.Fatalf("%d answers, %d held", answers, len(held))
	}
	held[0]()
	if answers != 1 {
		t.Errorf("%d answers", answers)
	}
	c.Close()
	held[1]()
	if answers != 1 {
		t.Error("a closed client heard something")
	}
}
