package mutation

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/plan"
)

// guardSparesNothing makes sandboxes without the mark by which those who kill at the
// fence leave them alone.
func guardSparesNothing(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		op.Spec.Unfenced = false
		next(op, deliver)
	}}
}

// waitingLost gives runs up with their node that asked to wait for it: what is read of
// them says that they did not, and what is written that they did.
func waitingLost(seat Seat) {
	waits := map[string]bool{}
	seat.Ports.Store = store{
		Store: seat.Ports.Store,
		before: func(txn records.Txn) records.Txn {
			return withOps(txn, func(op records.Op) (records.Op, bool) {
				if op.Kind == records.OpPut && waits[records.LastPart(op.Key)] {
					op.Value = askingFor(op.Key, op.Value, recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL, recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT)
				}
				return op, true
			})
		},
		after: func(_ records.Txn, result records.Result) records.Result {
			result.Responses = slices.Clone(result.Responses)
			for i, response := range result.Responses {
				result.Responses[i].KVs = slices.Clone(response.KVs)
				for k, kv := range response.KVs {
					read := askingFor(kv.Key, kv.Value, recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT, recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL)
					if kindOf(kv.Key) == "runs" && !slices.Equal(read, kv.Value) {
						waits[records.LastPart(kv.Key)] = true
						result.Responses[i].KVs[k].Value = read
					}
				}
			}
			return result
		},
	}
}

// askingFor is the record of a run, or its assignment, with one wish for the loss of its
// node in the place of another; any other record is left as it is.
func askingFor(key string, value []byte, from, to recordv1.OnNodeLoss) []byte {
	kv := records.KV{Key: key, Value: value}
	var record proto.Message
	var spec *recordv1.Spec
	switch kindOf(key) {
	case "runs":
		run := &recordv1.Run{}
		if records.Decode(kv, run) == nil {
			record, spec = run, run.GetSpec()
		}
	case "assignments":
		assignment := &recordv1.Assignment{}
		if records.Decode(kv, assignment) == nil {
			record, spec = assignment, assignment.GetSpec()
		}
	}
	if spec.GetRetry() == nil || spec.GetRetry().GetOnNodeLoss() != from {
		return value
	}
	spec.Retry.OnNodeLoss = to
	return records.Encode(record)
}

// waiting lets nodes lose their sessions while runs are on them that asked to wait.
func waiting(p *plan.Plan) {
	for i := range 4 * p.Options.Nodes {
		submit(p, seconds(5+i), plan.NodeName(i%p.Options.Nodes), plan.Command{Takes: seconds(600), Retry: &plan.Retry{Waits: true}})
	}
	p.Options.SandboxesMax = 32
	p.Options.Converge += seconds(1800)
	outages(p)
}

// wordUnheard keeps from a node that somebody has said that it is dead.
func wordUnheard(seat Seat) {
	seat.Ports.Store = store{
		Store: seat.Ports.Store,
		after: func(sent records.Txn, result records.Result) records.Result {
			if !readsNode(sent, seat.Node) {
				return result
			}
			result.Responses = slices.Clone(result.Responses)
			for i, response := range result.Responses {
				result.Responses[i].KVs = slices.Clone(response.KVs)
				for k, kv := range response.KVs {
					info := &recordv1.NodeInfo{}
					if kindOf(kv.Key) == "nodeinfo" && records.Decode(kv, info) == nil {
						info.Removed = nil
						result.Responses[i].KVs[k].Value = records.Encode(info)
					}
				}
			}
			return result
		},
	}
}

// readsNode tells whether a transaction reads what a node reads of itself: its drain too.
func readsNode(txn records.Txn, node string) bool {
	return slices.ContainsFunc(txn.Then, func(op records.Op) bool {
		return op.Kind == records.OpGet && kindOf(op.Key) == "drains" && records.LastPart(op.Key) == node
	})
}

// wordForAnybody takes the word that a node is dead whether or not it has a session.
func wordForAnybody(seat Seat) {
	says := func(txn records.Txn) bool {
		return slices.ContainsFunc(txn.Then, func(op records.Op) bool { return op.Kind == records.OpDelete && kindOf(op.Key) == "drains" })
	}
	asks := func(txn records.Txn) bool {
		return len(txn.Then) == 3 && kindOf(txn.Then[0].Key) == "nodes" && kindOf(txn.Then[1].Key) == "nodeinfo" && kindOf(txn.Then[2].Key) == "assignments"
	}
	seat.Ports.Store = store{
		Store: seat.Ports.Store,
		before: func(txn records.Txn) records.Txn {
			if !says(txn) {
				return txn
			}
			return withoutCompares(txn, func(c records.Compare) bool { return kindOf(c.Key) == "nodes" })
		},
		after: func(sent records.Txn, result records.Result) records.Result {
			if asks(sent) && len(result.Responses) == 3 {
				result.Responses = slices.Clone(result.Responses)
				result.Responses[0].KVs = nil
			}
			return result
		},
	}
}

// waitingForTheDead is waiting, where somebody is ready from the beginning to say of each
// node that it is dead, and says so when it is away. The watch of a node that comes back
// tells it late what it has no more: it must not lean on that.
func waitingForTheDead(p *plan.Plan) {
	waiting(p)
	names := p.Options.NodeNames()
	for i, node := range names {
		through := names[(i+1)%len(names)]
		addFault(p, seconds(20), p.Options.Length, plan.NodeRemoved{Node: node, Through: through})
		addFault(p, seconds(40), p.Options.Length, plan.WatchLag{Node: node, By: seconds(30)})
	}
}
