package world

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	"github.com/errand-run/errand/simulation/plan"
)

// policyOf makes the policy that a plan names.
func policyOf(o plan.Options, random *rand.Rand) stepping.Policy {
	switch o.Policy.Kind {
	case plan.PolicyUniform:
		return stepping.Uniform{Random: random}
	case plan.PolicyBiased:
		return stepping.NewPriorities(random, o.Policy.Every)
	case plan.PolicyStarve:
		return stepping.Starve{Random: random, Scheduler: max(slices.Index(o.NodeNames(), o.Policy.Starved), 0)}
	default:
		return stepping.FirstInFirstOut{}
	}
}

// box is the mailbox of one actor. It knows whose turn it is, and lets turns panic
// that a fault wants to.
type box struct {
	actor.Mailbox
	daemon *daemon
	named  func() string
	name   string
	target actor.MessageInvoker
}

var _ actor.MessageInvoker = (*box)(nil)

// newBox makes the mailbox of one more actor of a daemon.
func (d *daemon) newBox() actor.Mailbox { return &box{Mailbox: stepping.Mailbox(), daemon: d} }

// RegisterHandlers puts the box between its queue and the actor.
func (b *box) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	b.target = invoker
	if n, ok := invoker.(host.Named); ok {
		b.named = n.Name
	}
	b.Mailbox.RegisterHandlers(b, dispatcher)
}

// Name is the actor's name within its daemon: its kind and identity, or what it is.
func (b *box) Name() string {
	if b.name == "" && b.named != nil {
		name := strings.TrimPrefix(b.named(), "activator/")
		if end := strings.LastIndexByte(name, '#'); end > 0 {
			name = name[:end]
		}
		b.name = name
	}
	return b.name
}

// InvokeSystemMessage passes a message on.
func (b *box) InvokeSystemMessage(message any) {
	b.daemon.world.turn(b, message)
	b.target.InvokeSystemMessage(message)
}

// InvokeUserMessage passes a message on, or panics in the actor's stead if a fault
// says so.
func (b *box) InvokeUserMessage(message any) {
	b.daemon.world.turn(b, message)
	if len(b.daemon.panics) > 0 && b.daemon.mustPanic(b.Name()) {
		panic("a fault of the plan")
	}
	b.target.InvokeUserMessage(message)
}

// EscalateFailure passes the failure on.
func (b *box) EscalateFailure(reason, message any) { b.target.EscalateFailure(reason, message) }

// mustPanic tells whether the turn of an actor is one that is to panic.
func (d *daemon) mustPanic(name string) bool {
	kind, _, _ := strings.Cut(name, "/")
	if d.panics[kind] == 0 {
		return false
	}
	d.panics[kind]--
	return true
}
