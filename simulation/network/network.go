// Package network carries packets between the directories of simulated nodes, and
// loses, doubles, delays, reorders and holds them.
//
// It connects machines. A machine's daemon listens under its node's name, and a
// packet for that name goes to the machine that claims it; if several do, Prefer
// says which. Every ordered pair of machines has a Link of its own, so that a cut
// may be one-way or leave some pairs alone. Packets of one link keep their order
// unless the link reorders.
//
// The fields of a Link may be changed at any time: they count for what is sent
// later, and Cut for what arrives later too. Everything belongs to the one goroutine
// of the world; packets are delivered from the timeline.
package network

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/activation"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// Link is how packets go from one machine to another.
type Link struct {
	// Delay is how long a packet takes.
	Delay virtual.Span `json:"delay"`
	// Drop, Double and Reorder are how often a packet is lost, arrives twice, or does
	// not wait for those before it. Hold is how often it takes HoldFor more, and lets
	// those behind it pass.
	Drop    float64      `json:"drop"`
	Double  float64      `json:"double"`
	Reorder float64      `json:"reorder"`
	Hold    float64      `json:"hold"`
	HoldFor virtual.Span `json:"hold_for"`
	// Cut links lose everything, also what is under way.
	Cut bool `json:"cut"`

	// last is when the last packet in order arrives.
	last time.Duration
	// sent is what history is told, made once.
	sent, lost, delivered string
}

// Packet is the detail of a KindPacket.
type Packet struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Kind and Identity are those of the actor that a Deliver is for; else Kind is
	// "taken" or "reply".
	Kind     string `json:"kind"`
	Identity string `json:"identity,omitempty"`
	// Type is the name of the message.
	Type string `json:"type,omitempty"`
}

// String says what the packet carries.
func (p *Packet) String() string {
	name := p.Type[strings.LastIndexByte(p.Type, '.')+1:]
	switch {
	case p.Identity != "":
		return name + " for " + p.Kind + "/" + p.Identity
	case name != "":
		return p.Kind + " " + name
	default:
		return p.Kind
	}
}

// Fate is what a Rule does with a packet.
type Fate struct {
	Drop bool
	// HoldFor delays it by so much, and lets those behind it pass.
	HoldFor time.Duration
}

// Rule decides about a packet of a scenario by what it carries: from and to are
// machines, deliver is nil for a packet that carries no message to an actor. ok is
// false for one that it has nothing to say of.
type Rule func(from, to string, deliver *actorv1.Deliver) (fate Fate, ok bool)

// Receiver takes a packet from a node; the packet is its own.
type Receiver func(from string, packet *actorv1.Packet)

// Network connects the machines of a world.
type Network struct {
	// Default is how links are made.
	Default Link

	timeline *virtual.Timeline
	random   *rand.Rand
	history  *history.History
	step     func() uint64
	ports    map[string]*Port
	order    []*Port
	rules    []*Rule
	prefer   map[string]string
}

// New makes a network without machines. step is how many turns the world has made,
// nil for none.
func New(timeline *virtual.Timeline, random *rand.Rand, h *history.History, step func() uint64) *Network {
	if step == nil {
		step = func() uint64 { return 0 }
	}
	return &Network{
		Default:  Link{Delay: virtual.Span{Min: 200 * time.Microsecond, Max: 2 * time.Millisecond}},
		timeline: timeline, random: random, history: h, step: step,
		ports: map[string]*Port{}, prefer: map[string]string{},
	}
}

// Port is a machine's connection. It implements activation.Transport for the daemon
// that lives there.
type Port struct {
	network *Network
	machine string
	node    string
	receive Receiver
	links   map[string]*Link
}

var _ activation.Transport = (*Port)(nil)

// Of returns the port of a machine, the same at every call.
func (n *Network) Of(machine string) *Port {
	p := n.ports[machine]
	if p == nil {
		p = &Port{network: n, machine: machine, node: machine, links: map[string]*Link{}}
		n.ports[machine] = p
		n.order = append(n.order, p)
	}
	return p
}

// Listen makes a receiver that of the machine's daemon, in place of any before it,
// under the name of the daemon's node. Nil, at the daemon's end, ends that: packets
// for it are lost.
func (p *Port) Listen(node string, receive Receiver) { p.node, p.receive = node, receive }

// Link returns how packets go from a machine to another.
func (n *Network) Link(from, to string) *Link { return n.Of(from).link(to) }

func (p *Port) link(to string) *Link {
	l := p.links[to]
	if l == nil {
		made := p.network.Default
		l = &made
		l.sent, l.lost, l.delivered = "sent to "+to, "to "+to+" lost", "from "+p.machine+" delivered"
		p.links[to] = l
	}
	return l
}

