package nodes

import (
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	ranking "github.com/errand-run/errand/cluster/placement"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Ports is everything outside that a node needs.
type Ports struct {
	Clock actors.Clock
	Store actors.Store
	// Leases and Fence are needed unless the session is solo.
	Leases actors.Leases
	Fence  Fence
	// Nodes is the presence view; nil means that this node is all there is.
	Nodes actors.Nodes
	// Peers compares the wall clocks of the nodes; nil means that nobody does: then a clock
	// that keeps pace is trusted however wrong it is.
	Peers actors.Peers
	// Transport reaches the directories of other nodes; nil means that there are
	// none.
	Transport activation.Transport
	Rand      actors.Rand
	// Scores are those of the nodes as the runs whose actors are here have met them; nil
	// means that the node begins its own.
	Scores *ranking.Scores
	// Journal and Sandboxes are closed by whoever opened them, after the node.
	Journal   Journal
	Sandboxes Sandboxes
	// Log may be nil.
	Log *zap.Logger
	// Actors says how the actors are run: dispatcher, mailbox, strictness, and who
	// hears of an actor that was given up. The zero value is that of production; its
	// clock and log are always those above.
	Actors host.Options
}

// PlacementKey names one placement of one attempt of a run.
type PlacementKey struct {
	Run       string
	Attempt   int32
	Placement int32
}

// KeyOf returns the key of a journal entry.
func KeyOf(entry *recordv1.JournalEntry) PlacementKey {
	return PlacementKey{Run: entry.GetRun(), Attempt: entry.GetAttempt(), Placement: entry.GetPlacement()}
}

// JournalContent is all that a journal holds.
type JournalContent struct {
	// Meta is nil in a journal that was never written.
	Meta *recordv1.JournalMeta
	// Entries are sorted by run, attempt and placement.
	Entries []*recordv1.JournalEntry
	// Reverted means that the journal had come further than this: it is an older copy
	// that was put back. It is told until the first write.
	Reverted bool
}

// JournalChange is one change of a journal; all of it is durable or nothing.
type JournalChange struct {
	// Meta replaces the head, unless it is nil.
	Meta    *recordv1.JournalMeta
	Puts    []*recordv1.JournalEntry
	Deletes []PlacementKey
}

// Journal is what a node remembers through crashes of its own.
type Journal interface {
	// Load delivers what is durable, after every change written before. Neither
	// method blocks; deliver is called once, from any goroutine, and must not block.
	Load(deliver func(JournalContent, error))
	// Write makes a change durable and then delivers nil. Changes take effect in the
	// order of the calls. The change must not be altered afterwards. After an error
	// nothing of it was done, but a daemon that ends before a later change is durable
	// may find all of it, like one that ends before it was answered.
	Write(change JournalChange, deliver func(error))
}

// FenceState is until when a session may run sandboxes.
type FenceState struct {
	BootID  string
	Session int64
	// Deadline is on the boottime clock. When it has passed no process of this node's
	// sandboxes may be left, whether or not the daemon is there to see to it.
	Deadline time.Duration
	// FencedAt is when somebody began to kill because of it, on the boottime clock; 0
	// when nobody has. It is written before the first kill and never taken back in the
	// same session: an end after it is no exit of the command's own.
	FencedAt time.Duration
	// Window bounds how near the deadline may be moved: to that far from now. Whoever
	// sleeps until he looks again sleeps no longer. Within a session it does not shrink.
	Window time.Duration
}

// Fence keeps the state of the fence where it outlives the daemon, but not the boot,
// and where whoever kills in the daemon's stead reads it. Its methods touch memory
// only: they do not block.
type Fence interface {
	// Load returns the state that was last armed; ok is false when there is none.
	Load() (state FenceState, ok bool)
	// Arm replaces it. A state of the same session keeps the FencedAt that it has.
	Arm(state FenceState)
}

// SandboxVerb is what a SandboxOp does; each but Abandon is the method of
// sandbox.Driver of the same name.
type SandboxVerb uint8

// The verbs.
const (
	VerbCreate SandboxVerb = iota + 1
	VerbStart
	VerbSignal
	VerbKill
	VerbWait
	VerbFlush
	VerbRemove
	VerbList
)

var verbNames = [...]string{"", "create", "start", "signal", "kill", "wait", "flush", "remove", "list"}

// String returns the verb in lower case.
func (v SandboxVerb) String() string {
	if int(v) < len(verbNames) {
		return verbNames[v]
	}
	return "unknown"
}

// SandboxOp is one thing that a driver is asked to do.
type SandboxOp struct {
	Verb   SandboxVerb
	Driver string
	// ID is the sandbox; empty for List.
	ID string
	// Spec is that of a Create.
	Spec sandbox.Spec
	// Timeout bounds a Create; the others are bounded by the port.
	Timeout time.Duration
	// Signal is that of a Signal.
	Signal int
}

// SandboxResult is the outcome of a SandboxOp.
type SandboxResult struct {
	// Err is that of the driver: a *sandbox.StartError or an error with a class.
	Err error
	// Waiting says of a Create that it is under way and waits for the network. Nothing
	// else is set.
	Waiting bool
	// StartedAt is that of a Start.
	StartedAt time.Time
	// Delivered is that of a Signal.
	Delivered bool
	// Leftover is that of a Kill.
	Leftover bool
	// Complete is that of a Flush.
	Complete bool
	// Exit is that of a Wait.
	Exit sandbox.Exit
	// Infos are those of a List.
	Infos []sandbox.Info
}

// Sandboxes is the asynchronous face of the drivers.
type Sandboxes interface {
	// Do carries an operation out and delivers its result exactly once, from any
	// goroutine; deliver must not block. Before the result of a Create there may be one
	// that is Waiting. An unknown driver is answered with an error of class NotFound. Do
	// does not block.
	Do(op SandboxOp, deliver func(SandboxResult))
	// Abandon ends the Create of a sandbox early, if one is under way; its result is
	// delivered as always.
	Abandon(driver, id string)
}
