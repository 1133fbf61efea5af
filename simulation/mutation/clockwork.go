package mutation

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// reading is a clock whose readings are changed.
type reading struct {
	actors.Clock
	change func(actors.Instant) actors.Instant
}

func (r reading) Now() actors.Instant { return r.change(r.Clock.Now()) }

// healthIgnored takes a wall clock that has just stepped for a good one.
func healthIgnored(seat Seat) {
	seat.Ports.Clock = reading{seat.Ports.Clock, func(now actors.Instant) actors.Instant {
		now.WallHealthy = true
		return now
	}}
}

// peersNotCompared takes a wall clock for a good one that keeps pace, however far it is
// from those of the others.
func peersNotCompared(seat Seat) { seat.Ports.Peers = nil }

// epochIgnored shows a node the cluster without what a restore has written.
func epochIgnored(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, after: func(_ records.Txn, result records.Result) records.Result {
		for i, response := range result.Responses {
			for k, kv := range response.KVs {
				cluster := &recordv1.Cluster{}
				if kindOf(kv.Key) != "meta" || records.Decode(kv, cluster) != nil {
					continue
				}
				cluster.Epoch, cluster.RestoredAt, cluster.RestoredThrough = 1, 0, 0
				response.KVs = slices.Clone(response.KVs)
				response.KVs[k].Value = records.Encode(cluster)
				result.Responses = slices.Clone(result.Responses)
				result.Responses[i] = response
			}
		}
		return result
	}}
}

// endNotClamped dates the end of a run by the wall clock, be it before its start.
func endNotClamped(seat Seat) {
	clock := seat.Ports.Clock
	seat.Ports.Store = store{Store: seat.Ports.Store, before: func(txn records.Txn) records.Txn {
		if !ends(txn) {
			return txn
		}
		return withOps(txn, func(op records.Op) (records.Op, bool) {
			if kindOf(op.Key) != "runs" {
				return op, true
			}
			if run, err := records.DecodeRun(records.KV{Key: op.Key, Value: op.Value}); err == nil {
				run.EndedAt = clock.Now().Milli()
				op.Value = records.Encode(run)
			}
			return op, true
		})
	}}
}

// startUnchecked does not look at the fence when a start comes back: while one is
// under way, and for minutes after, the boottime that the daemon reads stays just
// before its deadline.
func startUnchecked(seat Seat) {
	if seat.Ports.Fence == nil {
		return
	}
	const long = 5 * time.Minute
	held, clock, starting := seat.Ports.Fence, seat.Ports.Clock, 0
	var until time.Duration
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		if op.Verb != nodes.VerbStart {
			next(op, deliver)
			return
		}
		starting++
		next(op, func(result nodes.SandboxResult) {
			starting--
			if state, ok := held.Load(); ok && clock.Now().Boot >= state.Deadline {
				until = clock.Now().Boot + long
			}
			deliver(result)
		})
	}}
	seat.Ports.Clock = reading{clock, func(now actors.Instant) actors.Instant {
		state, ok := held.Load()
		if ok && (starting > 0 || now.Boot < until) && now.Boot >= state.Deadline {
			now.Boot = state.Deadline - time.Millisecond
		}
		return now
	}}
}

// killsBelated says at once that nothing is left of a fenced sandbox, and kills it a
// minute and a half later.
func killsBelated(seat Seat) {
	if seat.Ports.Fence == nil {
		return
	}
	const late = 90 * time.Second
	held, clock := seat.Ports.Fence, seat.Ports.Clock
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		state, ok := held.Load()
		if !ok || state.FencedAt == 0 || op.Verb != nodes.VerbKill && op.Verb != nodes.VerbRemove {
			next(op, deliver)
			return
		}
		clock.After(0, func() { deliver(nodes.SandboxResult{}) })
		clock.After(late, func() { next(op, func(nodes.SandboxResult) {}) })
	}}
}

// stopsAlwaysReach says of every stop that it reached its command, also of one that
// came after the end.
func stopsAlwaysReach(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		next(op, func(result nodes.SandboxResult) {
			switch op.Verb {
			case nodes.VerbSignal:
				result.Err, result.Delivered = nil, true
			case nodes.VerbWait:
				result.Exit.Reached = proto.Bool(true)
			default:
			}
			deliver(result)
		})
	}}
}
