package api_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// place puts assignments of a node: some of runs that wait for it, and others.
func (r *rig) place(node string, waiting, others int) {
	r.t.Helper()
	put := func(run string, retry *recordv1.Retry) {
		assignment := records.Encode(&recordv1.Assignment{Run: run, Attempt: 1, Spec: &recordv1.Spec{Retry: retry}})
		r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Assignment(node, run), Value: assignment}}})
	}
	for i := range waiting {
		put(fmt.Sprintf("r.web.w%03d", i), &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT})
	}
	for i := range others {
		put(fmt.Sprintf("r.web.o%03d", i), nil)
	}
}

func (r *rig) putKey(key string, value []byte) {
	r.t.Helper()
	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: value}}})
}

func (r *rig) getKey(key string) records.KV {
	r.t.Helper()
	result, err := etcd.Do(r.ctx, records.Read(records.Get(key)))
	if err != nil {
		r.t.Fatal(err)
	}
	kv, _ := result.First(0)
	return kv
}

func TestNodeIsTakenForDeadByAWordWhenItHasNoSession(t *testing.T) {
	r := newRig(t)
	remove := func(id string, dead bool) (*errandv1.RemoveNodeResponse, error) {
		return r.nodes.Remove(r.ctx, &errandv1.RemoveNodeRequest{Id: id, Dead: dead, By: "alice"})
	}
	info := func() *recordv1.NodeInfo {
		t.Helper()
		info := &recordv1.NodeInfo{}
		if err := records.Decode(r.getKey(r.keys.NodeInfo("n2")), info); err != nil {
			t.Fatal(err)
		}
		return info
	}
	r.putKey(r.keys.Node("n2"), records.Encode(&recordv1.NodeSession{Uuid: "u2"}))
	r.putKey(r.keys.NodeInfo("n2"), records.Encode(&recordv1.NodeInfo{Uuid: "u2", Generation: 4, WindowMs: 45_000}))
	r.putKey(r.keys.Drain("n2"), nil)
	// More than one page of them, and those of a node whose name begins alike.
	r.place("n2", 70, 3)
	r.place("n20", 1, 0)

	_, err := remove("n2", true)
	wantCode(t, err, codes.NodeHasSession)
	_, err = remove("n7", true)
	wantCode(t, err, codes.NodeNotFound)
	_, err = remove("../n2", true)
	wantCode(t, err, codes.InvalidField)

	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: r.keys.Node("n2")}}})
	listed := func() (away bool) {
		t.Helper()
		list, err := r.nodes.List(r.ctx, &errandv1.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.GetNodes(), func(n *errandv1.Node) bool {
			return n.GetId() == "n2" && n.GetAway() && n.GetUuid() == "u2" && n.GetSandboxes() == 73
		})
	}
	if !listed() {
		t.Error("a node without a session is not listed as away")
	}
	asked, err := remove("n2", false)
	if err != nil || asked.GetRemovedAt() != nil || asked.GetWaitingCount() != 70 || asked.GetOthersCount() != 3 || info().GetRemoved() != nil || r.router.wakes() > 0 {
		t.Fatalf("without the word: %v, %v; nodeinfo %v", asked, err, info())
	}
	for try := 1; try <= 2; try++ {
		got, err := remove("n2", true)
		if err != nil || got.GetRemovedBy() != "alice" || got.GetRemovedAt() == nil || len(got.GetWaiting()) != 70 || got.GetWaiting()[69] != "r.web.w069" {
			t.Fatalf("%v, %v", got, err)
		}
		if n := r.router.wakes(); n != 70*try {
			t.Errorf("%d were woken by try %d", n, try)
		}
		// The word of who was first stays.
		if by := info(); by.GetRemoved().GetAt() != got.GetRemovedAt().AsTime().UnixMilli() || by.GetUuid() != "u2" || by.GetGeneration() != 4 || by.GetWindowMs() != 45_000 {
			t.Errorf("nodeinfo %v", by)
		}
	}
	if listed() {
		t.Error("it is still listed")
	}
	_, err = r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n2"})
	wantCode(t, err, codes.NodeNotFound)
	if r.getKey(r.keys.Drain("n2")).Mod != 0 {
		t.Error("its drain is still there")
	}
}
