// Package history is what really happened in a simulated world, as its models saw
// it and in true time: each start and end of a command, each commit of the store,
// each packet, fault and client call. Checkers judge by it, traces are written from
// it, and its hash tells whether two executions were the same.
package history

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// Kind says what an Event is.
type Kind uint8

// The kinds of events. The comment names the type of Detail, if there is one.
const (
	// KindCommand is the start or the end of a command: Command.
	KindCommand Kind = iota + 1
	// KindCommit is a transaction that changed the store: Commit.
	KindCommit
	// KindPacket is a packet that was sent, lost, delivered: Text says which.
	KindPacket
	// KindFault is the beginning or the end of a fault: Fault.
	KindFault
	// KindDaemon is a daemon's start, readiness, stop, crash; Text says which.
	KindDaemon
	// KindMachine is a reboot, pause, resume, guard's or log's kill; Text says which.
	KindMachine
	// KindCall is a client's call and KindAnswer is what became of it: Call.
	KindCall
	KindAnswer
	// KindLog is a line that a node logged.
	KindLog
	// KindSandbox is any other step of a sandbox: create, signal, kill, remove.
	KindSandbox
	// KindStore is what the store did besides commits: leases, leaders, refusals.
	KindStore
	// KindTurn is one turn of an actor.
	KindTurn
	// KindRestore is a store that was replaced by an older copy: Restore.
	KindRestore
)

var kindNames = [...]string{"", "command", "commit", "packet", "fault", "daemon", "machine", "call", "answer", "log", "sandbox", "store", "turn", "restore"}

// String returns the kind in one word.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Event is one thing that happened.
type Event struct {
	// Step is how many turns the world had made; At is the true time.
	Step uint64
	At   time.Duration
	Kind Kind
	// Node is the machine it happened on; empty for the store and the world. Two
	// machines may claim one node's name: Node is the machine's.
	Node string
	// Run, Attempt and Placement are set where it is about one.
	Run       string
	Attempt   int32
	Placement int32
	// Text is for people, and part of the hash.
	Text string
	// Detail is for checkers; see Kind.
	Detail any
}

// Command is the detail of a KindCommand.
type Command struct {
	Sandbox string `json:"sandbox,omitempty"`
	// Started is true for a start, false for an end of the last process.
	Started bool `json:"started"`
	// Token is the fencing token that the command carries.
	Token uint64 `json:"token"`
	// Code is what the command really ended with, and Cause who ended it: "itself",
	// "signal", "kill", "fence", "reboot", "vanished".
	Code  int32  `json:"code"`
	Cause string `json:"cause,omitempty"`
}

// Commit is the detail of a KindCommit.
type Commit struct {
	Revision int64
	Changes  []Change
}

// Change is one key's change; Before and After are nil where it was absent.
type Change struct {
	Key           string
	Before, After *records.KV
}

// Fault is the detail of a KindFault. The event's Node is the machine that it
// befalls, empty when it is the network's, the store's or everybody's.
type Fault struct {
	// Name is the fault's kind, as a plan names it.
	Name string `json:"name"`
	// Begin is true for the beginning of a fault, or for one that happens at once, and
	// false for the end of one that lasted.
	Begin bool `json:"begin"`
	// Instant faults happen at one moment, and no end of them is told.
	Instant bool `json:"instant,omitempty"`
	// Outside says that it breaks the model under which two attempts are kept apart: a
	// clock that drifts beyond the bound, a pause that boottime does not count, a kill
	// slower than its budget.
	Outside bool `json:"outside,omitempty"`
}

// Restore is the detail of a KindRestore.
type Restore struct {
	// Records is all that the copy holds.
	Records []records.KV
	// Raw says that the procedure of a restore was not kept to: revisions come again, and
	// nodes are not told.
	Raw bool
}

// Refused is the Detail of a KindSandbox: an image could not be had for now.
type Refused struct {
	// RetryAfter is how long its registry does not want to be asked again.
	RetryAfter time.Duration
}

// StartUnknown is the Detail of a KindSandbox: a daemon was told that nobody knows whether
// its start was carried out.
type StartUnknown struct{}

// Call is the detail of a KindCall and, with its Outcome set, of the KindAnswer.
type Call struct {
	// ID joins a call and its answer.
	ID   uint64
	Verb string
	Run  string
	// Key is the idempotency key of a submit.
	Key string
	// Outcome is "" in a call; then "ok", "refused", or "unknown" when nobody can say
	// whether it was or will be carried out.
	Outcome string
	Detail  any
}

// Contended is one of the transactions of a contention: the Detail of such a call's
// answer is a list of them.
type Contended struct {
	Key, Value string
	Result     records.Result
}

// Keys of contentions lie in ContendedFolder, below the cluster's root; those of a pair
// end in ContendedLeft and ContendedRight.
const (
	ContendedFolder = "contended/"
	ContendedLeft   = "left"
	ContendedRight  = "right"
)

// History collects the events of one world. It belongs to one goroutine.
type History struct {
	// Step is how many turns the world has made, for events that do not say so; it may
	// be nil.
	Step func() uint64

	hash      hash.Hash64
	observers []func(Event)
	count     uint64
}

// New makes an empty history.
func New() *History { return &History{hash: fnv.New64a()} }

// Observe calls each for every later event, in order.
func (h *History) Observe(each func(Event)) { h.observers = append(h.observers, each) }

// Add takes an event.
func (h *History) Add(e Event) {
	if e.Step == 0 && h.Step != nil {
		e.Step = h.Step()
	}
	h.count++
	var head [40]byte
	binary.LittleEndian.PutUint64(head[0:], e.Step)
	binary.LittleEndian.PutUint64(head[8:], uint64(e.At)) //nolint:gosec // bits are bits
	binary.LittleEndian.PutUint64(head[16:], uint64(e.Kind))
	binary.LittleEndian.PutUint32(head[24:], uint32(e.Attempt))   //nolint:gosec // bits are bits
	binary.LittleEndian.PutUint32(head[28:], uint32(e.Placement)) //nolint:gosec // bits are bits
	binary.LittleEndian.PutUint32(head[32:], uint32(len(e.Node))) //nolint:gosec // short
	binary.LittleEndian.PutUint32(head[36:], uint32(len(e.Run)))  //nolint:gosec // short
	for _, part := range [][]byte{head[:], []byte(e.Node), []byte(e.Run), []byte(e.Text)} {
		_, _ = h.hash.Write(part) // a hash does not fail
	}
	for _, each := range h.observers {
		each(e)
	}
}

// Hash is that of all events so far.
func (h *History) Hash() uint64 { return h.hash.Sum64() }

// Count is how many events there were.
func (h *History) Count() uint64 { return h.count }
