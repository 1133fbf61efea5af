// Package sandbox declares what the node asks of a sandbox driver, and the words
// that drivers and node share. The drivers are its subpackages: null, process and
// containerd. One conformance suite (subpackage conformance) runs against all of
// them.
//
// A driver runs one command in one isolated place and tells the truth about its
// end. It decides nothing: when to start, stop and remove is the node actor's.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Spec is one sandbox to create.
type Spec struct {
	// ID names everything of this sandbox on the node (records.SandboxID).
	ID        string
	Run       string
	App       string
	Task      string
	Name      string
	Attempt   int32
	Placement int32
	// NodeUUID marks what is ours where several nodes share one runtime.
	NodeUUID string
	// Command is what to run; Spec.Env holds the user's and the engine's variables.
	Spec *recordv1.Spec
	// StartToken and SpecHash are proof that a sandbox found later is this one.
	StartToken []byte
	SpecHash   []byte
	// Unfenced sandboxes go on when the session of the node ends: those who kill in the
	// daemon's stead leave them alone. It is sure before Start starts anything; where that
	// can not be had nothing is started.
	Unfenced bool
	// LogPath is the path of the attempt's log (package logs); the directory that it
	// lies in exists.
	LogPath string
}

// The variables that tell a command, and whatever it starts, of which run it is.
const (
	EnvRunID   = "ERRAND_RUN_ID"
	EnvAttempt = "ERRAND_ATTEMPT"
)

// Exit is the observed end of a sandbox's command.
type Exit struct {
	// Code is nil unless it was observed from the process (G7). A death by signal
	// has code 128 + Signal.
	Code      *int32
	Signal    int32
	OOMKilled bool
	StartedAt time.Time
	At        time.Time
	// Reason is set when there is no code: NOT_FOUND, NOT_EXECUTABLE or START_ERROR
	// when the command never ran, SANDBOX_LOST when nobody saw the end.
	Reason  recordv1.Reason
	Message string
	// Source says who saw it.
	Source string
	// Reached tells whether any signal of Signal, of this driver or of an earlier one,
	// reached the command before it ended; nil where that was not seen.
	Reached *bool
	// Slain goes with the code of a kill that was not the command's own end: it was of
	// the sandbox as a whole, not for want of memory, and not by Kill as far as the
	// driver knows. Unless the engine has sent it, somebody outside has.
	Slain bool
	// MemoryPeakBytes is the most memory that the sandbox has used, told where the kernel
	// has killed processes of it for want of memory; 0 where it is not known.
	MemoryPeakBytes int64
	// Durable means that Wait says the same until Remove, also after a loss of power:
	// it need not be written down elsewhere before it is told.
	Durable bool
	// Settled means that nothing of the sandbox was alive any more and that its log had
	// its end, when this was seen: there is nothing left to do for Kill and Flush, which
	// would answer with Leftover and LogComplete.
	Settled               bool
	Leftover, LogComplete bool
	// LogUnwritten means that Flush would answer with ErrLogUnwritten.
	LogUnwritten bool
}

// ErrLogUnwritten is returned by Flush when the log has its end and lacks output that the
// disk of the logs did not take.
var ErrLogUnwritten = errors.New("output could not be written to the log")

// State is how far a sandbox that List found has come.
type State uint8

// The states of a sandbox.
const (
	// StateCreated means that Start was not carried out.
	StateCreated State = iota + 1
	// StateRunning means that the main process may still run.
	StateRunning
	// StateExited means that Wait answers at once.
	StateExited
)

// Info is a sandbox that List found.
type Info struct {
	ID         string
	Run        string
	Attempt    int32
	Placement  int32
	State      State
	StartToken []byte
	SpecHash   []byte
	// Trace means that there is no such sandbox any more, or not yet, but something of
	// one: a cgroup, a task, a mount. Whose it was can not be told, by the driver neither.
	Trace bool
}

// TraceOf is what a driver says of a sandbox of which there is only a trace. alive tells
// that some process of it may be.
func TraceOf(id string, alive bool) Info {
	info := Info{ID: id, State: StateCreated, Trace: true}
	if alive {
		info.State = StateRunning
	}
	return info
}

// Driver runs sandboxes. Its methods block, may be called from many goroutines,
// and honour the context's deadline; a call for an id that is unknown returns an
// error of records.ClassNotFound, except that Remove, Kill and Flush of nothing
// succeed. An error of class OutcomeUnknown from Start means that the command may
// run.
type Driver interface {
	// Name is the word that a run's spec names the driver with.
	Name() string
	// Create prepares everything short of starting the command, the image pulled and
	// unpacked included. A *StartError says why it can not be; nothing is left then.
	Create(ctx context.Context, spec Spec) error
	// Start starts the command, at most once per sandbox, and returns when it is
	// known to run or to have ended already. A *StartError says that the command
	// never ran and never will.
	Start(ctx context.Context, id string) (startedAt time.Time, err error)
	// Signal sends a signal to the command (TERM to stop). delivered tells whether
	// a process was there to receive it.
	Signal(ctx context.Context, id string, signal int) (delivered bool, err error)
	// Kill kills every process of the sandbox and returns when none is left.
	// leftover tells whether any was alive.
	Kill(ctx context.Context, id string) (leftover bool, err error)
	// Wait returns when the main process has ended, as often as it is asked and
	// after a restart of the daemon too, until Remove.
	Wait(ctx context.Context, id string) (Exit, error)
	// Flush returns when the log holds all that the command wrote and its end mark;
	// complete is false when that can not be said, and with ErrLogUnwritten when output is
	// missing because the disk did not take it. Only after Kill.
	Flush(ctx context.Context, id string) (complete bool, err error)
	// Remove removes everything but the log. It may be repeated.
	Remove(ctx context.Context, id string) error
	// List returns the sandboxes of this node, and only those, and traces of others; of
	// the other drivers' too, where it can not tell. Kill and Remove of a trace end and
	// remove what there is.
	List(ctx context.Context) ([]Info, error)
	// Close releases what the driver holds in this process. Sandboxes go on.
	Close() error
}

// WaitsThen is a Driver that needs no goroutine for each sandbox that is waited for.
type WaitsThen interface {
	// WaitThen calls then once with what Wait without a deadline would return, from this
	// call or from any goroutine. It may take as long as a disk does, and no longer. then
	// does not block and does not call the driver.
	WaitThen(id string, then func(Exit, error))
}

// CreatesTelling is a Driver that may have to wait for the network when it creates a
// sandbox.
type CreatesTelling interface {
	// CreateTelling is Create, and calls waiting, once at most and from this call, when it
	// begins to wait for something that needs none of the machine's cores. What comes after
	// the wait it bounds itself. waiting does not block.
	CreateTelling(ctx context.Context, spec Spec, waiting func()) error
}

// StartError says why a sandbox can not be started, in the words of the contract.
type StartError struct {
	Reason recordv1.Reason
	// Permanent means that another try can not help.
	Permanent bool
	// Message is safe to show: it holds no secret and no environment value.
	Message string
	// RetryAfter is how long another try is of no use; 0 when nothing is known.
	RetryAfter time.Duration
}

// Error returns the message.
func (e *StartError) Error() string { return e.Message }

// Permanentf makes a StartError that another try can not mend.
func Permanentf(reason recordv1.Reason, format string, args ...any) error {
	return &StartError{Reason: reason, Permanent: true, Message: fmt.Sprintf(format, args...)}
}

// Transientf makes a StartError that another try may mend.
func Transientf(reason recordv1.Reason, format string, args ...any) error {
	return &StartError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