// Each calls change for the links of every ordered pair of known machines, in order.
func (n *Network) Each(change func(from, to string, link *Link)) {
	for _, from := range n.order {
		for _, to := range n.order {
			if from != to {
				change(from.machine, to.machine, from.link(to.machine))
			}
		}
	}
}

// Isolate cuts a machine from all others, both ways; Heal ends every cut.
func (n *Network) Isolate(machine string) {
	n.Of(machine)
	n.Each(func(from, to string, link *Link) { link.Cut = link.Cut || from == machine || to == machine })
}

// Partition cuts one side from all others, both ways.
func (n *Network) Partition(side []string) {
	n.Each(func(from, to string, link *Link) {
		link.Cut = link.Cut || slices.Contains(side, from) != slices.Contains(side, to)
	})
}

// Heal ends every cut.
func (n *Network) Heal() {
	n.Each(func(_, _ string, link *Link) { link.Cut = false })
}

// Reaches tells whether packets go from a machine to another at all.
func (n *Network) Reaches(from, to string) bool { return from == to || !n.Link(from, to).Cut }

// Prefer says which machine gets the packets for a node's name that several claim.
// Without it, or while that machine does not claim it, the first that was known does.
func (n *Network) Prefer(node, machine string) { n.prefer[node] = machine }

// Script adds a rule; the first that has something to say of a packet decides. stop
// removes it.
func (n *Network) Script(rule Rule) (stop func()) {
	added := &rule
	n.rules = append(n.rules, added)
	return func() {
		n.rules = slices.DeleteFunc(n.rules, func(r *Rule) bool { return r == added })
	}
}

// holder returns the port of the machine that gets a node's packets, nil if none
// does.
func (n *Network) holder(node string) *Port {
	if p := n.ports[n.prefer[node]]; p != nil && p.node == node && p.receive != nil {
		return p
	}
	for _, p := range n.order {
		if p.node == node && p.receive != nil {
			return p
		}
	}
	return nil
}

// Send passes a packet on to a node.
func (p *Port) Send(node string, packet *actorv1.Packet) {
	n := p.network
	to := n.holder(node)
	about := describe(p.machine, node, packet)
	if to == nil {
		l := p.link(node)
		n.note(p.machine, l.lost, about)
		return
	}
	about.To = to.machine
	l := p.link(to.machine)
	n.note(p.machine, l.sent, about)
	fate := n.fate(p.machine, to.machine, packet)
	if l.Cut || fate.Drop || virtual.Chance(n.random, l.Drop) {
		n.note(p.machine, l.lost, about)
		return
	}
	clone := proto.CloneOf(packet)
	n.carry(p, node, l, clone, about, fate.HoldFor)
	if virtual.Chance(n.random, l.Double) {
		n.carry(p, node, l, proto.CloneOf(clone), about, fate.HoldFor)
	}
}

// carry lets a packet arrive.
func (n *Network) carry(p *Port, node string, l *Link, packet *actorv1.Packet, about *Packet, hold time.Duration) {
	at := n.timeline.Now() + l.Delay.Draw(n.random)
	if virtual.Chance(n.random, l.Hold) {
		hold += l.HoldFor.Draw(n.random)
	}
	switch {
	case hold > 0:
		at += hold
	case virtual.Chance(n.random, l.Reorder):
		at += l.Delay.Draw(n.random)
	default:
		at = max(at, l.last)
		l.last = at
	}
	sender := p.node
	n.timeline.After(at-n.timeline.Now(), func() {
		to := n.holder(node)
		if l.Cut || to == nil || to.machine != about.To {
			n.note(p.machine, l.lost, about)
			return
		}
		n.note(to.machine, l.delivered, about)
		to.receive(sender, packet)
	})
}

func (n *Network) fate(from, to string, packet *actorv1.Packet) Fate {
	for _, rule := range n.rules {
		if fate, ok := (*rule)(from, to, packet.GetDeliver()); ok {
			return fate
		}
	}
	return Fate{}
}

func (n *Network) note(machine, text string, about *Packet) {
	e := history.Event{Step: n.step(), At: n.timeline.Now(), Kind: history.KindPacket, Node: machine, Text: text, Detail: about}
	if about.Kind == actors.KindRun {
		e.Run = about.Identity
	}
	n.history.Add(e)
}

// describe says what a packet is, without formatting anything.
func describe(from, to string, packet *actorv1.Packet) *Packet {
	about := &Packet{From: from, To: to}
	switch {
	case packet.GetDeliver() != nil:
		d := packet.GetDeliver()
		about.Kind, about.Identity, about.Type = d.GetKind(), d.GetIdentity(), d.GetType()
	case packet.GetTaken() != nil:
		about.Kind = "taken"
	case packet.GetReply() != nil:
		about.Kind, about.Type = "reply", packet.GetReply().GetType()
	}
	return about
}
