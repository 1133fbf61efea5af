package etcd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// The cases below are the facts of protocol.md section 0 that one server shows. Each
// runs on the model and on the real thing.

func putOp(key, value string) Op {
	return Op{Kind: Put, Span: Span{Key: key}, Value: []byte(value)}
}

func leaseOp(key string, lease int64) Op {
	return Op{Kind: Put, Span: Span{Key: key}, Lease: lease}
}

func getOp(key string) Op { return Op{Kind: Range, Span: Span{Key: key}} }

func deleteOp(key string) Op { return Op{Kind: Delete, Span: Span{Key: key}} }

func nest(compares []Compare, then ...Op) Op {
	return Op{Kind: Nested, Txn: &Txn{If: compares, Then: then}}
}

func modIs(key string, revision int64) []Compare {
	return []Compare{{Span: Span{Key: key}, Target: TargetMod, Relation: Equal, Operand: revision}}
}

func must(t *testing.T, s subject, ops ...Op) Response {
	t.Helper()
	response, err := s.txn(Txn{Then: ops})
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func refused(t *testing.T, s subject, want error, ops ...Op) {
	t.Helper()
	before := must(t, s, getOp("any")).Revision
	_, err := s.txn(Txn{Then: ops})
	if refusalOf(err) != refusalOf(want) {
		t.Errorf("refused with %v, want %v", err, want)
	}
	if after := must(t, s, getOp("any")).Revision; after != before {
		t.Errorf("the refused batch made revision %d of %d", after, before)
	}
}

func read(t *testing.T, s subject, key string) records.KV {
	t.Helper()
	if kvs := must(t, s, getOp(key)).Ops[0].KVs; len(kvs) == 1 {
		return kvs[0]
	}
	return records.KV{}
}

func TestE1ComparesOfChildrenSeeTheStateBefore(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		revision := must(t, s, putOp("run", "0")).Revision
		response := must(t, s,
			nest(modIs("run", revision), putOp("run", "1"), putOp("first", "1")),
			nest(modIs("run", revision), getOp("first"), getOp("run")))
		second := response.Ops[1].Txn
		if !response.Ops[0].Txn.Succeeded || !second.Succeeded {
			t.Error("two children that compare one revision do not both succeed")
		}
		if len(second.Ops[0].KVs) != 1 || string(second.Ops[1].KVs[0].Value) != "1" {
			t.Errorf("a range in a child does not see what its sibling wrote: %+v", second)
		}
	})
}

func TestE2OverlapsRefuseTheWholeBatch(t *testing.T) {
	exclusive := Op{Kind: Nested, Txn: &Txn{Then: []Op{putOp("k", "1")}, Else: []Op{putOp("k", "2")}}}
	cases := []struct {
		name string
		ops  []Op
		want error
	}{
		{"siblings put one key", []Op{nest(nil, putOp("other", "")), nest(nil, putOp("k", "")), nest(nil, putOp("k", ""))}, ErrDuplicateKey},
		{"a sibling deletes and the next puts", []Op{nest(nil, deleteOp("k")), nest(nil, putOp("k", ""))}, ErrDuplicateKey},
		{"a sibling deletes a prefix and the next puts in it", []Op{nest(nil, Op{Kind: Delete, Span: Span{Key: "k", Prefix: true}}), nest(nil, putOp("k/1", ""))}, ErrDuplicateKey},
		{"a sibling puts and the next deletes", []Op{nest(nil, putOp("k", "")), nest(nil, deleteOp("k"))}, nil},
		{"one list puts and deletes", []Op{putOp("k", ""), deleteOp("k")}, ErrDuplicateKey},
		{"one list puts twice", []Op{putOp("k", ""), putOp("k", "")}, ErrDuplicateKey},
		{"a child and its parent put", []Op{nest(nil, putOp("k", "")), putOp("k", "")}, ErrDuplicateKey},
		{"a child puts and its parent deletes", []Op{nest(nil, putOp("k", "")), deleteOp("k")}, ErrDuplicateKey},
		{"both branches of a child put", []Op{exclusive}, nil},
		{"two children put in branches that exclude each other", []Op{exclusive, exclusive}, ErrDuplicateKey},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s subject) {
				if c.want != nil {
					refused(t, s, c.want, c.ops...)
					return
				}
				must(t, s, c.ops...)
			})
		})
	}
}

func TestE3TheOperationLimitAddsUpAlongThePath(t *testing.T) {
	batch := func(children, width int) []Op {
		var ops []Op
		for i := range children {
			var inner []Op
			for j := range width {
				inner = append(inner, putOp(fmt.Sprintf("%d/%d", i, j), ""))
			}
			ops = append(ops, nest(nil, inner...))
		}
		return ops
	}
	onBoth(t, func(t *testing.T, s subject) {
		must(t, s, batch(123, 5)...)
		refused(t, s, ErrTooManyOps, batch(124, 5)...)
		var flat []Op
		for i := range 128 {
			flat = append(flat, putOp(fmt.Sprint(i), ""))
		}
		must(t, s, flat...)
		refused(t, s, ErrTooManyOps, append(flat, putOp("more", ""))...)
	})
}

