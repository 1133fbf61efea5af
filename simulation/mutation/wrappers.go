package mutation

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// comparesIgnored writes without looking whether the record is as it was read.
func comparesIgnored(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, before: func(txn records.Txn) records.Txn {
		return withoutCompares(txn, func(c records.Compare) bool { return c.Target == records.TargetMod && kindOf(c.Key) == "runs" })
	}}
}

// createOverwrites creates a run whether or not there is one of that name.
func createOverwrites(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, before: func(txn records.Txn) records.Txn {
		return withoutCompares(txn, func(c records.Compare) bool {
			return c.Target == records.TargetCreate && c.Relation == records.Equal && kindOf(c.Key) == "runs"
		})
	}}
}

// sessionNeverCompared places a run on a node that is registered, be it in another
// session than the one that said yes, and lets the node take what is meant for an
// earlier session of its own.
func sessionNeverCompared(seat Seat) {
	var session int64
	seat.Ports.Store = store{
		Store:  seat.Ports.Store,
		before: existenceCompared,
		after: func(sent records.Txn, result records.Result) records.Result {
			for _, op := range sent.Then {
				if op.Kind == records.OpPut && result.Err == nil && result.Succeeded && kindOf(op.Key) == "nodes" && records.LastPart(op.Key) == seat.Node {
					session = max(session, result.Revision)
				}
			}
			return result
		},
		batch: func(prefix string, batch records.Batch) (records.Batch, bool) {
			if kindOf(prefix) == "assignments" && session > 0 {
				batch.Events = ofSession(batch.Events, session)
			}
			return batch, true
		},
	}
}

func existenceCompared(txn records.Txn) records.Txn {
	txn.If = slices.Clone(txn.If)
	for i, c := range txn.If {
		if kindOf(c.Key) == "nodes" && c.Target == records.TargetCreate && c.Relation == records.Equal && c.Operand > 0 {
			txn.If[i] = records.Compare{Key: c.Key, Target: records.TargetCreate, Relation: records.NotEqual}
		}
	}
	return txn
}

func ofSession(events []records.Event, session int64) []records.Event {
	events = slices.Clone(events)
	for i, e := range events {
		assignment := &recordv1.Assignment{}
		if e.Deleted || records.Decode(e.KV, assignment) != nil {
			continue
		}
		assignment.Session = session
		events[i].KV.Value = records.Encode(assignment)
	}
	return events
}

// unknownTakenForRefused says of a write that nobody knows of that it was not done.
func unknownTakenForRefused(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, after: func(_ records.Txn, result records.Result) records.Result {
		if result.Err != nil && records.ClassOf(result.Err) == records.ClassOutcomeUnknown {
			result.Err = records.Errorf(records.ClassUnavailable, "%w", result.Err)
		}
		return result
	}}
}

// unknownTakenForDone says of a write that nobody knows of that it was done.
func unknownTakenForDone(seat Seat) {
	var seen int64
	seat.Ports.Store = store{Store: seat.Ports.Store, after: func(_ records.Txn, result records.Result) records.Result {
		if result.Err != nil && records.ClassOf(result.Err) == records.ClassOutcomeUnknown {
			return records.Result{Succeeded: true, Revision: seen + 1}
		}
		seen = max(seen, result.Revision)
		return result
	}}
}

// endKeepsAssignment ends a run and leaves its assignment for later, which does not
// come.
func endKeepsAssignment(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, before: func(txn records.Txn) records.Txn {
		if !ends(txn) {
			return txn
		}
		return withOps(txn, func(op records.Op) (records.Op, bool) { return op, kindOf(op.Key) != "assignments" })
	}}
}

// gapsHidden never tells a follower that a watch had a gap.
func gapsHidden(seat Seat) {
	begun := map[string]bool{}
	seat.Ports.Store = store{Store: seat.Ports.Store, batch: func(prefix string, batch records.Batch) (records.Batch, bool) {
		if !batch.Reset {
			return batch, true
		}
		first := !begun[prefix]
		begun[prefix] = true
		return batch, first
	}}
}

// windowOfOthersShort lets those who wait for a lost node's end believe that it kills
// at once.
func windowOfOthersShort(seat Seat) {
	seat.Ports.Store = store{Store: seat.Ports.Store, after: func(sent records.Txn, result records.Result) records.Result {
		own := slices.ContainsFunc(append(slices.Clone(sent.Then), sent.Else...), func(op records.Op) bool {
			return kindOf(op.Key) == "nodeinfo" && records.LastPart(op.Key) == seat.Node
		})
		if own {
			return result // its own window the node keeps
		}
		result.Responses = slices.Clone(result.Responses)
		for i, response := range result.Responses {
			result.Responses[i].KVs = withoutWindow(response.KVs)
		}
		return result
	}}
}

func withoutWindow(kvs []records.KV) []records.KV {
	kvs = slices.Clone(kvs)
	for i, kv := range kvs {
		info := &recordv1.NodeInfo{}
		if kindOf(kv.Key) != "nodeinfo" || records.Decode(kv, info) != nil {
			continue
		}
		info.WindowMs = 1
		kvs[i].Value = records.Encode(info)
	}
	return kvs
}

