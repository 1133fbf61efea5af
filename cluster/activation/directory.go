package activation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
)

// The limits of a directory.
const (
	// ActivationsMax is how many actors one node keeps active by default. Beyond it
	// a message for an actor that is not active is refused.
	ActivationsMax = 1 << 18
	// MessagesMax is how many messages may wait for the activator by default. Beyond
	// it messages are refused.
	MessagesMax = 1 << 20
	// BacklogMax is how many messages may wait for one activation to end. Beyond it
	// messages for that address are refused.
	BacklogMax = 1024
	// IdentityBytesMax bounds identities, which become part of an actor's name.
	IdentityBytesMax = 512
	// OutgoingMax is how many messages may be under way to other nodes by default, not
	// yet taken or not yet answered. Beyond it messages for other nodes are refused.
	OutgoingMax = 1 << 16
	// OwedMax is how many answers other nodes may wait for by default. Beyond it their asks are
	// refused.
	OwedMax = 1 << 14
	// MessageBytesMax bounds a message to or from another node, encoded.
	MessageBytesMax = 2 << 20
	// TakenTimeout is how long a node may take to say that it has a message. Then the
	// next in rank is tried, and at last this node.
	TakenTimeout = time.Second
	// RanksTried is how many other nodes are tried.
	RanksTried = 2
	// AnswerWaitMax is how long an actor may take at most to answer another node.
	AnswerWaitMax = 10 * time.Minute
	// AskTimeout ends an Ask whose context has no deadline.
	AskTimeout = 30 * time.Second
	// RevivalPause is how long a resident actor that ended by itself stays away.
	RevivalPause = time.Second
)

// Errors of delivery. Ask returns them wrapped and with a class; a Tell that meets
// one is counted.
var (
	// ErrUnknownKind is returned for a kind that was never registered.
	ErrUnknownKind = errors.New("no actors of this kind live here")
	// ErrElsewhere is returned when the actor can only live on another node, which can
	// not be reached from this one.
	ErrElsewhere = errors.New("the actor lives on a node that can not be reached from here")
	// ErrBusy is returned when a limit of the directory is reached.
	ErrBusy = errors.New("too much is going on")
	// ErrIdentity is returned for an identity that is empty or too long, or from which
	// no actor could be made.
	ErrIdentity = errors.New("no actor can be made of this identity")
	// ErrStopped is returned once the directory stops.
	ErrStopped = errors.New("the actors of this node are stopping")
	// ErrRegistered is returned when a kind is registered twice.
	ErrRegistered = errors.New("the kind is registered already")
)

// Passivate is what an idle actor sends to its parent to offer its end. The parent
// stops it, unless another message is on its way to it: then nothing happens.
// A resident actor that ends so does not come back until it is told something again.
// Actors of pinned kinds are never stopped by it.
type Passivate struct {
	// Deliveries is how many messages of the directory the actor has taken since it
	// was activated, restarts by its supervisor included. Messages that it sends to
	// itself do not count. An actor counts a message before it acts on it.
	Deliveries uint64
}

// Options are what may be changed of a directory. The zero value is the default.
type Options struct {
	// Transport reaches the directories of other nodes; nil means that there are none,
	// and that all actors but pinned ones live here.
	Transport Transport
	// Ranks returns the nodes on which an actor that is not pinned belongs, best first.
	// It is called in the activator's turns: it is fast and does not block. What it
	// returns is not changed. Nil means that all actors live here.
	Ranks func(kind, identity string) (nodes []string)
	// Able says why this node can not carry actors that are not pinned, although others
	// reach it: it has lost the store. Then it refuses messages of others for them, which
	// sends those on to the next in rank, and passes its own on likewise. It is called in
	// the activator's turns: it is fast and does not block. Nil means that it always can.
	Able func() error
	// Incarnation tells this directory from earlier ones of its node: no two have the
	// same. It only matters with a Transport.
	Incarnation uint64
	// ActivationsMax, MessagesMax, OutgoingMax and OwedMax replace the constants of the
	// same name; 0 means the constant.
	ActivationsMax int
	MessagesMax    int
	OutgoingMax    int
	OwedMax        int
}

func (o *Options) setDefaults() {
	for _, limit := range []struct {
		of       *int
		standard int
	}{
		{&o.ActivationsMax, ActivationsMax}, {&o.MessagesMax, MessagesMax}, {&o.OutgoingMax, OutgoingMax}, {&o.OwedMax, OwedMax},
	} {
		if *limit.of <= 0 {
			*limit.of = limit.standard
		}
	}
}

