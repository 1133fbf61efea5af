package etcd

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"
)

// pair is a state and a real server that are asked the same.
type pair struct {
	t      *rapid.T
	state  *State
	actual *actual
	// root keeps the keys of a case apart from those of earlier ones.
	root   string
	leases []int64
	began  int64
}

func newPair(t *rapid.T, a *actual, root string, compacted int64) *pair {
	response, err := a.txn(Txn{Then: []Op{getOp("any")}})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, state: newState(), actual: a, root: root, began: response.Revision}
	p.state.revision, p.state.oldest, p.state.compacted = response.Revision, response.Revision+1, compacted
	return p
}

func (p *pair) span() Span {
	key := p.root + rapid.SampledFrom([]string{"a", "b", "c", "d", "a/1", "a/2", "b/1"}).Draw(p.t, "key")
	switch rapid.IntRange(0, 9).Draw(p.t, "span") {
	case 0, 1:
		return Span{Key: key, Prefix: true}
	case 2:
		return Span{Key: p.root + "a", End: p.root + rapid.SampledFrom([]string{"a/2", "b", "c", "e"}).Draw(p.t, "end")}
	case 3:
		return Span{Key: p.root, Prefix: true}
	default:
		return Span{Key: key}
	}
}

func (p *pair) revision() int64 {
	return rapid.Int64Range(p.began-1, p.state.revision+2).Draw(p.t, "revision")
}

func (p *pair) lease() int64 {
	return rapid.SampledFrom(append([]int64{0, 0, 77}, p.leases...)).Draw(p.t, "lease")
}

func (p *pair) compare() Compare {
	c := Compare{
		Span: p.span(), Target: Target(rapid.IntRange(1, 5).Draw(p.t, "target")),
		Relation: Relation(rapid.IntRange(1, 4).Draw(p.t, "relation")),
	}
	switch c.Target {
	case TargetValue:
		c.Value = p.value()
	case TargetLease:
		c.Operand = p.lease()
	case TargetVersion:
		c.Operand = rapid.Int64Range(0, 3).Draw(p.t, "version")
	default:
		if rapid.Bool().Draw(p.t, "of a key") {
			c.Operand = p.revision()
		}
	}
	return c
}

func (p *pair) value() []byte {
	return []byte(rapid.SampledFrom([]string{"", "1", "2"}).Draw(p.t, "value"))
}

func (p *pair) op(depth int) Op {
	switch kind := Kind(rapid.IntRange(1, 4).Draw(p.t, "kind")); {
	case kind == Put:
		op := Op{Kind: Put, Span: Span{Key: p.span().Key}, Value: p.value()}
		if rapid.IntRange(0, 3).Draw(p.t, "leased") == 0 {
			op.Lease = p.lease()
		}
		return op
	case kind == Delete:
		return Op{Kind: Delete, Span: p.span()}
	case kind == Nested && depth > 0:
		txn := p.txn(depth - 1)
		return Op{Kind: Nested, Txn: &txn}
	default:
		op := Op{Kind: Range, Span: p.span(), KeysOnly: rapid.Bool().Draw(p.t, "keys only"), Descending: rapid.Bool().Draw(p.t, "descending")}
		if rapid.Bool().Draw(p.t, "limited") {
			op.Limit = rapid.Int64Range(1, 3).Draw(p.t, "limit")
		}
		if rapid.IntRange(0, 3).Draw(p.t, "past") == 0 {
			op.Revision = p.revision()
		}
		return op
	}
}

func (p *pair) txn(depth int) Txn {
	var txn Txn
	for range rapid.IntRange(0, 2).Draw(p.t, "compares") {
		txn.If = append(txn.If, p.compare())
	}
	for _, ops := range []*[]Op{&txn.Then, &txn.Else} {
		for range rapid.IntRange(0, 4).Draw(p.t, "ops") {
			*ops = append(*ops, p.op(depth))
		}
	}
	return txn
}

func (p *pair) ask(txn Txn) {
	want, refusal := p.actual.txn(txn)
	err := check(&txn, OpsMax)
	var got Response
	if err == nil {
		got, err = p.state.apply(&txn, nil)
	}
	if refusalOf(err) != refusalOf(refusal) {
		p.t.Fatalf("the model refuses with %v, etcd with %v: %+v", err, refusal, txn)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		p.t.Fatalf("the model answers\n%+v, etcd\n%+v to\n%+v", got, want, txn)
	}
}

