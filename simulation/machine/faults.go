package machine

import (
	"time"

	"github.com/errand-run/errand/simulation/virtual"
)

// Faults are how a machine misbehaves from now on, and how long things take on it.
// Rates are probabilities for each single thing. The zero value takes no time and
// does nothing wrong; Sound is a good machine.
type Faults struct {
	Disk    DiskFaults    `json:"disk"`
	Runtime RuntimeFaults `json:"runtime"`
	Fence   FenceFaults   `json:"fence"`
}

// DiskFaults are those of the journal's disk.
type DiskFaults struct {
	// Sync is how long it takes to make changes durable; those that arrive meanwhile
	// go together next.
	Sync virtual.Span `json:"sync"`
	// StallRate is how often a sync takes Stall more.
	StallRate float64      `json:"stall_rate"`
	Stall     virtual.Span `json:"stall"`
	// Full disks refuse every change.
	Full bool `json:"full"`
	// ErrorRate is how often a sync fails, and how often the making of another file and
	// the sync of what an open finds.
	ErrorRate float64 `json:"error_rate"`
	// KeepRate is how often a batch whose sync has failed, or which a crash of the daemon
	// has caught under way, is there for who opens the journal next, and how often what is
	// only there for who opens it outlives a loss of power.
	KeepRate float64 `json:"keep_rate"`
	// TearRate is how often a loss of power undoes the last sync, although that was
	// told to be durable: a disk that lies.
	TearRate float64 `json:"tear_rate"`
}

// RuntimeFaults are those of the sandboxes.
type RuntimeFaults struct {
	// How long each operation takes until it has its effect, and each answer after
	// that. What is killed dies Kill later.
	Create virtual.Span `json:"create"`
	Start  virtual.Span `json:"start"`
	Signal virtual.Span `json:"signal"`
	Kill   virtual.Span `json:"kill"`
	Flush  virtual.Span `json:"flush"`
	Remove virtual.Span `json:"remove"`
	List   virtual.Span `json:"list"`
	Answer virtual.Span `json:"answer"`
	// ExitDelay is how long after the end of a command it is reported.
	ExitDelay virtual.Span `json:"exit_delay"`

	// SlowRate is how often a create or start takes Slow more.
	SlowRate float64      `json:"slow_rate"`
	Slow     virtual.Span `json:"slow"`
	// CreateHangRate is how often a create hangs until it is abandoned or its time is
	// over; CreateLeaveRate how often one that ends so leaves a sandbox behind.
	CreateHangRate  float64 `json:"create_hang_rate"`
	CreateLeaveRate float64 `json:"create_leave_rate"`
	// CreateRefuseRate is how often a create is refused for now, CreateFailRate how
	// often it is refused for good.
	CreateRefuseRate float64 `json:"create_refuse_rate"`
	CreateFailRate   float64 `json:"create_fail_rate"`
	// Pull is how long it takes to pull an image that is not there, PullFailRate how often
	// its registry refuses it for now, and PullRetryAfter how long that then does not want
	// to be asked.
	Pull           virtual.Span `json:"pull"`
	PullFailRate   float64      `json:"pull_fail_rate"`
	PullRetryAfter virtual.Span `json:"pull_retry_after"`
	// StartRefuseRate and StartFailRate are the same of starts. StartUnknownRate is how
	// often a start is answered with an unknown outcome: in half of the cases it has
	// started the command, or will.
	StartRefuseRate  float64 `json:"start_refuse_rate"`
	StartFailRate    float64 `json:"start_fail_rate"`
	StartUnknownRate float64 `json:"start_unknown_rate"`
	// UnavailableRate is how often any operation fails with nothing done, and
	// AnswerLostRate how often a signal, kill or removal is done and fails.
	UnavailableRate float64 `json:"unavailable_rate"`
	AnswerLostRate  float64 `json:"answer_lost_rate"`
	// DoubleRate is how often an exit is reported twice.
	DoubleRate float64 `json:"double_rate"`
	// IncompleteRate is how often a flush can not say that the log is complete.
	IncompleteRate float64 `json:"incomplete_rate"`
	// LoglessRate is how often the log process of a sandbox is dead from the start: one
	// less that would kill behind the fence's deadline.
	LoglessRate float64 `json:"logless_rate"`
	// DurableRate is how often an exit is one that its supervisor has put on the disk,
	// after it has killed what the command had left and ended the log.
	DurableRate float64 `json:"durable_rate"`
	// OrphanRate is how often what a dead daemon has asked for is done after all, soon
	// after its end.
	OrphanRate float64 `json:"orphan_rate"`
	// KeepRate is how often a sandbox is still listed, as exited, after a reboot.
	KeepRate float64 `json:"keep_rate"`
	// LieRate is how often the lost end of a command is reported with a code, 137 or
	// 255, that nobody observed. It breaks the contract of the port: it is there to
	// see a checker find that.
	LieRate float64 `json:"lie_rate"`
}

// FenceFaults are those of the processes that kill when the fence has passed.
type FenceFaults struct {
	// Look is how long it takes them to see that there is something to kill.
	Look virtual.Span `json:"look"`
	// Kill is how long a kill of theirs takes, beyond KillBudget outside the model.
	Kill virtual.Span `json:"kill"`
}

// Sound are the faults of a good machine: none, at the speed of a usual one.
func Sound() Faults {
	const ms = time.Millisecond
	span := func(from, to time.Duration) virtual.Span { return virtual.Span{Min: from, Max: to} }
	return Faults{
		Disk: DiskFaults{Sync: span(ms/5, 2*ms), KeepRate: 0.5},
		Runtime: RuntimeFaults{
			Create: span(10*ms, 60*ms), Start: span(5*ms, 30*ms), Signal: span(ms, 3*ms), Kill: span(ms, 20*ms),
			Flush: span(ms, 5*ms), Remove: span(2*ms, 20*ms), List: span(ms, 5*ms), Answer: span(ms/10, ms), ExitDelay: span(ms, 3*ms),
			Pull: span(50*ms, 2000*ms), OrphanRate: 0.5, DurableRate: 0.5,
		},
		Fence: FenceFaults{Look: span(10*ms, 500*ms), Kill: span(ms, 200*ms)},
	}
}
