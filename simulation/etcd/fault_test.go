package etcd

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

// The facts of protocol.md section 0 that take several members, and the other faults
// of a cluster.

// leased is a cluster of three with a client at its leader and a key under a lease of
// ten seconds.
func leased(t *testing.T, seed uint64) (b *bench, c *Client, lease int64) {
	t.Helper()
	b = newBench(seed, DefaultOptions(3))
	c = b.cluster.Client("n1")
	c.UseMember(b.cluster.leader)
	granted := b.grant(t, c, 10*time.Second)
	if r := b.txn(t, c, records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "session", Lease: granted.Lease}}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	return b, c, granted.Lease
}

func (b *bench) grant(t testing.TB, c *Client, ttl time.Duration) actors.LeaseResult {
	t.Helper()
	r := b.lease(t, func(d func(actors.LeaseResult)) { c.Grant(ttl, d) })
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

func (b *bench) keep(t testing.TB, c *Client, lease int64) actors.LeaseResult {
	t.Helper()
	return b.lease(t, func(d func(actors.LeaseResult)) { c.KeepAlive(lease, d) })
}

func (b *bench) has(key string) bool {
	_, ok := b.cluster.State().Get(key)
	return ok
}

func (b *bench) follower() int { return (b.cluster.leader + 1) % len(b.cluster.members) }

func class(err error) records.Class { return records.ClassOf(err) }

// seeds runs a test with a few seeds: what is drawn must not matter.
func seeds(t *testing.T, n uint64, test func(t *testing.T, seed uint64)) {
	t.Helper()
	for seed := range n {
		test(t, seed)
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

func TestE9AWriteThatTimedOutMayBeCommittedLater(t *testing.T) {
	var never, atOnce, late, afterReads int
	seeds(t, 60, func(t *testing.T, seed uint64) {
		b := newBench(seed, DefaultOptions(3))
		c, other := b.cluster.Client("n1"), b.cluster.Client("n2")
		link := b.cluster.Link("n1")
		link.Unknown, link.Late = 1, time.Hour
		sent := b.line.Now()
		r := b.txn(t, c, put("k", "1"))
		if class(r.Err) != records.ClassOutcomeUnknown || b.line.Now()-sent != opTimeout {
			t.Fatalf("%v after %v", r.Err, b.line.Now()-sent)
		}
		found := b.txn(t, other, get("k"))
		_, there := found.First(0)
		for limit := b.line.Now() + 2*time.Hour; !b.has("k") && b.line.Now() < limit && b.line.Next(); {
		}
		switch {
		case there:
			atOnce++
		case b.has("k"):
			afterReads++
			if b.line.Now() > 10*time.Minute {
				late++
			}
		default:
			never++
		}
	})
	if never == 0 || atOnce == 0 || late == 0 || afterReads == late {
		t.Errorf("%d never, %d at once, %d after a read that did not see it, %d of them after minutes", never, atOnce, afterReads, late)
	}
}

func TestE9AWriteAtAPausedFollowerIsCommittedWhenItResumes(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c, other := b.cluster.Client("n1"), b.cluster.Client("n2")
	c.UseMember(b.follower())
	other.UseMember(b.cluster.leader)
	b.cluster.Pause(c.Member())
	paused := c.Member()
	if r := b.txn(t, c, put("k", "1")); class(r.Err) != records.ClassOutcomeUnknown {
		t.Fatal(r.Err)
	}
	b.advance(3 * time.Second)
	if _, ok := b.txn(t, other, get("k")).First(0); ok {
		t.Fatal("it is there already")
	}
	b.cluster.Resume(paused)
	b.advance(20 * time.Millisecond)
	if _, ok := b.txn(t, other, get("k")).First(0); !ok {
		t.Error("it is not there after the pause")
	}
}

func TestAWriteIsCommittedLateThoughItsClientIsClosed(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	c.Txn(put("k", "1"), func(records.Result) { t.Error("a closed client heard of it") })
	c.Close()
	b.advance(time.Minute)
	if !b.has("k") {
		t.Error("what was sent before the crash was not carried out")
	}
}

func TestE10ANewLeaderGivesEveryLeaseItsFullTTLAgain(t *testing.T) {
	for name, fault := range map[string]func(*Cluster){
		"a move of the leader":    func(c *Cluster) { c.MoveLeader() },
		"a restart":               func(c *Cluster) { c.Restart() },
		"a leader that is paused": func(c *Cluster) { c.Pause(c.leader) },
		"a leader that is cut":    func(c *Cluster) { c.Isolate(c.leader) },
		"a restored copy":         func(c *Cluster) { c.Restore(c.Snapshot(), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			seeds(t, 10, func(t *testing.T, seed uint64) {
				b, _, _ := leased(t, seed)
				b.advance(8 * time.Second)
				fault(b.cluster)
				changed := b.line.Now()
				b.until(t, "expiry", func() bool { return !b.has("session") })
				if took := b.line.Now() - changed; took < 10*time.Second || took > 15*time.Second {
					t.Errorf("expired %v after the change", took)
				}
			})
		})
	}
}

func TestALeaseOfALeaderThatWakesInTimeEndsWhenItIsDue(t *testing.T) {
	b, _, _ := leased(t, 1)
	b.advance(9500 * time.Millisecond)
	leader := b.cluster.leader
	b.cluster.Pause(leader)
	b.advance(900 * time.Millisecond)
	if !b.has("session") {
		t.Fatal("expired while nobody could process it")
	}
	b.cluster.Resume(leader)
	b.advance(time.Second)
	if b.has("session") || b.cluster.term != firstTerm {
		t.Errorf("still there in term %d", b.cluster.term)
	}
}

func TestE11ADeposedLeaderAcknowledgesKeepalivesThatRenewNothing(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		b, c, lease := leased(t, seed)
		old := b.cluster.leader
		b.cluster.Pause(old)
		b.until(t, "new leader", func() bool { return b.cluster.leader != old && b.cluster.healthy })
		elected := b.line.Now()
		b.advance(6600 * time.Millisecond)
		var answers []actors.LeaseResult
		c.KeepAlive(lease, func(r actors.LeaseResult) { answers = append(answers, r) })
		b.advance(50 * time.Millisecond)
		b.cluster.Resume(old)
		b.advance(9 * time.Millisecond)
		if len(answers) != 1 || answers[0].Err != nil || answers[0].Term != firstTerm || answers[0].TTL != 10*time.Second {
			t.Fatalf("a deposed leader answers %+v", answers)
		}
		confirmed := b.txn(t, c, get("session"))
		if _, ok := confirmed.First(0); !ok || confirmed.Term == answers[0].Term {
			t.Errorf("the read that confirms: %+v", confirmed)
		}
		b.until(t, "expiry", func() bool { return !b.has("session") })
		if took := b.line.Now() - elected; took > 12*time.Second {
			t.Errorf("the keepalive renewed the lease: it ended %v after the election", took)
		}
	})
}

func TestALeaderThatStepsDownTellsTheNewTermAndRenews(t *testing.T) {
	b, c, lease := leased(t, 2)
	old := b.cluster.leader
	b.cluster.Pause(old)
	b.until(t, "new leader", func() bool { return b.cluster.leader != old && b.cluster.healthy })
	b.cluster.Resume(old)
	b.advance(2 * time.Second)
	r := b.keep(t, c, lease)
	renewed := b.line.Now()
	if r.Err != nil || r.Term != b.cluster.term {
		t.Fatalf("%+v in term %d", r, b.cluster.term)
	}
	b.until(t, "expiry", func() bool { return !b.has("session") })
	if took := b.line.Now() - renewed; took < 9900*time.Millisecond {
		t.Errorf("it ended %v after it was renewed", took)
	}
}

func TestE12AWatchOnAnIsolatedMemberIsSilentUnlessItRequiresALeader(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c, other := b.cluster.Client("n1"), b.cluster.Client("n2")
	c.UseMember(b.follower())
	other.UseMember(b.cluster.leader)
	var plain, strict heard
	c.Watch("p/", 0, false, plain.add)
	c.Watch("p/", 0, true, strict.add)
	first := b.txn(t, other, put("p/1", "1"))
	b.advance(time.Second)
	b.cluster.Isolate(c.Member())
	cut := b.line.Now()
	second := b.txn(t, other, put("p/1", "2"))
	b.until(t, "end of the watch that requires a leader", func() bool { _, err := strict.events(); return err != nil })
	if took := b.line.Now() - cut; took < 3*time.Second || took > 5*time.Second {
		t.Errorf("it ended after %v", took)
	}
	var failed error
	c.Watch("p/", 0, true, func(_ records.Batch, err error) { failed = err })
	b.advance(time.Hour)
	if events, err := plain.events(); len(events) != 1 || err != nil {
		t.Errorf("a plain watch heard %v, %v", events, err)
	}
	if refusalOf(failed) != refusalOf(ErrNoLeader) {
		t.Errorf("a watch that requires a leader where there is none: %v", failed)
	}
	var old records.Result
	c.ReadLocal(get("p/1"), func(r records.Result) { old = r })
	b.advance(time.Second)
	if kv, _ := old.First(0); kv.Mod != first.Revision || old.Revision != first.Revision {
		t.Errorf("a serializable read there answers %+v at %d", kv, old.Revision)
	}
	b.cluster.Rejoin(c.Member())
	b.advance(time.Second)
	if events, err := plain.events(); err != nil || len(events) != 2 || events[1].KV.Mod != second.Revision {
		t.Errorf("back among the others the watch heard %v, %v", events, err)
	}
}

func TestAnIsolatedMemberAnswersAnOldReadThoughTheOthersCompacted(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c, other := b.cluster.Client("n1"), b.cluster.Client("n2")
	c.UseMember(b.follower())
	other.UseMember(b.cluster.leader)
	var plain heard
	c.Watch("k", 0, false, plain.add)
	first := b.txn(t, other, put("k", "1"))
	b.advance(time.Second)
	b.cluster.Isolate(c.Member())
	for range 5 {
		b.txn(t, other, put("k", "2"))
	}
	if err := b.cluster.Compact(0); err != nil {
		t.Fatal(err)
	}
	var old records.Result
	c.ReadLocal(get("k"), func(r records.Result) { old = r })
	b.advance(time.Second)
	if kv, _ := old.First(0); kv.Mod != first.Revision || string(kv.Value) != "1" {
		t.Errorf("it answers %+v", kv)
	}
	b.cluster.Rejoin(c.Member())
	b.advance(time.Second)
	if _, err := plain.events(); refusalOf(err) != refusalOf(ErrCompacted) {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestE13ARestoredCopyGivesOutRevisionsAgain(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	b.txn(t, c, put("k", "1"))
	copied := b.cluster.Snapshot()
	first := b.txn(t, c, put("session/one", ""))
	b.cluster.Restore(copied, 0)
	b.advance(3 * time.Second)
	second := b.txn(t, c, put("session/two", ""))
	if second.Err != nil || second.Revision != first.Revision || b.has("session/one") {
		t.Errorf("revision %d after the restore, %d before; %v", second.Revision, first.Revision, second.Err)
	}
	b.cluster.Restore(copied, 1000)
	b.advance(3 * time.Second)
	if third := b.txn(t, c, put("session/three", "")); third.Revision != copied.state.revision+1001 {
		t.Errorf("revision %d after a bump by 1000 from %d", third.Revision, copied.state.revision)
	}
	if kv, ok := b.cluster.State().Get("k"); !ok || string(kv.Value) != "1" || len(copied.state.past) != 1 {
		t.Errorf("the copy holds %+v", kv)
	}
}

func TestAFullDatabaseRefusesWhatGrowsItAndTakesTheRest(t *testing.T) {
	b, c, lease := leased(t, 1)
	b.cluster.Faults.Full = true
	if r := b.txn(t, c, put("k", "1")); class(r.Err) != records.ClassUnavailable {
		t.Errorf("put: %v", r.Err)
	}
	both := records.Txn{Then: []records.Op{records.Get("k")}, Else: put("k", "1").Then}
	if r := b.txn(t, c, both); class(r.Err) != records.ClassUnavailable {
		t.Errorf("a put in the branch that is not taken: %v", r.Err)
	}
	if r := b.lease(t, func(d func(actors.LeaseResult)) { c.Grant(time.Minute, d) }); class(r.Err) != records.ClassUnavailable {
		t.Errorf("grant: %v", r.Err)
	}
	if r := b.keep(t, c, lease); r.Err != nil {
		t.Errorf("keepalive: %v", r.Err)
	}
	if r := b.txn(t, c, records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: "session"}}}); r.Err != nil || b.has("session") {
		t.Errorf("delete: %v", r.Err)
	}
	b.cluster.Faults.Full = false
	if r := b.txn(t, c, put("k", "1")); r.Err != nil {
		t.Errorf("with room again: %v", r.Err)
	}
}