func (p *pair) grant(*rapid.T) {
	response, err := p.actual.client.Grant(context.Background(), 3600)
	if err != nil {
		p.t.Fatal(err)
	}
	p.leases = append(p.leases, int64(response.ID))
	if err := p.state.grant(int64(response.ID), 3600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) revoke(*rapid.T) {
	id := p.lease()
	if id == 0 {
		id = 78
	}
	err, refusal := p.state.revoke(id), p.actual.revoke(id)
	if refusalOf(err) != refusalOf(refusal) {
		p.t.Fatalf("revoke: the model says %v, etcd %v", err, refusal)
	}
}

// holds compares what a lease holds.
func (p *pair) holds(*rapid.T) {
	if len(p.leases) == 0 {
		return
	}
	id := rapid.SampledFrom(p.leases).Draw(p.t, "lease")
	response, err := p.actual.server.Server.LeaseTimeToLive(context.Background(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	keys, ok := p.state.Lease(id)
	if ok != (err == nil) {
		p.t.Fatalf("lease %d: the model knows it: %v; etcd: %v", id, ok, err)
	}
	if err != nil {
		return
	}
	var want []string
	for _, key := range response.Keys {
		want = append(want, string(key))
	}
	slices.Sort(want)
	if !slices.Equal(keys, want) {
		p.t.Fatalf("lease %d holds %q in the model, %q in etcd", id, keys, want)
	}
}

func TestRandomOperationsAreAnsweredAsByEtcd(t *testing.T) {
	a := startActual(t)
	cases, compacted := 0, int64(-1)
	rapid.Check(t, func(t *rapid.T) {
		cases++
		p := newPair(t, a, fmt.Sprintf("%d/", cases), compacted)
		t.Repeat(map[string]func(*rapid.T){
			"flat":   func(*rapid.T) { p.ask(p.txn(0)) },
			"nested": func(*rapid.T) { p.ask(p.txn(2)) },
			"put": func(*rapid.T) {
				p.ask(Txn{Then: []Op{{Kind: Put, Span: Span{Key: p.span().Key}, Value: p.value(), Lease: p.lease()}}})
			},
			"all":   func(*rapid.T) { p.ask(Txn{Then: []Op{{Kind: Range, Span: Span{Key: p.root, Prefix: true}}}}) },
			"grant": p.grant, "revoke": p.revoke, "holds": p.holds,
			"compact": func(*rapid.T) {
				revision := p.revision()
				err, refusal := p.state.compact(revision, p.state.revision), a.compact(revision)
				if refusalOf(err) != refusalOf(refusal) {
					p.t.Fatalf("compact %d: the model says %v, etcd %v", revision, err, refusal)
				}
				compacted = p.state.compacted
			},
		})
	})
}

// A follower that applies what a watch brings has what the store has.
func TestRandomOperationsAreHeardAsByEtcd(t *testing.T) {
	a := startActual(t)
	cases := 0
	// One watch serves all cases: the client within the process may lock up when
	// watches come and go.
	h := a.watch("w", firstRevision+1)
	rapid.Check(t, func(t *rapid.T) {
		cases++
		p := newPair(t, a, fmt.Sprintf("w%d/", cases), -1)
		before, _ := h.events()
		for range rapid.IntRange(1, 20).Draw(t, "transactions") {
			p.ask(p.txn(2))
		}
		var want []string
		for _, commit := range p.state.since(p.began) {
			for i := range commit.Changes {
				e := eventOf(commit.Revision, &commit.Changes[i])
				want = append(want, fmt.Sprintf("%v %+v", e.Deleted, e.KV))
			}
		}
		a.await("events", func() bool { events, _ := h.events(); return len(events)-len(before) >= len(want) })
		var got []string
		events, _ := h.events()
		for _, e := range events[len(before):] {
			got = append(got, fmt.Sprintf("%v %+v", e.Deleted, e.KV))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("etcd's watch brought\n%q, the model's\n%q", got, want)
		}
	})
}
