package api_test

import (
	"slices"
	"testing"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestNodes(t *testing.T) {
	r := newRig(t)
	put := func(key string, value []byte) {
		r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: value}}})
	}
	session := records.Encode(&recordv1.NodeSession{Uuid: "u", Drivers: []string{"process", "null"}, SandboxesMax: 8, RegisteredAt: 1000, BootId: "b", Version: "v1"})
	put(r.keys.Node("n1"), session)
	put(r.keys.Node("n10"), session)
	put(r.keys.Drain("n10"), nil)
	for _, id := range []string{"r.web.a", "r.web.b"} {
		put(r.keys.Assignment("n1", id), nil)
	}
	put(r.keys.Assignment("n10", "r.web.c"), nil)
	list, err := r.nodes.List(r.ctx, &errandv1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 2 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if n := list.GetNodes()[0]; n.GetId() != "n1" || n.GetDraining() || n.GetSandboxes() != 2 || n.GetVersion() != "v1" || len(n.GetDrivers()) != 2 {
		t.Errorf("n1: %v", n)
	}
	got, err := r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n10"})
	if err != nil || !got.GetNode().GetDraining() || got.GetNode().GetSandboxes() != 1 || got.GetNode().GetRegisteredAt().AsTime().UnixMilli() != 1000 {
		t.Errorf("n10: %v, %v", got, err)
	}
	_, err = r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n2"})
	wantCode(t, err, codes.NodeNotFound)
	_, err = r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "../n1"})
	wantCode(t, err, codes.InvalidField)
}

func TestNodeThatTakesNoRunsSaysWhy(t *testing.T) {
	const why = "no space: nothing is free"
	r := newRig(t, func(config *api.Config) { config.Ready = func() []string { return []string{why} } })
	session := records.Encode(&recordv1.NodeSession{Uuid: "u", RegisteredAt: 1000})
	waiting := &recordv1.Run{Id: "r.default.waits", App: "default", Status: recordv1.Status_STATUS_PENDING, QueuedAt: 1, Attempt: 1}
	r.commit(r.keys.Create(waiting, 1))
	for _, name := range []string{"n1", "n2"} {
		r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Node(name), Value: session}}})
	}
	list, err := r.nodes.List(r.ctx, &errandv1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 2 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if here, there := list.GetNodes()[0].GetUnready(), list.GetNodes()[1].GetUnready(); !slices.Equal(here, []string{why}) || len(there) > 0 {
		t.Errorf("the node says %q, another one %q", here, there)
	}
	if got, err := r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n1"}); err != nil || !slices.Equal(got.GetNode().GetUnready(), []string{why}) {
		t.Errorf("n1: %v, %v", got, err)
	}
	response, err := r.runs.Explain(r.ctx, &errandv1.ExplainRunRequest{Id: waiting.GetId()})
	if err != nil || len(response.GetCauses()) < 2 || response.GetCauses()[1].GetMessage() != "node n1 takes no runs: "+why {
		t.Errorf("why it waits: %v, %v", response.GetCauses(), err)
	}
}