// journalAcknowledgedEarly says that a change is durable and writes it seconds later.
func journalAcknowledgedEarly(seat Seat) {
	const late = 5 * time.Second
	clock := seat.Ports.Clock
	seat.Ports.Journal = journal{Journal: seat.Ports.Journal, write: func(change nodes.JournalChange, deliver func(error), next func(nodes.JournalChange, func(error))) {
		clock.After(0, func() { deliver(nil) })
		clock.After(late, func() { next(change, func(error) {}) })
	}}
}

// codesMadeUp takes what a runtime says of a process that it has lost for its code.
func codesMadeUp(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		if op.Verb != nodes.VerbWait {
			next(op, deliver)
			return
		}
		next(op, func(result nodes.SandboxResult) {
			gone := result.Err != nil && records.ClassOf(result.Err) == records.ClassNotFound
			if gone || result.Err == nil && result.Exit.Code == nil {
				result.Err, result.Exit.Reason = nil, recordv1.Reason_REASON_UNSPECIFIED
				result.Exit.Code, result.Exit.Signal = proto.Int32(137), 9
			}
			deliver(result)
		})
	}}
}

// lossUnnoticed never hears that a sandbox is gone.
func lossUnnoticed(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		next(op, func(result nodes.SandboxResult) {
			if op.Verb == nodes.VerbWait && result.Err != nil && records.ClassOf(result.Err) == records.ClassNotFound {
				return
			}
			deliver(result)
		})
	}}
}

// leftoverSpared reports an end when the main process has ended, and lets live what
// that has left behind.
func leftoverSpared(seat Seat) {
	ended := map[string]bool{}
	clock := seat.Ports.Clock
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		if op.Verb == nodes.VerbKill && ended[op.ID] {
			clock.After(0, func() { deliver(nodes.SandboxResult{}) })
			return
		}
		next(op, func(result nodes.SandboxResult) {
			if op.Verb == nodes.VerbWait && result.Err == nil {
				ended[op.ID] = true
			}
			deliver(result)
		})
	}}
}

// tokensAlike gives every command the same fencing token.
func tokensAlike(seat Seat) {
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		if op.Verb == nodes.VerbCreate && op.Spec.Spec != nil {
			op.Spec.Spec = proto.CloneOf(op.Spec.Spec)
			for i, variable := range op.Spec.Spec.GetEnv() {
				if strings.HasPrefix(variable, nodes.EnvFencingToken+"=") {
					op.Spec.Spec.Env[i] = nodes.EnvFencingToken + "=7"
				}
			}
		}
		next(op, deliver)
	}}
}

// removesForgotten says that a sandbox was removed, and leaves it.
func removesForgotten(seat Seat) {
	clock := seat.Ports.Clock
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		if op.Verb == nodes.VerbRemove {
			clock.After(0, func() { deliver(nodes.SandboxResult{}) })
			return
		}
		next(op, deliver)
	}}
}

// stopsForgotten says that a signal was delivered, and sends none; kills of what runs
// are forgotten likewise.
func stopsForgotten(seat Seat) {
	clock := seat.Ports.Clock
	seat.Ports.Sandboxes = sandboxes{seat.Ports.Sandboxes, func(op nodes.SandboxOp, deliver func(nodes.SandboxResult), next func(nodes.SandboxOp, func(nodes.SandboxResult))) {
		switch op.Verb {
		case nodes.VerbSignal:
			clock.After(0, func() { deliver(nodes.SandboxResult{Delivered: true}) })
		case nodes.VerbKill:
			clock.After(0, func() { deliver(nodes.SandboxResult{}) })
		default:
			next(op, deliver)
		}
	}}
}

// renewalsUnconfirmed takes every renewal that was sent for one that counts, as if a
// leader acknowledged it that was deposed, and answers the read that is to confirm it
// out of memory.
func renewalsUnconfirmed(seat Seat) {
	if seat.Ports.Leases == nil {
		return
	}
	var term uint64
	var remembered *records.Result
	inner, clock := seat.Ports.Store, seat.Ports.Clock
	seat.Ports.Leases = leases{seat.Ports.Leases, func(lease int64, deliver func(actors.LeaseResult), next func(int64, func(actors.LeaseResult))) {
		next(lease, func(result actors.LeaseResult) {
			if result.Err != nil {
				result = actors.LeaseResult{Lease: lease, TTL: time.Minute, Term: term}
			}
			term = max(result.Term, 1)
			deliver(result)
		})
	}}
	seat.Ports.Store = confirming{inner, func(txn records.Txn, deliver func(records.Result)) bool {
		if len(txn.If) > 0 || len(txn.Then) != 1 || kindOf(txn.Then[0].Key) != "nodes" || records.LastPart(txn.Then[0].Key) != seat.Node {
			return false
		}
		if remembered != nil {
			answer := *remembered
			answer.Term = term
			clock.After(0, func() { deliver(answer) })
			return true
		}
		inner.Txn(txn, func(result records.Result) {
			if _, held := result.First(0); held && result.Err == nil {
				remembered = &result
			}
			deliver(result)
		})
		return true
	}}
}

