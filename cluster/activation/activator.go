package activation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
)

// address names a virtual actor.
type address struct{ kind, identity string }

// delivery is a message on its way to an actor; its envelope carries who waits for
// the answer.
type delivery struct {
	to      address
	message proto.Message
	// node is where it is to be delivered, wherever the actor belongs; mostly "".
	node string
	// past is how many of the nodes in its ranks are passed over.
	past int
	// wait is how long the answer may take.
	wait time.Duration
}

// refusal answers an Ask in the actor's stead.
type refusal struct{ err error }

// revive asks the activator to bring a resident actor back.
type revive struct{ to address }

// activation is one live actor.
type activation struct {
	pid  *actor.PID
	kind *kind
	// forwarded counts the messages that were passed on.
	forwarded uint64
	// leaving is set once the actor was told to stop; the backlog is for the next
	// activation.
	leaving bool
	backlog []pending
}

type pending struct {
	message proto.Message
	sender  *actor.PID
}

// plan is what outlives a restart of the activator. Only its turns touch it.
type plan struct {
	kinds map[string]*kind
	// residents were activated once and must be again, in this order.
	residents []address
	resident  map[address]bool
	// sequence numbers activations: no two ever have the same name, so that what was
	// meant for an actor that is gone can not reach its successor.
	sequence uint64
	// last is the last number that number has given.
	last uint64
}

// activator owns the map of live actors and is their parent. All its state is
// touched in its own turns only.
type activator struct {
	directory *Directory
	*plan
	activations map[address]*activation
	// outgoing are the messages to other nodes that are not settled, by the id of
	// their packet; owed the answers that other nodes wait for.
	outgoing map[uint64]*outgoing
	owed     map[uint64]*owed
	// ending is set when the activator itself stops or restarts: what ends now is
	// not brought back.
	ending bool
}

func newActivator(d *Directory, shared *plan) *activator {
	return &activator{
		directory: d, plan: shared, activations: map[address]*activation{},
		outgoing: map[uint64]*outgoing{}, owed: map[uint64]*owed{},
	}
}

// Receive takes one message.
func (a *activator) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *delivery:
		a.directory.waiting.Add(-1)
		a.route(ctx, m, ctx.Sender())
	case *arrival:
		a.directory.waiting.Add(-1)
		a.arrive(ctx, m)
	case *silence:
		a.silent(ctx, m)
	case *answered:
		a.answer(m)
	case *unanswered:
		a.forgive(m.key)
	case *Passivate:
		a.passivate(ctx, ctx.Sender(), m.Deliveries)
	case *actor.Terminated:
		a.terminated(ctx, m.Who)
	case *kind:
		a.kinds[m.name] = m
	case *revive:
		a.revive(ctx, m.to)
	case *actor.Started:
		for _, to := range a.residents {
			a.revive(ctx, to)
		}
	case *actor.Stopping, *actor.Restarting:
		a.ending = true
		a.abandon(ctx)
	}
}

// deliverHere passes a message on, and refuses it if that can not be.
func (a *activator) deliverHere(ctx actor.Context, to address, p pending) {
	if err := a.deliver(ctx, to, p); err != nil {
		a.refuse(ctx, to, p, err)
	}
}

// deliver passes a message on, after activating its receiver if need be.
func (a *activator) deliver(ctx actor.Context, to address, p pending) error {
	live := a.activations[to]
	if live == nil {
		var err error
		if live, err = a.activate(ctx, to); err != nil {
			return err
		}
	}
	if live.leaving {
		if len(live.backlog) >= BacklogMax {
			return records.Errorf(records.ClassUnavailable, "%d messages wait for the actor: %w", BacklogMax, ErrBusy)
		}
		live.backlog = append(live.backlog, p)
		return nil
	}
	live.forward(ctx, p)
	return nil
}

func (l *activation) forward(ctx actor.Context, p pending) {
	l.forwarded++
	if p.sender == nil {
		ctx.Send(l.pid, p.message)
		return
	}
	ctx.RequestWithCustomSender(l.pid, p.message, p.sender)
}

