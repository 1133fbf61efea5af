package mutation

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/machine"
)

// erasedAtAck lets a node forget a placement as soon as its outcome is acknowledged:
// the revision that its watch must have passed first is one that every watch has.
func erasedAtAck(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, after: func(sent records.Txn, result records.Result) records.Result {
		if result.Err == nil && result.Succeeded && ends(sent) {
			result.Revision = 1
		}
		return result
	}}
}

// staleResync answers each resync after a gap with what the one before has shown, as
// a member does that lags behind.
func staleResync(seat Seat) {
	shown := map[string][]records.Event{}
	seat.Ports.Store = store{Store: seat.Ports.Store, batch: func(prefix string, batch records.Batch) (records.Batch, bool) {
		if !batch.Reset {
			return batch, true
		}
		before, again := shown[prefix]
		shown[prefix] = batch.Events
		if again {
			batch.Events = before
		}
		return batch, true
	}}
}

// placedAgain gives a placement up when nothing was heard of it for a while, without
// its node having said that it never started.
func placedAgain(seat Seat) {
	const patience = 20 * time.Second
	inner, clock := seat.Ports.Store, seat.Ports.Clock
	giveUp := func(placed records.Txn, number int32) {
		var txn records.Txn
		for _, op := range placed.Then {
			switch kindOf(op.Key) {
			case "runs":
				txn.If = append(txn.If, records.Compare{Key: op.Key, Target: records.TargetMod, Relation: records.Equal})
				txn.Then = append(txn.Then, records.Op{Kind: records.OpPut, Key: op.Key})
			case "live":
				next := clock.Now().Milli() + time.Second.Milliseconds()
				txn.Then = append(txn.Then, records.Op{Kind: records.OpPut, Key: op.Key, Value: records.Encode(&recordv1.Live{NextWake: next})})
			case "assignments":
				txn.Then = append(txn.Then, records.Op{Kind: records.OpDelete, Key: op.Key})
			}
		}
		inner.Txn(records.Read(records.Get(txn.If[0].Key)), func(read records.Result) {
			kv, ok := read.First(0)
			if !ok || read.Err != nil {
				return
			}
			run, err := records.DecodeRun(kv)
			if err != nil || run.GetStatus() != recordv1.Status_STATUS_PENDING || run.GetPlacement().GetNumber() != number {
				return
			}
			run = proto.CloneOf(run)
			run.Placement = nil
			txn.If[0].Operand = kv.Mod
			for i := range txn.Then {
				if kindOf(txn.Then[i].Key) == "runs" {
					txn.Then[i].Value = records.Encode(run)
				}
			}
			inner.Txn(txn, func(records.Result) {})
		})
	}
	seat.Ports.Store = store{Store: inner, after: func(sent records.Txn, result records.Result) records.Result {
		if number := places(sent); number > 0 && result.Err == nil && result.Succeeded {
			clock.After(patience, func() { giveUp(sent, number) })
		}
		return result
	}}
}

// places returns the number of the placement that a transaction makes, 0 if it makes
// none.
func places(txn records.Txn) int32 {
	for _, compare := range txn.If {
		if kindOf(compare.Key) != "assignments" {
			continue
		}
		for _, op := range txn.Then {
			assignment := &recordv1.Assignment{}
			if op.Key == compare.Key && records.Decode(records.KV{Key: op.Key, Value: op.Value}, assignment) == nil {
				return assignment.GetPlacement()
			}
		}
	}
	return 0
}

// tombstonesIgnored creates a run although there was one of that name that was
// deleted.
func tombstonesIgnored(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, before: func(txn records.Txn) records.Txn {
		return withoutCompares(txn, func(c records.Compare) bool { return kindOf(c.Key) == "gone" })
	}}
}

// absentWritten takes a run that is not there any more for what it last was, and
// writes it again.
func absentWritten(seat Seat) {
	last, missed := map[string]records.KV{}, map[string]bool{}
	seat.Ports.Store = store{
		Store: seat.Ports.Store,
		before: func(txn records.Txn) records.Txn {
			return withoutCompares(txn, func(c records.Compare) bool { return c.Target == records.TargetMod && missed[c.Key] })
		},
		after: func(sent records.Txn, result records.Result) records.Result {
			if result.Err != nil || !sent.ReadOnly() || len(sent.Then) == 0 || kindOf(sent.Then[0].Key) != "runs" {
				return result
			}
			key := sent.Then[0].Key
			kv, there := result.First(0)
			before, known := last[key]
			switch {
			case there:
				last[key] = kv
			case known:
				missed[key] = true
				result.Responses = slices.Clone(result.Responses)
				result.Responses[0].KVs = []records.KV{before}
			}
			return result
		},
	}
}

// unknownSentAgain sends a write of unknown outcome again and takes the second answer
// for that of both.
func unknownSentAgain(seat Seat) {
	inner := seat.Ports.Store
	seat.Ports.Store = confirming{inner, func(txn records.Txn, deliver func(records.Result)) bool {
		inner.Txn(txn, func(result records.Result) {
			if result.Err != nil && records.ClassOf(result.Err) == records.ClassOutcomeUnknown {
				inner.Txn(txn, deliver)
				return
			}
			deliver(result)
		})
		return true
	}}
}

// unavailableTakenForLost takes a runtime that does not answer a wait for one that does
// not know the sandbox.
func unavailableTakenForLost(seat Seat) {
	waits(seat, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult)) {
		deliver(nodes.SandboxResult{Err: records.Errorf(records.ClassNotFound, "wait for sandbox %s: it is gone", op.ID)})
	})
}

// waitsGivenUp waits for ever for the exit that a runtime was not there to tell.
func waitsGivenUp(seat Seat) { waits(seat, func(nodes.SandboxOp, func(nodes.SandboxResult)) {}) }

// waits changes what becomes of a wait that the runtime did not answer.
func waits(seat Seat, unanswered func(op nodes.SandboxOp, deliver func(nodes.SandboxResult))) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		next(op, func(result nodes.SandboxResult) {
			if op.Verb == nodes.VerbWait && result.Err != nil && records.ClassOf(result.Err) == records.ClassUnavailable {
				unanswered(op, deliver)
				return
			}
			deliver(result)
		})
	}}
}

// mistaken lets a node's journal make a mistake.
func mistaken(flaw machine.Flaw) func(Seat) {
	return func(seat Seat) { machine.Mistake(seat.Ports.Journal, flaw) }
}

// registryPressed forgets how long a registry wants to be left alone.
func registryPressed(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		next(op, func(result nodes.SandboxResult) {
			var refused *sandbox.StartError
			if errors.As(result.Err, &refused) && refused.RetryAfter > 0 {
				result.Err = sandbox.Transientf(refused.Reason, "%s", refused.Message)
			}
			deliver(result)
		})
	}}
}
