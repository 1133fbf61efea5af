package run

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// bench steps one machine against a store by hand.
type bench struct {
	t       *testing.T
	keys    records.Keys
	store   *memory
	machine *Machine
	nodes   candidates
	now     actors.Instant
	commit  *actors.Commit
	timers  map[string]time.Duration
	tells   []actors.Tell
	answers []*actorv1.Canceled
	leaves  bool
}

type candidates []string

func (c candidates) Candidates() []actors.Candidate {
	var list []actors.Candidate
	for _, name := range c {
		list = append(list, actors.Candidate{Node: name})
	}
	return list
}

type counter struct{ n uint64 }

func (c *counter) Uint64() uint64 { c.n++; return c.n }

func (c *counter) Fill(b []byte) {
	for i := range b {
		b[i] = byte(c.Uint64())
	}
}

func newBench(t *testing.T, create bool, nodes ...string) *bench {
	b := &bench{t: t, keys: records.Keys{Root: "/e/", Shards: 4}, store: newMemory(), now: at(0), nodes: nodes, timers: map[string]time.Duration{}}
	b.machine = New(testID, Config{Node: "here", Keys: b.keys, Writer: "w", Nodes: b.nodes, Rand: &counter{}})
	for _, n := range nodes {
		b.store.txn(b.keys.Register(n, &recordv1.NodeSession{}, 0, 0, &recordv1.NodeInfo{}))
	}
	if create {
		b.store.txn(b.keys.Create(newRun(), 1))
	}
	b.step(actors.Activated{})
	b.receive(&actorv1.Activate{})
	b.land()
	return b
}

func (b *bench) step(in actors.Input) {
	b.leaves = false
	for _, effect := range b.machine.Step(b.now, in) {
		switch e := effect.(type) {
		case actors.Commit:
			if b.commit != nil {
				b.t.Fatal("two transactions in flight")
			}
			b.commit = &e
		case actors.SetTimer:
			delete(b.timers, e.Name)
			if e.After >= 0 {
				b.timers[e.Name] = b.now.Mono + e.After
			}
		case actors.Tell:
			b.tells = append(b.tells, e)
		case actors.Answer:
			b.answers = append(b.answers, e.Message.(*actorv1.Canceled))
		case actors.Passivate:
			b.leaves = true
		case Judge:
			e.On(b.machine.cfg.Scores.(*placement.Scores))
		}
	}
}

func (b *bench) receive(m proto.Message) { b.step(actors.Received{Message: m, From: "caller"}) }

// land carries out what is in flight, and what follows from it.
func (b *bench) land() {
	for b.commit != nil {
		b.landOne()
	}
}

func (b *bench) landOne() {
	c := b.commit
	b.commit = nil
	b.step(actors.Committed{Tag: c.Tag, Result: b.store.txn(c.Txn)})
}

func (b *bench) fail(class records.Class, landed bool) {
	c := b.commit
	b.commit = nil
	if landed {
		b.store.txn(c.Txn)
	}
	b.step(actors.Committed{Tag: c.Tag, Result: records.Result{Err: records.Errorf(class, "store away")}})
}

// pass moves the clock to the earliest timer and fires it.
func (b *bench) pass() string {
	first := ""
	for name, due := range b.timers {
		if first == "" || due < b.timers[first] || due == b.timers[first] && name < first {
			first = name
		}
	}
	if first == "" {
		b.t.Fatal("no timer is set")
	}
	b.now = at(b.timers[first])
	delete(b.timers, first)
	b.step(actors.TimerFired{Name: first})
	return first
}

// told takes the last message off that was told.
func (b *bench) told() (string, proto.Message) {
	if len(b.tells) == 0 {
		return "", nil
	}
	last := b.tells[len(b.tells)-1]
	b.tells = b.tells[:len(b.tells)-1]
	return last.Identity, last.Message
}

func (b *bench) record() *recordv1.Run {
	run, err := records.DecodeRun(b.store.keys[b.keys.Run(testID)])
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

func (b *bench) wake() {
	shard := int32(3)
	b.receive(&actorv1.Wake{Run: testID, Shard: &shard})
}

func (b *bench) reserved(node string, yes bool, session int64) {
	b.receive(&actorv1.Reserved{Run: testID, Attempt: 1, Placement: 1, Node: node, Yes: yes, Session: session, Message: "no room: 64 of 64 sandboxes in use"})
}

func (b *bench) sessionOf(node string) int64 { return b.store.keys[b.keys.Node(node)].Create }

func (b *bench) place() {
	b.receive(&actorv1.Wake{Run: testID})
	b.reserved("n1", true, b.sessionOf("n1"))
	b.land()
}

func (c candidates) Alive() []string { return nil }
