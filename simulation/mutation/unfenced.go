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