// activate makes the actor of an address.
func (a *activator) activate(ctx actor.Context, to address) (*activation, error) {
	k := a.kinds[to.kind]
	if k == nil {
		return nil, records.Errorf(records.ClassInvalid, "%w", ErrUnknownKind)
	}
	if !validIdentity(to.identity) {
		return nil, records.Errorf(records.ClassInvalid, "%w", ErrIdentity)
	}
	if k.form == Pinned && to.identity != a.directory.node {
		return nil, records.Errorf(records.ClassUnavailable, "node %s: %w", to.identity, ErrElsewhere)
	}
	if a.ending {
		return nil, records.Errorf(records.ClassUnavailable, "%w", ErrStopped)
	}
	if limit := a.directory.options.ActivationsMax; len(a.activations) >= limit {
		return nil, records.Errorf(records.ClassUnavailable, "%d actors are active: %w", limit, ErrBusy)
	}
	pid, err := a.spawn(ctx, k, to.identity)
	if err != nil {
		return nil, err
	}
	live := &activation{pid: pid, kind: k}
	a.activations[to] = live
	k.active.Add(1)
	if k.form != Virtual && !a.resident[to] {
		a.resident[to] = true
		a.residents = append(a.residents, to)
	}
	return live, nil
}

func validIdentity(identity string) bool { return identity != "" && len(identity) <= IdentityBytesMax }

// spawn starts an actor. One that can not even be made must not take the activator
// and all other actors down with it.
func (a *activator) spawn(ctx actor.Context, k *kind, identity string) (pid *actor.PID, err error) {
	defer func() {
		if r := recover(); r != nil {
			a.directory.log.Error("no actor could be made", zap.String("kind", k.name),
				zap.String("identity", identity), zap.String("reason", host.PanicText(r)), zap.Stack("stack"))
			pid, err = nil, records.Errorf(records.ClassInternal, "%w", ErrIdentity)
		}
	}()
	a.sequence++
	name := k.name + "/" + identity + "#" + strconv.FormatUint(a.sequence, 10)
	pid, err = ctx.SpawnNamed(a.directory.host.Props(k.producer(identity)), name)
	if err != nil {
		return nil, fmt.Errorf("spawn %s %s: %w", k.name, identity, err)
	}
	return pid, nil
}

// find returns the live actor that has this PID, if it is the live one of its
// address.
func (a *activator) find(ctx actor.Context, pid *actor.PID) (address, *activation) {
	name := strings.TrimPrefix(pid.GetId(), ctx.Self().GetId()+"/")
	kind, rest, _ := strings.Cut(name, "/")
	end := max(strings.LastIndexByte(rest, '#'), 0)
	to := address{kind, rest[:end]}
	if live := a.activations[to]; live != nil && live.pid.GetId() == pid.GetId() {
		return to, live
	}
	return to, nil
}

// passivate ends an idle actor, unless something is on its way to it.
func (a *activator) passivate(ctx actor.Context, who *actor.PID, deliveries uint64) {
	to, live := a.find(ctx, who)
	if live == nil || live.leaving || live.kind.form == Pinned || live.forwarded != deliveries {
		return
	}
	live.leaving = true
	a.release(to)
	ctx.Stop(live.pid)
}

// release lets a resident actor go for good.
func (a *activator) release(to address) {
	if a.resident[to] {
		delete(a.resident, to)
		a.residents = slices.DeleteFunc(a.residents, func(r address) bool { return r == to })
	}
}

// terminated forgets an actor that has stopped, for whatever reason, and lets its
// successor have what has come in the meantime.
func (a *activator) terminated(ctx actor.Context, who *actor.PID) {
	letGo(ctx.Children())
	to, live := a.find(ctx, who)
	if live == nil {
		return
	}
	delete(a.activations, to)
	live.kind.active.Add(-1)
	for _, p := range live.backlog {
		a.deliverHere(ctx, to, p)
	}
	if !a.resident[to] || a.ending || a.activations[to] != nil {
		return
	}
	a.directory.log.Warn("resident actor ended", zap.String("kind", to.kind), zap.String("identity", to.identity))
	self, root := ctx.Self(), ctx.ActorSystem().Root
	a.directory.host.Clock().After(RevivalPause, func() { root.Send(self, &revive{to: to}) })
}

// letGo clears the place behind the children. protoactor takes a child off the end
// of this slice and leaves its address there, and with it all that it held: half
// of the largest number of actors that there ever were would stay in memory.
func letGo(children []*actor.PID) {
	if n := len(children); cap(children) > n {
		children[:n+1][n] = nil
	}
}

// revive activates a resident actor that is not active.
func (a *activator) revive(ctx actor.Context, to address) {
	if a.ending || a.activations[to] != nil || !a.resident[to] {
		return
	}
	if _, err := a.activate(ctx, to); err != nil {
		a.directory.log.Error("resident actor not activated", zap.String("kind", to.kind),
			zap.String("identity", to.identity), zap.Error(err))
	}
}

// refuse tells whoever waits why nothing was done.
func (a *activator) refuse(ctx actor.Context, to address, p pending, err error) {
	if p.sender == nil {
		a.directory.refuseTell(to, err)
		return
	}
	ctx.Send(p.sender, refusal{err})
}
