package actors

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
)

// Input is what a machine's turn takes: one of the inputs below, or one of the
// kind's own.
type Input any

// Effect is what a machine's turn asks for: one of the effects below, or one of
// the kind's own that its shell knows how to perform. Effects are carried out in
// the order in which they are returned.
type Effect any

// Machine is the whole of an actor: its state and its step. Step is only called
// by one goroutine at a time; it does no I/O, does not block, and draws no
// time but now.
type Machine interface {
	Step(now Instant, in Input) []Effect
}

// Sender is where an Ask came from; opaque to machines. The zero Sender means
// that nobody waits.
type Sender any

// The inputs that every kind may receive.
type (
	// Activated is the first input of every machine, also after a restart by its
	// supervisor.
	Activated struct{}
	// Received is a message from another actor or from the API.
	Received struct {
		Message proto.Message
		From    Sender
	}
	// Committed is the result of a Commit.
	Committed struct {
		// Tag is that of the Commit.
		Tag    uint64
		Result records.Result
	}
	// Followed is a batch of a Follow.
	Followed struct {
		Prefix string
		Batch  records.Batch
	}
	// TimerFired is the end of a SetTimer.
	TimerFired struct {
		Name string
	}
)

// The effects that every kind may ask for.
type (
	// Commit sends a transaction; the result comes back as Committed.
	Commit struct {
		Tag uint64
		Txn records.Txn
	}
	// Follow follows a prefix until the actor stops; batches come as Followed.
	Follow struct {
		Prefix string
	}
	// SetTimer sends TimerFired after a while. Setting a name again replaces its
	// timer; a negative After only stops it. A replaced timer never fires.
	SetTimer struct {
		Name  string
		After time.Duration
	}
	// Tell sends a message; it may be lost.
	Tell struct {
		Kind     string
		Identity string
		Message  proto.Message
		// Node is where the actor is told, wherever it belongs; "" is where it belongs.
		Node string
		// Past is how many of the nodes where the actor belongs are passed over. It counts
		// only without a Node.
		Past int
	}
	// Answer answers a Received that somebody waits for.
	Answer struct {
		To      Sender
		Message proto.Message
	}
	// Passivate offers to end the activation; the next message makes another. It is
	// refused, without a word, when a message is already on its way.
	Passivate struct{}
	// Log writes one line. Fields alternate key and value, as in
	// zap.SugaredLogger.Infow; they hold no secret and no environment value.
	Log struct {
		Level  LogLevel
		Text   string
		Fields []any
	}
)

// LogLevel is how much a Log matters.
type LogLevel uint8

// The levels of a Log.
const (
	LogDebug LogLevel = iota
	LogInfo
	LogWarn
	LogError
)
