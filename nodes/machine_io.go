package nodes

import (
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Phase is how far a node has come in its start. Each includes those before.
type Phase uint8

// The phases, in order.
const (
	// PhaseRecovered means that the journal was read and is ours.
	PhaseRecovered Phase = iota + 1
	// PhaseAdopted means that the surviving sandboxes are known and cared for.
	PhaseAdopted
	// PhaseRegistered means that the node has a session.
	PhaseRegistered
	// PhaseReconciling means that the node's assignments were seen and are followed.
	PhaseReconciling
	// PhaseAnnounced means that the node accepts reservations.
	PhaseAnnounced
)

var phaseNames = [...]string{"new", "recovered", "adopted", "registered", "reconciling", "announced"}

// String returns the phase in one word.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "unknown"
}

// Status is a reading of the node for people.
type Status struct {
	Phase Phase
	// UUID and Session are set once there is a session.
	UUID    string
	Session int64
	// Draining nodes take nothing more.
	Draining bool
	// Fenced nodes have lost their session: they take nothing, end what they run, and
	// then register anew.
	Fenced bool
	// Sandboxes have not ended; Starting of them are not running yet.
	Sandboxes int64
	Starting  int64
	// Unacknowledged outcomes are still being told to their runs.
	Unacknowledged int64
	// Quarantined are outcomes without a run and sandboxes without an entry.
	Quarantined int64
	// LogsIncomplete are the attempts that have ended since the node actor was started and
	// whose log is not all that their command wrote; of LogsUnwritten, which are among
	// them, the disk of the logs did not take all.
	LogsIncomplete, LogsUnwritten int64
	// Trouble is what keeps the node from going on, empty when nothing does.
	Trouble string
}

// LeaseVerb is which method of actors.Leases a LeaseOp calls.
type LeaseVerb uint8

// The verbs of a LeaseOp.
const (
	LeaseGrant LeaseVerb = iota + 1
	LeaseKeepAlive
	LeaseRevoke
)

// LeaseOp is one call of actors.Leases.
type LeaseOp struct {
	Verb LeaseVerb
	// Lease is that of a KeepAlive or Revoke.
	Lease int64
	// TTL is that of a Grant.
	TTL time.Duration
}

// The inputs of the node's own.
type (
	// Advance asks to come as far as a phase, and to say when it is reached.
	Advance struct {
		To Phase
	}
	// Leave asks for the time of a planned restart, and to say when it is had.
	Leave struct{}
	// JournalLoaded is the result of a LoadJournal.
	JournalLoaded struct {
		Tag     uint64
		Content JournalContent
		Err     error
	}
	// JournalWritten is the result of a WriteJournal.
	JournalWritten struct {
		Tag uint64
		Err error
	}
	// LeaseCalled is the result of a CallLease.
	LeaseCalled struct {
		Tag    uint64
		Result actors.LeaseResult
	}
	// FenceRead is what the fence holds, after a ReadFence or an ArmFence.
	FenceRead struct {
		Tag   uint64
		State FenceState
		OK    bool
	}
	// SandboxDone is the result of a DoSandbox. Op says no more than what was done by
	// which driver to which sandbox, and of a wait not which driver.
	SandboxDone struct {
		Tag    uint64
		Op     SandboxOp
		Result SandboxResult
	}
)

// The effects of the node's own.
type (
	// Attach asks for an Advance to the phase that was last asked for, now, and for
	// every later one.
	Attach struct{}
	// LoadJournal reads the journal.
	LoadJournal struct {
		Tag uint64
	}
	// WriteJournal makes a change durable.
	WriteJournal struct {
		Tag    uint64
		Change JournalChange
	}
	// CallLease is one call of the store's lease service.
	CallLease struct {
		Tag uint64
		Op  LeaseOp
	}
	// ReadFence reads the state of the fence.
	ReadFence struct {
		Tag uint64
	}
	// ArmFence replaces it, and then reads what it holds. Whatever effect comes after
	// it finds it done.
	ArmFence struct {
		Tag   uint64
		State FenceState
	}
	// DoSandbox carries out a sandbox operation.
	DoSandbox struct {
		Tag uint64
		Op  SandboxOp
	}
	// AbandonCreate ends a Create early.
	AbandonCreate struct {
		Driver string
		ID     string
	}
	// Reached says that a phase is complete, or, with an error, that it can not be.
	Reached struct {
		Phase Phase
		Err   error
	}
	// Left says that the daemon may end: what runs here has all the time that could be had
	// for it.
	Left struct{}
	// Show publishes the status.
	Show struct {
		Status Status
	}
)

// terminalEntry tells whether an entry holds an outcome.
func terminalEntry(entry *recordv1.JournalEntry) bool {
	return entry.GetState() == recordv1.JournalState_JOURNAL_STATE_EXITED || entry.GetState() == recordv1.JournalState_JOURNAL_STATE_VOID
}

var _ actors.Machine = (*Machine)(nil)