func TestE4WhatOneChildCanNotDoRefusesTheBatchIfItsBranchIsTaken(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		must(t, s, putOp("k", ""))
		must(t, s, putOp("k", ""))
		revision := must(t, s, putOp("k", "")).Revision
		if err := s.compact(revision - 1); err != nil {
			t.Fatal(err)
		}
		at := func(revision int64) Op { return Op{Kind: Range, Span: Span{Key: "k"}, Revision: revision} }
		for _, c := range []struct {
			op   Op
			want error
		}{{leaseOp("leased", 77), errLeaseOfPut}, {at(revision + 5), ErrFutureRevision}, {at(revision - 2), ErrCompacted}} {
			refused(t, s, c.want, nest(nil, putOp("innocent", "")), nest(nil, c.op))
			notTaken := Op{Kind: Nested, Txn: &Txn{Else: []Op{c.op}}}
			must(t, s, nest(nil, putOp("innocent", "")), notTaken)
		}
		if kvs := must(t, s, at(revision-1)).Ops[0].KVs; len(kvs) != 1 || kvs[0].Mod != revision-1 {
			t.Errorf("at the compacted revision: %+v", kvs)
		}
	})
}

func TestE5OnlyTheOuterHeaderHasARevision(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		h := s.watch("p/", must(t, s, getOp("p/")).Revision+1)
		response := must(t, s, nest(nil, putOp("p/a", "1")), nest(nil, putOp("p/b", "1")))
		for i, op := range response.Ops {
			if op.Txn.Revision != 0 {
				t.Errorf("child %d has revision %d", i, op.Txn.Revision)
			}
		}
		for _, key := range []string{"p/a", "p/b"} {
			if kv := read(t, s, key); kv.Mod != response.Revision || kv.Create != response.Revision {
				t.Errorf("%s at mod %d, create %d, the batch at %d", key, kv.Mod, kv.Create, response.Revision)
			}
		}
		s.await("events", func() bool { events, _ := h.events(); return len(events) == 2 })
		if len(h.batches) != 1 {
			t.Errorf("%d watch responses for one batch", len(h.batches))
		}
	})
}

func TestE6ComparesOfAbsentKeys(t *testing.T) {
	x, nobody, there := Span{Key: "x"}, Span{Key: "nobody/", Prefix: true}, Span{Key: "there/", Prefix: true}
	cases := []struct {
		name  string
		c     Compare
		holds bool
	}{
		{"create=0", Compare{Span: x, Target: TargetCreate, Relation: Equal}, true},
		{"create!=77", Compare{Span: x, Target: TargetCreate, Relation: NotEqual, Operand: 77}, true},
		{"create<1", Compare{Span: x, Target: TargetCreate, Relation: Less, Operand: 1}, true},
		{"mod>0", Compare{Span: x, Target: TargetMod, Relation: Greater}, false},
		{"lease=0", Compare{Span: x, Target: TargetLease, Relation: Equal}, true},
		{"version=0", Compare{Span: x, Target: TargetVersion, Relation: Equal}, true},
		{"value!=x", Compare{Span: x, Target: TargetValue, Relation: NotEqual, Value: []byte("x")}, false},
		{"value=", Compare{Span: x, Target: TargetValue, Relation: Equal}, false},
		{"create=0 of an empty prefix", Compare{Span: nobody, Target: TargetCreate, Relation: Equal}, true},
		{"value!=x of an empty prefix", Compare{Span: nobody, Target: TargetValue, Relation: NotEqual, Value: []byte("x")}, false},
		{"create=0 of a prefix with a key", Compare{Span: there, Target: TargetCreate, Relation: Equal}, false},
		{"create>0 of a prefix with keys", Compare{Span: there, Target: TargetCreate, Relation: Greater}, true},
		{"value=2 of a prefix where one differs", Compare{Span: there, Target: TargetValue, Relation: Equal, Value: []byte("2")}, false},
	}
	onBoth(t, func(t *testing.T, s subject) {
		must(t, s, putOp("there/1", "1"), putOp("there/2", "2"))
		for _, c := range cases {
			response, err := s.txn(Txn{If: []Compare{c.c}, Then: []Op{getOp("x")}})
			if err != nil || response.Succeeded != c.holds {
				t.Errorf("%s: holds = %v, %v; want %v", c.name, response.Succeeded, err, c.holds)
			}
		}
	})
}

