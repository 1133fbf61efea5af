package store

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/records"
)

// The facts below are those of protocol.md section 0 that the transactions rely
// on; the store's model in the simulation must reproduce them.

func rawClient(t *testing.T) (context.Context, *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx, openEmbedded(t).conn.Load().client
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestFactE1NestedComparesSeeTheStateBefore(t *testing.T) {
	ctx, client := rawClient(t)
	revision := must[*clientv3.PutResponse](t)(client.Put(ctx, "run", "0")).Header.Revision
	child := func(key string) clientv3.Op {
		return clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("run"), "=", revision)},
			[]clientv3.Op{clientv3.OpPut(key, "1"), clientv3.OpGet("first")}, nil)
	}
	// The first child changes run, the second still compares its old revision.
	first := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("run"), "=", revision)},
		[]clientv3.Op{clientv3.OpPut("run", "1"), clientv3.OpPut("first", "1")}, nil)
	response := must[*clientv3.TxnResponse](t)(client.Txn(ctx).Then(first, child("second")).Commit())
	for i, r := range response.Responses {
		if !r.GetResponseTxn().Succeeded {
			t.Errorf("child %d did not succeed", i)
		}
	}
	seen := response.Responses[1].GetResponseTxn().Responses[1].GetResponseRange()
	if len(seen.Kvs) != 1 {
		t.Error("a range in a child does not see what its sibling wrote")
	}
}

func TestFactE3TheOperationLimitAddsUp(t *testing.T) {
	ctx, client := rawClient(t)
	batch := func(children, width int) error {
		ops := make([]clientv3.Op, children)
		for i := range ops {
			inner := make([]clientv3.Op, width)
			for j := range inner {
				inner[j] = clientv3.OpPut(fmt.Sprintf("%d/%d", i, j), "")
			}
			ops[i] = clientv3.OpTxn(nil, inner, nil)
		}
		_, err := client.Txn(ctx).Then(ops...).Commit()
		return err
	}
	if err := batch(123, 5); err != nil {
		t.Errorf("123 children of width 5: %v", err)
	}
	if err := batch(124, 5); !errors.Is(err, rpctypes.ErrTooManyOps) {
		t.Errorf("124 children of width 5: %v", err)
	}
}

func TestFactE5OnlyTheOuterHeaderHasARevision(t *testing.T) {
	ctx, client := rawClient(t)
	children := []clientv3.Op{
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", "1")}, nil),
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("b", "1")}, nil),
	}
	response := must[*clientv3.TxnResponse](t)(client.Txn(ctx).Then(children...).Commit())
	for i, r := range response.Responses {
		if inner := r.GetResponseTxn().GetHeader().GetRevision(); inner != 0 {
			t.Errorf("child %d has revision %d", i, inner)
		}
	}
	for _, key := range []string{"a", "b"} {
		kv := must[*clientv3.GetResponse](t)(client.Get(ctx, key)).Kvs[0]
		if outer := response.Header.Revision; kv.ModRevision != outer || kv.CreateRevision != outer {
			t.Errorf("%s at mod %d, create %d, the batch at %d", key, kv.ModRevision, kv.CreateRevision, outer)
		}
	}
}

func TestFactE6ComparesOfAbsentKeys(t *testing.T) {
	s := openEmbedded(t)
	do(t, s, putTxn("there/1", ""))
	cases := []struct {
		name    string
		compare records.Compare
		holds   bool
	}{
		{"create=0", records.Compare{Key: "x", Target: records.TargetCreate, Relation: records.Equal}, true},
		{"mod=0", records.Compare{Key: "x", Target: records.TargetMod, Relation: records.Equal}, true},
		{"create!=77", records.Compare{Key: "x", Target: records.TargetCreate, Relation: records.NotEqual, Operand: 77}, true},
		{"create!=0", records.Compare{Key: "x", Target: records.TargetCreate, Relation: records.NotEqual}, false},
		{"mod>0", records.Compare{Key: "x", Target: records.TargetMod, Relation: records.Greater}, false},
		{"create=0 over an empty prefix", records.Compare{Key: "nobody/", Prefix: true, Target: records.TargetCreate, Relation: records.Equal}, true},
		{"create=0 over a prefix with a key", records.Compare{Key: "there/", Prefix: true, Target: records.TargetCreate, Relation: records.Equal}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := do(t, s, records.Txn{If: []records.Compare{c.compare}, Then: []records.Op{records.Get("x")}}); got.Succeeded != c.holds {
				t.Errorf("holds = %v, want %v", got.Succeeded, c.holds)
			}
		})
	}
}

func TestFactE7PutMovesTheLeaseAndKeepsTheCreateRevision(t *testing.T) {
	s := openEmbedded(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := s.conn.Load().client
	lease := func() int64 { return int64(must[*clientv3.LeaseGrantResponse](t)(client.Grant(ctx, 600)).ID) }
	put := func(lease int64) records.KV {
		do(t, s, records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "k", Lease: lease}}})
		kv, _ := do(t, s, records.Read(records.Get("k"))).First(0)
		return kv
	}
	l1, l2 := lease(), lease()
	first, second := put(l1), put(l2)
	if second.Create != first.Create || second.Lease != l2 {
		t.Errorf("after the second put: create %d (was %d), lease %x, want %x", second.Create, first.Create, second.Lease, l2)
	}
	must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(ctx, clientv3.LeaseID(l1)))
	if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); !ok {
		t.Error("the key went with the lease that it had left")
	}
	if third := put(0); third.Lease != 0 || third.Create != first.Create {
		t.Errorf("a put without a lease left lease %x", third.Lease)
	}
	must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(ctx, clientv3.LeaseID(l2)))
	if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); !ok {
		t.Error("the key is not permanent")
	}
}