func TestAnOverloadedClusterRefusesWritesAndReads(t *testing.T) {
	b := newBench(1, DefaultOptions(3))
	c := b.cluster.Client("n1")
	b.cluster.Faults.Overload = 1
	if r := b.txn(t, c, put("k", "1")); class(r.Err) != records.ClassUnavailable || b.has("k") {
		t.Errorf("put: %v", r.Err)
	}
	if r := b.txn(t, c, get("k")); r.Err != nil {
		t.Errorf("read: %v", r.Err)
	}
}

func TestWithoutAQuorumNothingIsCommittedUntilThereIsOneAgain(t *testing.T) {
	b := newBench(1, DefaultOptions(5))
	c := b.cluster.Client("n1")
	b.cluster.Isolate(0)
	b.cluster.Pause(1)
	b.advance(5 * time.Second)
	c.UseMember(3)
	if r := b.txn(t, c, put("k", "1")); r.Err != nil {
		t.Fatalf("with three of five: %v", r.Err)
	}
	b.cluster.Stop(2)
	c.UseMember(3)
	if r := b.txn(t, c, put("k", "2")); class(r.Err) != records.ClassOutcomeUnknown {
		t.Errorf("with two of five: %v", r.Err)
	}
	if r := b.txn(t, c, get("k")); class(r.Err) != records.ClassUnavailable {
		t.Errorf("a read with two of five: %v", r.Err)
	}
	b.cluster.Start(2)
	b.advance(3 * time.Second)
	if r := b.txn(t, c, put("k", "3")); r.Err != nil {
		t.Errorf("with three again: %v", r.Err)
	}
}

func TestAdministratorsActAtOnce(t *testing.T) {
	b, _, lease := leased(t, 1)
	before, _ := b.cluster.State().Get("session")
	if !b.cluster.Unlease("session") {
		t.Fatal("no session")
	}
	if kv, _ := b.cluster.State().Get("session"); kv.Lease != 0 || kv.Create != before.Create {
		t.Errorf("put again without a lease: %+v", kv)
	}
	if !b.cluster.DropLease(lease) || b.cluster.DropLease(lease) || !b.has("session") {
		t.Error("the lease was not dropped, or took what it no longer held")
	}
	b.cluster.Delete("session")
	if b.has("session") {
		t.Error("the session is still there")
	}
}

func TestAWriteThatWaitsForALeaderThatWakesInTimeIsCommitted(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		b := newBench(seed, DefaultOptions(3))
		c := b.cluster.Client("n1")
		c.UseMember(b.follower())
		leader := b.cluster.leader
		b.cluster.Pause(leader)
		b.line.After(900*time.Millisecond, func() { b.cluster.Resume(leader) })
		if r := b.txn(t, c, put("k", "1")); r.Err != nil || b.line.Now() > time.Second {
			t.Errorf("%v after %v", r.Err, b.line.Now())
		}
	})
}