func TestE7APutMovesTheLeaseAndKeepsTheCreateRevision(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		l1, l2 := s.grant(600), s.grant(600)
		created := must(t, s, leaseOp("k", l1)).Revision
		must(t, s, leaseOp("k", l2))
		if kv := read(t, s, "k"); kv.Create != created || kv.Lease != l2 {
			t.Errorf("%+v, want create %d and lease %d", kv, created, l2)
		}
		if err := s.revoke(l1); err != nil {
			t.Fatal(err)
		}
		if read(t, s, "k").Key == "" {
			t.Error("the key went with the lease that it had left")
		}
		must(t, s, putOp("k", ""))
		if err := s.revoke(l2); err != nil {
			t.Fatal(err)
		}
		if kv := read(t, s, "k"); kv.Create != created || kv.Lease != 0 {
			t.Errorf("after a put without a lease: %+v", kv)
		}
		l3 := s.grant(600)
		must(t, s, leaseOp("b", l3), leaseOp("a", l3))
		h := s.watch("", must(t, s, getOp("k")).Revision+1)
		if err := s.revoke(l3); err != nil {
			t.Fatal(err)
		}
		s.await("deletions", func() bool { events, _ := h.events(); return len(events) == 2 })
		if events, _ := h.events(); events[0].KV.Key != "a" || events[0].KV.Mod != events[1].KV.Mod || !events[0].Deleted {
			t.Errorf("a revoke deletes in order and at one revision: %+v", events)
		}
		for what, err := range map[string]error{"revoke": s.revoke(l3), "keepalive": s.keepAlive(l3)} {
			if refusalOf(err) != refusalOf(errLeaseGone) {
				t.Errorf("%s of a lease that is gone: %v", what, err)
			}
		}
	})
}

func TestE8TheRequestLimit(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		must(t, s, putOp("k", strings.Repeat("x", RequestMax-200)))
		refused(t, s, ErrTooLarge, putOp("k", strings.Repeat("x", RequestMax)))
		half := strings.Repeat("x", RequestMax/2)
		refused(t, s, ErrTooLarge, nest(nil, putOp("a", half)), nest(nil, putOp("b", half)))
	})
}

func TestE10ALeaseEndsLateAndNeverEarly(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		granted := s.now()
		lease := s.grant(2)
		must(t, s, leaseOp("k", lease))
		h := s.watch("k", must(t, s, getOp("k")).Revision+1)
		s.await("expiry", func() bool { events, _ := h.events(); return len(events) == 1 })
		if took := s.now() - granted; took < 2*time.Second || took > 4*time.Second {
			t.Errorf("it ended after %v", took)
		}
		renewed := s.grant(2)
		must(t, s, leaseOp("k", renewed))
		var last time.Duration
		for range 3 {
			last = s.now()
			if err := s.keepAlive(renewed); err != nil {
				t.Fatal(err)
			}
			s.pass(time.Second)
		}
		s.await("expiry", func() bool { events, _ := h.events(); return slices.ContainsFunc(events[1:], isDeleted) })
		if took := s.now() - last; took < 2*time.Second || took > 4*time.Second {
			t.Errorf("renewed, it ended after %v", took)
		}
	})
}

func isDeleted(e records.Event) bool { return e.Deleted }

func TestE12ASerializableReadOfAHealthyMember(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		revision := must(t, s, putOp("k", "1")).Revision
		if kvs := s.local("k"); len(kvs) != 1 || kvs[0].Mod != revision {
			t.Errorf("%+v", kvs)
		}
	})
}

func TestWatchesEndWithAnErrorWhereTheirPastIsCompacted(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		first := must(t, s, putOp("p/1", "1")).Revision
		must(t, s, putOp("p/1", "2"))
		must(t, s, deleteOp("p/1"))
		last := must(t, s, putOp("p/2", "3")).Revision
		if err := s.compact(last - 1); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"again": s.compact(last - 1), "of the future": s.compact(last + 10)} {
			want := map[string]error{"again": ErrCompacted, "of the future": ErrFutureRevision}[what]
			if refusalOf(err) != refusalOf(want) {
				t.Errorf("compaction %s: %v", what, err)
			}
		}
		old, fresh := s.watch("p/", first), s.watch("p/", last)
		s.await("error", func() bool { _, err := old.events(); return err != nil })
		if _, err := old.events(); refusalOf(err) != refusalOf(ErrCompacted) {
			t.Errorf("a watch from before: %v", err)
		}
		s.await("event", func() bool { events, _ := fresh.events(); return len(events) == 1 })
		if events, err := fresh.events(); err != nil || events[0].KV.Mod != last {
			t.Errorf("a watch from after: %+v, %v", events, err)
		}
	})
}

func TestWatchesHearChangesInOrderFromAnyRevision(t *testing.T) {
	onBoth(t, func(t *testing.T, s subject) {
		first := must(t, s, putOp("p/1", "1")).Revision
		must(t, s, putOp("q/1", ""))
		must(t, s, nest(nil, putOp("p/2", "")), nest(nil, deleteOp("p/1"), deleteOp("p/2")))
		h := s.watch("p/", first)
		must(t, s, putOp("p/3", ""))
		s.await("events", func() bool { events, _ := h.events(); return len(events) == 5 })
		var got []string
		events, _ := h.events()
		for _, e := range events {
			got = append(got, fmt.Sprintf("%s %v %d", e.KV.Key, e.Deleted, e.KV.Mod-first))
		}
		if want := []string{"p/1 false 0", "p/2 false 2", "p/1 true 2", "p/2 true 2", "p/3 false 3"}; !slices.Equal(got, want) {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}
