package host

import (
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// finalMailbox is a mailbox for which a stop is final. The supervisor decides on
// a restart elsewhere and later, so that it may arrive behind a stop; protoactor
// would make a new actor then, which is in no registry and which nobody stops.
type finalMailbox struct {
	actor.Mailbox
	log     *zap.Logger
	invoker actor.MessageInvoker
	// stopped is only touched in turns.
	stopped bool
}

// Named is what the message invoker of a host's actors is besides: it knows the
// actor's name, for mailboxes that show whose turn it is.
type Named interface {
	// Name is the actor's id in its system, parents first.
	Name() string
}

// Name returns the actor's name.
func (m *finalMailbox) Name() string {
	if context, ok := m.invoker.(actor.Context); ok {
		return context.Self().GetId()
	}
	return ""
}

// RegisterHandlers puts this mailbox between the wrapped one and the actor.
func (m *finalMailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.invoker = invoker
	m.Mailbox.RegisterHandlers(m, dispatcher)
}

// InvokeSystemMessage drops restarts that come after a stop.
func (m *finalMailbox) InvokeSystemMessage(message any) {
	switch message.(type) {
	case *actor.Stop:
		m.stopped = true
	case *actor.Restart:
		if m.stopped {
			return
		}
	}
	m.invoker.InvokeSystemMessage(message)
}

// InvokeUserMessage passes a message on.
func (m *finalMailbox) InvokeUserMessage(message any) { m.invoker.InvokeUserMessage(message) }

// EscalateFailure logs the panic while its stack is still there. It is called by
// the deferred function that recovered it.
func (m *finalMailbox) EscalateFailure(reason, message any) {
	m.log.Error("actor panicked", zap.String("actor", m.Name()), zap.String("reason", PanicText(reason)),
		zap.String("message", typeName(message)), zap.ByteString("stack", debug.Stack()))
	m.invoker.EscalateFailure(reason, message)
}
