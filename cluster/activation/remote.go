package activation

import (
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// outgoing is a message that was sent to another node and is not settled: nobody
// has taken it yet, or its answer is awaited.
type outgoing struct {
	to      address
	message pending
	packet  *actorv1.Packet
	// nodes are the places to try, in order; tried counts those that were. This node
	// can only be the last of them.
	nodes []string
	tried int
	// wait is how long the answer may take.
	wait time.Duration
	// taken is set while only the answer is awaited.
	taken bool
	// timer is the wait that is under way.
	timer timer
}

// owed is an answer that another node waits for.
type owed struct {
	node            string
	id, incarnation uint64
	reply           *host.Reply
	timer           timer
}

// timer is a wait of the activator; a number tells it from earlier ones.
type timer struct {
	number uint64
	stop   func()
}

// What the activator tells itself.
type (
	// silence ends the wait for a Taken or an answer.
	silence struct{ id, timer uint64 }
	// answered is what an actor answered, or did not, to another node's ask.
	answered struct {
		key    uint64
		answer any
		err    error
	}
	// unanswered ends the wait for that.
	unanswered struct{ key uint64 }
)

// IgnoreDeadLetterLogging marks that one that comes after the activator has stopped
// is nothing to talk about.
func (*silence) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging is as for silence.
func (*answered) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging is as for silence.
func (*unanswered) IgnoreDeadLetterLogging() {}

// route brings a message to where its actor belongs.
func (a *activator) route(ctx actor.Context, d *delivery, sender *actor.PID) {
	p := pending{message: d.message, sender: sender}
	nodes := a.places(d)
	if len(nodes) == 0 || nodes[0] == a.directory.node {
		a.deliverHere(ctx, d.to, p)
		return
	}
	if err := a.send(ctx, d, p, nodes); err != nil {
		a.refuse(ctx, d.to, p, err)
	}
}

// places returns the nodes to try, in order; none means here.
func (a *activator) places(d *delivery) []string {
	options := &a.directory.options
	k := a.kinds[d.to.kind]
	switch {
	case options.Transport == nil || k == nil || !validIdentity(d.to.identity):
		return nil
	case k.form == Pinned:
		return []string{d.to.identity}
	case d.node != "":
		return []string{d.node}
	case options.Ranks == nil:
		return nil
	}
	if d.past > RanksTried {
		return nil
	}
	places := make([]string, 0, RanksTried+1)
	ranks := options.Ranks(d.to.kind, d.to.identity)
	ranks = ranks[min(max(d.past, 0), len(ranks)):]
	for _, node := range ranks[:min(len(ranks), RanksTried)] {
		if node == a.directory.node {
			if a.able() != nil {
				continue
			}
			break
		}
		places = append(places, node)
	}
	return append(places, a.directory.node)
}

// send sends a message to the first of some nodes, and remembers it until it is
// settled if anything can follow.
func (a *activator) send(ctx actor.Context, d *delivery, p pending, nodes []string) error {
	if a.ending {
		return records.Errorf(records.ClassUnavailable, "%w", ErrStopped)
	}
	if p.sender == nil && len(nodes) == 1 {
		packet, err := a.directory.deliverPacket(0, d.to, p, 0)
		if err != nil {
			return err
		}
		a.directory.options.Transport.Send(nodes[0], packet)
		return nil
	}
	if limit := a.directory.options.OutgoingMax; len(a.outgoing) >= limit {
		return records.Errorf(records.ClassUnavailable, "%d messages are under way to other nodes: %w", limit, ErrBusy)
	}
	id := a.number()
	packet, err := a.directory.deliverPacket(id, d.to, p, d.wait)
	if err != nil {
		return err
	}
	o := &outgoing{to: d.to, message: p, packet: packet, nodes: nodes, wait: d.wait}
	a.outgoing[id] = o
	a.directory.outgoing.Add(1)
	a.try(ctx, id, o)
	return nil
}

// try goes on to the next place. When none is left nothing but an answer can come.
func (a *activator) try(ctx actor.Context, id uint64, o *outgoing) {
	if o.tried == len(o.nodes) {
		a.await(ctx, id, o)
		return
	}
	node := o.nodes[o.tried]
	o.tried++
	if node == a.directory.node {
		a.settle(id, o)
		a.directory.fallbacks.Add(1)
		a.deliverHere(ctx, o.to, o.message)
		return
	}
	a.directory.options.Transport.Send(node, o.packet)
	a.wait(ctx, id, o, TakenTimeout)
}

// await waits for the answer to what was taken.
func (a *activator) await(ctx actor.Context, id uint64, o *outgoing) {
	if o.message.sender == nil {
		a.settle(id, o)
		return
	}
	o.taken = true
	a.wait(ctx, id, o, o.wait)
}

func (a *activator) wait(ctx actor.Context, id uint64, o *outgoing, d time.Duration) {
	o.timer.end()
	number := a.number()
	o.timer = a.after(ctx, number, d, &silence{id: id, timer: number})
}

// settle forgets a message.
func (a *activator) settle(id uint64, o *outgoing) {
	o.timer.end()
	delete(a.outgoing, id)
	a.directory.outgoing.Add(-1)
}

// silent follows a wait that has ended: the next place is tried. Who waits for an
// answer that does not come has given up by then.
func (a *activator) silent(ctx actor.Context, m *silence) {
	o := a.outgoing[m.id]
	switch {
	case o == nil || o.timer.number != m.timer:
	case o.taken:
		a.settle(m.id, o)
	default:
		a.try(ctx, m.id, o)
	}
}

// arrive takes a packet of another node.
func (a *activator) arrive(ctx actor.Context, in *arrival) {
	if content, ok := in.packet.GetContent().(*actorv1.Packet_Deliver); ok {
		a.take(ctx, in, content.Deliver)
		return
	}
	// Of what an earlier directory of this node sent nothing is known here, and a
	// number of its may be one of ours.
	id := in.packet.GetId()
	o := a.outgoing[id]
	if o == nil || in.packet.GetIncarnation() != a.directory.options.Incarnation || !slices.Contains(o.nodes[:o.tried], in.from) {
		return
	}
	if content, ok := in.packet.GetContent().(*actorv1.Packet_Reply); ok {
		a.replied(ctx, id, o, content.Reply, in)
		return
	}
	a.taken(ctx, id, o, in.packet.GetTaken().GetRefusal(), in.from)
}

// take gives another node's message to its actor, whatever place this node's own
// view has for it: views may differ for good.
func (a *activator) take(ctx actor.Context, in *arrival, deliver *actorv1.Deliver) {
	to := address{deliver.GetKind(), deliver.GetIdentity()}
	p := pending{message: in.message}
	if k := a.kinds[to.kind]; k != nil && k.form != Pinned {
		if err := a.able(); err != nil {
			a.directory.sendTaken(in.from, in.packet, err)
			return
		}
	}
	key := uint64(0)
	if deliver.GetAsk() {
		if err := a.mayOwe(); err != nil {
			a.directory.sendTaken(in.from, in.packet, err)
			return
		}
		key, p.sender = a.owe(ctx, in, deliver)
	}
	err := a.deliver(ctx, to, p)
	if err != nil {
		a.directory.refuseTell(address{clip(to.kind), clip(to.identity)}, err)
		a.forgive(key)
	}
	a.directory.sendTaken(in.from, in.packet, err)
}

// able says why this node can not carry actors that are not pinned.
func (a *activator) able() error {
	if able := a.directory.options.Able; able != nil {
		if err := able(); err != nil {
			return records.Errorf(records.ClassUnavailable, "%w", err)
		}
	}
	return nil
}

func (a *activator) mayOwe() error {
	switch limit := a.directory.options.OwedMax; {
	case a.ending:
		return records.Errorf(records.ClassUnavailable, "%w", ErrStopped)
	case len(a.owed) >= limit:
		return records.Errorf(records.ClassUnavailable, "%d answers are awaited: %w", limit, ErrBusy)
	default:
		return nil
	}
}

// owe makes the address that an actor's answer to another node goes to.
func (a *activator) owe(ctx actor.Context, in *arrival, deliver *actorv1.Deliver) (key uint64, to *actor.PID) {
	wait := AskTimeout
	if ms := deliver.GetWaitMs(); ms > 0 {
		wait = time.Duration(min(ms, AnswerWaitMax.Milliseconds())) * time.Millisecond
	}
	key = a.number()
	self, root := ctx.Self(), ctx.ActorSystem().Root
	reply := a.directory.host.Expect(func(answer any, err error) {
		root.Send(self, &answered{key: key, answer: answer, err: err})
	})
	a.owed[key] = &owed{
		node: in.from, id: in.packet.GetId(), incarnation: in.packet.GetIncarnation(), reply: reply,
		timer: a.after(ctx, key, wait, &unanswered{key: key}),
	}
	return key, reply.PID()
}

// answer sends an actor's answer to the node that waits for it.
func (a *activator) answer(m *answered) {
	o := a.owed[m.key]
	if o == nil {
		return
	}
	a.forgive(m.key)
	a.directory.options.Transport.Send(o.node, replyPacket(o.id, o.incarnation, m.answer, m.err))
}

// forgive forgets an answer that is owed.
func (a *activator) forgive(key uint64) {
	if o := a.owed[key]; o != nil {
		o.timer.end()
		o.reply.Drop()
		delete(a.owed, key)
	}
}

// taken follows the word of a node that it has a message, or does not want it.
func (a *activator) taken(ctx actor.Context, id uint64, o *outgoing, refused, from string) {
	switch {
	case refused == "":
		if !o.taken {
			a.await(ctx, id, o)
		}
	case o.taken || from != o.nodes[o.tried-1]:
		// Another has it, or is being tried.
	case o.tried < len(o.nodes):
		a.try(ctx, id, o)
	default:
		a.settle(id, o)
		a.refuse(ctx, o.to, o.message, records.Errorf(records.ClassUnavailable, "node %s: %w: %s", from, ErrRefused, clip(refused)))
	}
}

// replied hands an answer to who waits for it.
func (a *activator) replied(ctx actor.Context, id uint64, o *outgoing, reply *actorv1.Reply, in *arrival) {
	if o.message.sender == nil {
		return
	}
	a.settle(id, o)
	if refused := reply.GetRefusal(); refused != "" || in.message == nil {
		// The actor may have done what it was asked.
		a.refuse(ctx, o.to, o.message, records.Errorf(records.ClassOutcomeUnknown, "node %s: %w: %s", in.from, ErrRefused, clip(refused)))
		return
	}
	ctx.Send(o.message.sender, in.message)
}

// abandon ends all waits for other nodes, as the activator itself ends. Who waits
// for an answer learns that it will not come.
func (a *activator) abandon(ctx actor.Context) {
	for _, id := range sortedKeys(a.outgoing) {
		o := a.outgoing[id]
		a.settle(id, o)
		a.refuse(ctx, o.to, o.message, records.Errorf(records.ClassOutcomeUnknown, "%w", ErrStopped))
	}
	for _, key := range sortedKeys(a.owed) {
		a.forgive(key)
	}
}

// number numbers packets, timers and answers; no number is ever used again.
func (a *activator) number() uint64 {
	a.last++
	return a.last
}

// after tells the activator something later.
func (a *activator) after(ctx actor.Context, number uint64, d time.Duration, message any) timer {
	self, root := ctx.Self(), ctx.ActorSystem().Root
	return timer{number: number, stop: a.directory.host.Clock().After(d, func() { root.Send(self, message) })}
}

func (t *timer) end() {
	if t.stop != nil {
		t.stop()
	}
	*t = timer{}
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