// Directory routes messages to virtual actors and keeps those of its node. Its
// methods may be called from any goroutine.
type Directory struct {
	host    *host.Host
	node    string
	options Options
	log     *zap.Logger
	// top is the activator; nil if there could be none.
	top *host.Top
	// ended is closed when the activator and all its actors have stopped.
	ended    <-chan struct{}
	stopping atomic.Bool
	// waiting counts what was sent to the activator and not yet taken.
	waiting atomic.Int64
	refused atomic.Uint64
	// outgoing counts the messages to other nodes that are not settled, fallbacks those
	// that ended here because no other node took them.
	outgoing  atomic.Int64
	fallbacks atomic.Uint64

	mu    sync.Mutex
	kinds map[string]*kind
}

// New makes the directory of a node, without any kind. It stops with its host, or
// by Stop. A host has one directory.
func New(h *host.Host, node string, options ...Options) *Directory {
	d := &Directory{
		host: h, node: node, log: h.Log().Named("activation"), kinds: map[string]*kind{},
	}
	for _, o := range options {
		d.options = o
	}
	d.options.setDefaults()
	shared := &plan{kinds: map[string]*kind{}, resident: map[address]bool{}}
	top, err := h.Spawn("activator", func() actor.Actor { return newActivator(d, shared) })
	if err != nil {
		// The host is closed or has a directory: this one is born stopped.
		d.log.Error("no directory of actors", zap.Error(err))
		d.stopping.Store(true)
		return d
	}
	d.top, d.ended = top, top.Stopped()
	return d
}

// Form is how actors of a kind come and go.
type Form uint8

// The forms.
const (
	// Virtual actors are activated by a message and may passivate.
	Virtual Form = iota
	// Resident actors are activated by a message and stay until they passivate. One that
	// ends otherwise comes back after RevivalPause, for it works without being asked.
	Resident
	// Pinned actors are resident on the node that their identity names.
	Pinned
)

// kind is a registered kind.
type kind struct {
	name     string
	form     Form
	producer func(identity string) actor.Producer
	active   atomic.Int64
}

// Register makes a kind known. producer returns what makes the actor of an
// identity; the outer function is called once for each activation, the inner one
// at its start and at each restart. The form is Virtual unless given.
func (d *Directory) Register(name string, producer func(identity string) actor.Producer, form ...Form) error {
	k := &kind{name: name, producer: producer}
	for _, f := range form {
		k.form = f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kinds[name] != nil {
		return fmt.Errorf("register %s: %w", name, ErrRegistered)
	}
	d.kinds[name] = k
	d.send(k, nil)
	return nil
}

// Tell sends a message to an actor. It does not block. The message may be lost,
// and must not be changed afterwards.
func (d *Directory) Tell(kind, identity string, message proto.Message) {
	d.TellAt("", kind, identity, message)
}

// TellPast is Tell that passes over the first nodes in the actor's ranks, as many as
// past says; a message that passes over more than RanksTried stays here. It is for
// what an owner has taken and not answered. Pinned actors are reached where they are.
func (d *Directory) TellPast(past int, kind, identity string, message proto.Message) {
	d.tell(&delivery{to: address{kind, identity}, message: message, past: past})
}

// TellAt is Tell to the actor on a certain node, whether or not it belongs there;
// "" stands for where it belongs. Pinned actors are reached where they are.
func (d *Directory) TellAt(node, kind, identity string, message proto.Message) {
	d.tell(&delivery{to: address{kind, identity}, message: message, node: node})
}

func (d *Directory) tell(message *delivery) {
	if err := d.admit(); err != nil {
		d.refuseTell(message.to, err)
		return
	}
	d.send(message, nil)
}

// Ask sends a message to an actor and waits for its answer. It is for callers that
// are not actors. Errors have a class: ClassInvalid (no such actor can be),
// ClassUnavailable (nothing was done), ClassDeadline (the context had ended
// before), ClassOutcomeUnknown (the context ended while the actor had the message,
// or might have).
func (d *Directory) Ask(ctx context.Context, kind, identity string, message proto.Message) (proto.Message, error) {
	answer, err := d.ask(ctx, address{kind, identity}, message)
	if err != nil {
		return nil, fmt.Errorf("ask %s %s: %w", kind, identity, err)
	}
	return answer, nil
}

func (d *Directory) ask(ctx context.Context, to address, message proto.Message) (proto.Message, error) {
	return d.await(ctx, func(wait time.Duration, then func(proto.Message, error)) (drop func()) {
		return d.askThen(&delivery{to: to, message: message, wait: wait}, then)
	})
}

// await waits for the answer to what send asks, which is told how long that is.
func (d *Directory) await(ctx context.Context, send func(wait time.Duration, then func(proto.Message, error)) (drop func())) (proto.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, records.Errorf(records.ClassDeadline, "before it was sent: %w", err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, AskTimeout)
		defer cancel()
	}
	type reply struct {
		answer proto.Message
		err    error
	}
	replies := make(chan reply, 1)
	wait := AskTimeout
	if at, ok := ctx.Deadline(); ok {
		wait = min(time.Until(at), AnswerWaitMax)
	}
	drop := send(wait, func(answer proto.Message, err error) { replies <- reply{answer, err} })
	defer drop()
	var ended error
	select {
	case r := <-replies:
		return r.answer, r.err
	case <-d.ended:
		ended = ErrStopped
	case <-ctx.Done():
		ended = ctx.Err()
	}
	// An answer that came at the same time counts.
	select {
	case r := <-replies:
		return r.answer, r.err
	default:
		return nil, records.Errorf(records.ClassOutcomeUnknown, "wait for the answer: %w", ended)
	}
}

