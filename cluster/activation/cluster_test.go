package activation_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// cluster is some directories in one stepped world, and the network between them.
type cluster struct {
	t          testing.TB
	clock      *stepping.Clock
	schedulers []*stepping.Scheduler
	policy     stepping.Policy
	random     *rand.Rand
	nodes      []*member
	// cut are the one-way cuts, by from and to.
	cut map[[2]string]bool
	// lost and doubled are the odds of each packet, in percent.
	lost, doubled int
	// delayMax bounds the delay that each packet draws.
	delayMax time.Duration
	// sent are all packets, lost ones included.
	sent []packet
	// order are the ranks of every node's view; overruled holds other views.
	order     []string
	overruled map[string][]string
}

// Low limits, so that tests reach them.
const (
	outgoingMax = 200
	owedMax     = 100
)

type packet struct {
	from, to string
	*actorv1.Packet
}

type member struct {
	name      string
	journal   *journal
	directory *activation.Directory
	host      *host.Host
	// asked are the senders of what "later" was told, to be answered by "now".
	asked       map[string]*actor.PID
	incarnation uint64
	// mute keeps its actors from answering.
	mute bool
	// unable is why the node can not carry actors that are not pinned.
	unable error
}

func newCluster(t testing.TB, seed uint64, names ...string) *cluster {
	random := rand.New(rand.NewPCG(seed, 7))
	c := &cluster{
		t: t, clock: &stepping.Clock{}, policy: stepping.Uniform{Random: random}, random: random,
		cut: map[[2]string]bool{}, delayMax: 10 * time.Millisecond, order: names, overruled: map[string][]string{},
	}
	order := &stepping.Order{}
	for _, name := range names {
		c.schedulers = append(c.schedulers, stepping.Among(order))
		c.nodes = append(c.nodes, &member{name: name, journal: &journal{}})
	}
	for i := range c.nodes {
		c.start(i)
	}
	return c
}

// start starts a node, in place of the one that was if any.
func (c *cluster) start(i int) {
	n := c.nodes[i]
	c.schedulers[i] = stepping.Among(&stepping.Order{})
	n.incarnation += 1000 + uint64(i)
	n.asked = map[string]*actor.PID{}
	n.host = host.New(host.Options{
		Clock: c.clock, Dispatcher: c.schedulers[i], Mailbox: stepping.Mailbox, Log: zaptest.NewLogger(c.t), StrictSpawn: true,
	})
	n.directory = activation.New(n.host, n.name, activation.Options{
		Transport: link{c, n.name}, Incarnation: n.incarnation, OutgoingMax: outgoingMax, OwedMax: owedMax,
		Able: func() error { return n.unable },
		Ranks: func(string, string) []string {
			if order, ok := c.overruled[n.name]; ok {
				return order
			}
			return c.order
		},
	})
	for _, kind := range []struct {
		name string
		form activation.Form
	}{{"thing", activation.Virtual}, {"stays", activation.Resident}, {"node", activation.Pinned}} {
		if err := n.directory.Register(kind.name, n.producer, kind.form); err != nil {
			c.t.Fatal(err)
		}
	}
}

// producer makes actors that note what they are told. "ask" is answered at once,
// "later" when "now" comes, "large" with too much.
func (n *member) producer(identity string) actor.Producer {
	deliveries := new(uint64)
	return func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			switch m := ctx.Message().(type) {
			case *actor.Started:
				n.journal.add(identity + " started")
			case *actor.Stopped:
				n.journal.add(identity + " stopped")
			case *wrapperspb.StringValue:
				*deliveries++
				n.journal.add(identity + " " + m.GetValue())
				switch m.GetValue() {
				case "idle":
					ctx.Request(ctx.Parent(), &activation.Passivate{Deliveries: *deliveries})
				case "ask":
					if !n.mute {
						ctx.Respond(word(n.name))
					}
				case "large":
					ctx.Respond(wrapperspb.Bytes(make([]byte, activation.MessageBytesMax+1)))
				case "later":
					n.asked[identity] = ctx.Sender()
				case "now":
					ctx.Send(n.asked[identity], word(n.name))
				}
			}
		})
	}
}

// link is a node's way into the network.
type link struct {
	cluster *cluster
	from    string
}

func (l link) Send(to string, p *actorv1.Packet) {
	c := l.cluster
	c.sent = append(c.sent, packet{l.from, to, p})
	copies := 1
	switch {
	case c.cut[[2]string{l.from, to}] || c.random.IntN(100) < c.lost:
		copies = 0
	case c.random.IntN(100) < c.doubled:
		copies = 2
	}
	for range copies {
		c.clock.After(time.Duration(c.random.Int64N(int64(c.delayMax)+1)), func() {
			if n := c.node(to); n != nil {
				n.directory.Receive(l.from, p)
			}
		})
	}
}

func (c *cluster) node(name string) *member {
	if i := slices.IndexFunc(c.nodes, func(n *member) bool { return n.name == name }); i >= 0 {
		return c.nodes[i]
	}
	return nil
}

// silence cuts a node's way to others, both ways when back is set.
func (c *cluster) silence(from string, back bool, others ...string) {
	for _, other := range others {
		c.cut[[2]string{from, other}] = true
		if back {
			c.cut[[2]string{other, from}] = true
		}
	}
}

// settle runs all turns that there are.
func (c *cluster) settle() {
	for stepping.Ready(c.schedulers) {
		i, j := c.policy.Pick(c.schedulers)
		c.schedulers[i].StepAt(j)
	}
}

// pass lets time pass, and whatever happens in it.
func (c *cluster) pass(d time.Duration) {
	over := false
	c.clock.After(d, func() { over = true })
	for c.settle(); !over; c.settle() {
		c.clock.Next()
	}
}

// told returns which nodes' actors were told something, and how often.
func (c *cluster) told(line string) map[string]int {
	counts := map[string]int{}
	for _, n := range c.nodes {
		if count := n.journal.count(line); count > 0 {
			counts[n.name] = count
		}
	}
	return counts
}

// settled fails when a directory still has something under way.
func (c *cluster) settled() {
	c.t.Helper()
	for _, n := range c.nodes {
		if got := n.directory.Outgoing(); got != 0 {
			c.t.Errorf("%s has %d messages under way", n.name, got)
		}
		if got := n.directory.Waiting(); got != 0 {
			c.t.Errorf("%d messages wait at %s", got, n.name)
		}
	}
	if got := c.clock.Waiting(); got != 0 {
		c.t.Errorf("%d timers are left", got)
	}
}

// asking is an ask and what came of it.
type asking struct {
	answer proto.Message
	err    error
	calls  int
}

func (c *cluster) ask(from, kind, identity, what string) *asking {
	a := &asking{}
	c.node(from).directory.AskThen(kind, identity, word(what), func(answer proto.Message, err error) {
		a.answer, a.err = answer, err
		a.calls++
	})
	return a
}

// by returns the node that answered.
func (a *asking) by() string {
	if answer, ok := a.answer.(*wrapperspb.StringValue); ok {
		return answer.GetValue()
	}
	return ""
}

// eachSeed runs a test under a few seeds.
func eachSeed(t *testing.T, test func(t *testing.T, seed uint64)) {
	t.Helper()
	for seed := range uint64(5) {
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) { test(t, seed) })
	}
}
