// Package actors holds what every actor of Errand is made of: the machine, the
// effects it asks for, and the ports through which the outside is reached.
//
// An actor here is a Machine: a pure step function over its own state. One turn
// takes one input and the time, changes the state and returns effects as values.
// Package shell runs a machine under protoactor and carries the effects out
// through the ports; every result comes back as another input. So a machine knows
// no etcd, no containerd, no goroutine and no clock, the same machine runs in
// production and in simulation, and each kind can be read and tested alone.
package actors

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
)

// The kinds of actors that exist, as used by Router.
const (
	KindRun      = "run"
	KindDeadline = "deadline"
	KindNode     = "node"
)

// Instant is one reading of the node's clocks.
type Instant struct {
	// Mono never steps and does not count suspended time.
	Mono time.Duration
	// Boot never steps and counts suspended time.
	Boot time.Duration
	// Wall is what people read.
	Wall time.Time
	// WallHealthy is false while nothing irreversible may happen by Wall.
	WallHealthy bool
}

// Milli returns Wall as the milliseconds that records hold.
func (i Instant) Milli() int64 { return i.Wall.UnixMilli() }

// Clock tells the time and calls back later.
type Clock interface {
	Now() Instant
	// After calls deliver once, d from now on the monotonic clock. deliver must not
	// block. stop returns at once; a call that is under way may still happen.
	After(d time.Duration, deliver func()) (stop func())
}

// Store is the durable store as actors see it. Neither method blocks; deliver
// must not block, is called from any goroutine, and owns what it is given.
type Store interface {
	// Txn carries a transaction out and delivers its result exactly once.
	Txn(txn records.Txn, deliver func(records.Result))
	// Follow delivers a Reset with all that is below the prefix, then every change
	// in order, until stop is called. After a gap it delivers another Reset.
	Follow(prefix string, deliver func(records.Batch)) (stop func())
}

// Router carries messages to virtual actors by kind and identity, wherever they
// are. A message may be lost or doubled. Tell does not block and does not keep
// the message's owner waiting; the message must not be changed afterwards.
type Router interface {
	Tell(kind, identity string, message proto.Message)
	// TellPast is Tell that passes over the first nodes in the actor's ranks, as many as
	// past says; from PastHere on the message stays on this node.
	TellPast(past int, kind, identity string, message proto.Message)
	// TellAt is Tell to the actor on a certain node, whether or not it belongs there:
	// for an answer that concerns no other activation.
	TellAt(node, kind, identity string, message proto.Message)
}

// Leases is the store's lease service as actors see it: what Store says of
// delivery holds here too. Each call is sent once and bounded by a few seconds.
type Leases interface {
	// Grant makes a lease of at least a TTL.
	Grant(ttl time.Duration, deliver func(LeaseResult))
	// KeepAlive asks once to renew a lease. An answer without an error is no proof: a
	// leader that was deposed may give one. It counts when a linearizable read that
	// was sent afterwards has the same Term and shows what the lease holds.
	KeepAlive(lease int64, deliver func(LeaseResult))
	// Revoke ends a lease and deletes what it holds.
	Revoke(lease int64, deliver func(LeaseResult))
}

// LeaseResult is the outcome of a call of Leases.
type LeaseResult = records.LeaseResult

// Candidate is a node as the presence view shows it.
type Candidate struct {
	Node string
	// Score is higher for a node to be asked first.
	Score int64
}

// Nodes is the presence view: who seems to be there. It may be stale or wrong.
type Nodes interface {
	// Candidates returns the nodes to ask, in order. It does not block.
	Candidates() []Candidate
	// Alive returns the names of the nodes that seem to be there, in order, this one
	// always among them. It does not block; the slice is the caller's.
	Alive() []string
}

// Peers compares this node's wall clock with those of the others.
type Peers interface {
	// Lead is by how much the wall clock of a reading is ahead of the middle of the clocks
	// of all nodes that seem to be there, this one's among them (pace.Lead); negative for
	// one that is behind. It does not block.
	Lead(now Instant) time.Duration
}

// Rand draws the values that must not be guessed or collide: start tokens, jitter.
type Rand interface {
	Uint64() uint64
	// Fill fills the bytes, from a cryptographic source in production.
	Fill(b []byte)
}