// AskThen sends a message to an actor and calls then once with its answer, from a
// goroutine of the dispatcher or from this call. It does not block, and then does
// not either. An answer may never come: the caller bounds the wait and drops it.
func (d *Directory) AskThen(kind, identity string, message proto.Message, then func(proto.Message, error)) (drop func()) {
	return d.askThen(&delivery{to: address{kind, identity}, message: message, wait: AnswerWaitMax}, then)
}

func (d *Directory) askThen(message *delivery, then func(proto.Message, error)) (drop func()) {
	if err := d.admit(); err != nil {
		then(nil, err)
		return func() {}
	}
	reply := d.host.Expect(func(answer any, err error) {
		switch a := answer.(type) {
		case refusal:
			then(nil, a.err)
		case proto.Message:
			then(a, nil)
		default:
			if err == nil {
				err = records.Errorf(records.ClassInternal, "the answer is a %T", answer)
			}
			then(nil, err)
		}
	})
	d.send(message, reply.PID())
	return reply.Drop
}

// admit counts one message, or returns why it can not be taken.
func (d *Directory) admit() error {
	select {
	case <-d.ended:
		return records.Errorf(records.ClassUnavailable, "%w", ErrStopped)
	default:
	}
	if d.stopping.Load() {
		return records.Errorf(records.ClassUnavailable, "%w", ErrStopped)
	}
	if d.waiting.Add(1) > int64(d.options.MessagesMax) {
		d.waiting.Add(-1)
		return records.Errorf(records.ClassUnavailable, "%d messages wait: %w", d.options.MessagesMax, ErrBusy)
	}
	return nil
}

func (d *Directory) send(message any, sender *actor.PID) {
	if d.top != nil {
		d.host.System().Root.RequestWithCustomSender(d.top.PID, message, sender)
	}
}

// refuseTell counts a message that goes nowhere. It logs ever more seldom.
func (d *Directory) refuseTell(to address, err error) {
	n := d.refused.Add(1)
	if n&(n-1) == 0 {
		d.log.Warn("message refused", zap.String("kind", to.kind), zap.String("identity", to.identity),
			zap.Uint64("refused_total", n), zap.Error(err))
	}
}

// Activations returns how many actors of each kind are active.
func (d *Directory) Activations() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := make(map[string]int, len(d.kinds))
	for name, k := range d.kinds {
		counts[name] = int(k.active.Load())
	}
	return counts
}

// Refused returns how many tells went nowhere since the start.
func (d *Directory) Refused() uint64 { return d.refused.Load() }

// Outgoing returns how many messages to other nodes are not settled: not yet taken,
// or not yet answered.
func (d *Directory) Outgoing() int { return int(d.outgoing.Load()) }

// Fallbacks returns how many messages were delivered here since the start because
// the nodes where they belonged did not take them.
func (d *Directory) Fallbacks() uint64 { return d.fallbacks.Load() }

// Waiting returns how many messages the activator has before it.
func (d *Directory) Waiting() int { return int(d.waiting.Load()) }

// Stop stops all activations and waits until they have stopped. Messages that come
// later are refused. Called again it waits again.
func (d *Directory) Stop(ctx context.Context) error {
	d.stopping.Store(true)
	if d.top == nil {
		return nil
	}
	if err := d.top.Stop(ctx); err != nil {
		return fmt.Errorf("stop activations: %w", err)
	}
	return nil
}