// confirming is a store that answers some transactions otherwise.
type confirming struct {
	actors.Store
	instead func(txn records.Txn, deliver func(records.Result)) bool
}

func (c confirming) Txn(txn records.Txn, deliver func(records.Result)) {
	if !c.instead(txn, deliver) {
		c.Store.Txn(txn, deliver)
	}
}

// fenceLate arms the fence for later than the renewal allows.
func fenceLate(seat Seat) {
	if seat.Ports.Fence == nil {
		return
	}
	const late = 3 * time.Minute
	seat.Ports.Fence = fence{
		Fence: seat.Ports.Fence,
		arm:   func(state nodes.FenceState) nodes.FenceState { state.Deadline += late; return state },
	}
}

// fenceForgets does not tell a daemon that its session is fenced.
func fenceForgets(seat Seat) {
	if seat.Ports.Fence == nil {
		return
	}
	const late = 10 * time.Minute
	seat.Ports.Fence = fence{
		Fence: seat.Ports.Fence,
		load: func(state nodes.FenceState) nodes.FenceState {
			state.FencedAt = 0
			state.Deadline += late
			return state
		},
	}
}

// timersLate lets every long timer fire much later.
func timersLate(seat Seat) { seat.Ports.Clock = lateClock{seat.Ports.Clock} }

type lateClock struct{ actors.Clock }

func (c lateClock) After(d time.Duration, deliver func()) (stop func()) {
	if d >= 25*time.Second {
		d *= 40
	}
	return c.Clock.After(d, deliver)
}

// elsewhere is a key that nobody has.
const elsewhere = records.RootDefault + "elsewhere"

// firstRankOnly keeps all others than the first in rank from the records of runs; new
// ones anybody may create.
func firstRankOnly(seat Seat) {
	view := placement.NewTracker(seat.Ports.Nodes.Alive)
	others := func(key string) bool {
		return kindOf(key) == "runs" && view.View().First(actors.KindRun, records.LastPart(key)) != seat.Node
	}
	seat.Ports.Store = store{
		Store: seat.Ports.Store,
		before: func(txn records.Txn) records.Txn {
			creates := slices.ContainsFunc(txn.If, func(c records.Compare) bool { return c.Target == records.TargetCreate && kindOf(c.Key) == "runs" })
			if !creates && slices.ContainsFunc(txn.Then, func(op records.Op) bool { return others(op.Key) }) {
				return records.Read(records.Get(elsewhere))
			}
			return txn
		},
		after: func(sent records.Txn, result records.Result) records.Result {
			if len(sent.Then) == 1 && sent.Then[0].Key == elsewhere {
				return records.Result{Err: records.Errorf(records.ClassUnavailable, "the run belongs to another node")}
			}
			return result
		},
	}
}

// watcher is a store on which a single watch can be begun.
type watcher interface {
	Watch(prefix string, from int64, requireLeader bool, deliver func(records.Batch, error)) (stop func())
}

// silent follows by watches that do not require a leader and are not looked after.
type silent struct {
	actors.Store
	clock actors.Clock
}

func watchesSilent(seat Seat) { seat.Ports.Store = silent{seat.Ports.Store, seat.Ports.Clock} }

func (s silent) Follow(prefix string, deliver func(records.Batch)) (stop func()) {
	inner, ok := s.Store.(watcher)
	if !ok {
		panic("mutation: the store has no bare watches")
	}
	f := &silentFollow{silent: s, inner: inner, prefix: prefix, deliver: deliver}
	f.begin()
	return f.end
}

type silentFollow struct {
	silent
	inner   watcher
	prefix  string
	deliver func(records.Batch)
	stop    func()
	ended   bool
}

func (f *silentFollow) end() {
	f.ended = true
	if f.stop != nil {
		f.stop()
	}
}

func (f *silentFollow) begin() {
	f.Txn(records.Read(records.Range(f.prefix)), func(result records.Result) {
		switch {
		case f.ended:
		case result.Err != nil:
			f.clock.After(time.Second, f.begin)
		default:
			f.follow(result)
		}
	})
}

func (f *silentFollow) follow(result records.Result) {
	reset := records.Batch{Reset: true, Revision: result.Revision}
	for _, kv := range result.Responses[0].KVs {
		reset.Events = append(reset.Events, records.Event{KV: kv})
	}
	f.deliver(reset)
	f.stop = f.inner.Watch(f.prefix, result.Revision+1, false, func(batch records.Batch, err error) {
		switch {
		case f.ended:
		case err != nil:
			f.clock.After(time.Second, f.begin)
		default:
			f.deliver(batch)
		}
	})
}

// fenceInSolo arms the fence of a node that nobody else could take anything from.
func fenceInSolo(seat Seat) {
	const soon = 30 * time.Second
	if seat.Ports.Leases == nil && seat.Ports.Fence != nil {
		seat.Ports.Fence.Arm(nodes.FenceState{BootID: "any", Session: 1, Deadline: seat.Ports.Clock.Now().Boot + soon})
	}
}
