package activation_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// ended returns a context that has ended.
func ended(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func deliver(id, incarnation uint64, kind, identity string, message proto.Message) *actorv1.Packet {
	encoded, err := proto.Marshal(message)
	if err != nil {
		panic(err)
	}
	return &actorv1.Packet{Id: id, Incarnation: incarnation, Content: &actorv1.Packet_Deliver{Deliver: &actorv1.Deliver{
		Kind: kind, Identity: identity, Type: string(message.ProtoReflect().Descriptor().FullName()), Message: encoded,
	}}}
}

// large returns a message that nothing else is wrong with.
func large() (name string, encoded []byte) {
	d := deliver(1, 1, "", "", wrapperspb.Bytes(make([]byte, activation.MessageBytesMax))).GetDeliver()
	return d.GetType(), d.GetMessage()
}

func TestDirectoryRefusesPackets(t *testing.T) {
	bad := func(change func(d *actorv1.Deliver)) *actorv1.Packet {
		p := deliver(7, 1, "thing", "a", word("hello"))
		change(p.GetDeliver())
		return p
	}
	for _, c := range []struct {
		name   string
		packet *actorv1.Packet
		// silent is set when there is nobody to tell.
		silent bool
	}{
		{"of an unknown type", bad(func(d *actorv1.Deliver) { d.Type = "errand.actor.v9.Unheard" }), false},
		{"without a type", bad(func(d *actorv1.Deliver) { d.Type = "" }), false},
		{"that can not be decoded", bad(func(d *actorv1.Deliver) { d.Message = []byte{0xff} }), false},
		{"that are too large", bad(func(d *actorv1.Deliver) { d.Type, d.Message = large() }), false},
		{"for an unknown kind", bad(func(d *actorv1.Deliver) { d.Kind = "nothing" }), false},
		{"without an identity", bad(func(d *actorv1.Deliver) { d.Identity = "" }), false},
		{"with too long an identity", bad(func(d *actorv1.Deliver) { d.Identity = string(make([]byte, 1<<20)) }), false},
		{"without a deliver", &actorv1.Packet{Id: 7, Content: &actorv1.Packet_Deliver{}}, false},
		{"without content", &actorv1.Packet{Id: 7}, true},
		{"that are nil", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster(t, 1, "n1", "n2")
			d := w.node("n1").directory
			d.Receive("n2", c.packet)
			w.pass(time.Second)
			if got := d.Refused(); got != 1 {
				t.Errorf("%d refused", got)
			}
			switch {
			case c.silent && len(w.sent) > 0:
				t.Errorf("answered %v", w.sent[0])
			case !c.silent && (len(w.sent) != 1 || w.sent[0].GetId() != 7 || w.sent[0].GetTaken().GetRefusal() == ""):
				t.Errorf("answered %v", w.sent)
			}
			w.settled()
		})
	}
}

func TestDirectoryWithoutATransportTakesNoPackets(t *testing.T) {
	scheduler := stepping.NewScheduler(1)
	h := host.New(host.Options{Clock: &stepping.Clock{}, Dispatcher: scheduler, Mailbox: stepping.Mailbox})
	j := &journal{}
	d := activation.New(h, "n1")
	must(t, d.Register("thing", subjects(&world{changed: func() {}}, j)))
	d.Receive("n2", deliver(1, 1, "thing", "a", word("hello")))
	scheduler.Settle(100)
	if got := j.all(); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

// Whatever is lost, doubled, delayed, cut or forged: nothing fails, a message that
// is told once is told at no more than the two ranks and its own node, every ask is
// answered at most once and by an actor that was told, and nothing stays behind.
func TestDirectoriesSurviveAnySequenceOfPackets(t *testing.T) {
	names := []string{"n1", "n2", "n3", "n4"}
	rapid.Check(t, func(r *rapid.T) {
		w := newCluster(t, rapid.Uint64().Draw(r, "seed"), names...)
		for _, n := range names {
			if rapid.Bool().Draw(r, "own view") {
				w.overruled[n] = rapid.Permutation(names).Draw(r, "view")
			}
		}
		w.lost, w.doubled = rapid.IntRange(0, 60).Draw(r, "lost"), rapid.IntRange(0, 60).Draw(r, "doubled")
		w.delayMax = time.Duration(rapid.IntRange(0, 3000).Draw(r, "delay")) * time.Millisecond
		node := rapid.SampledFrom(names)
		asks := map[string]*asking{}
		tells := 0
		for i := range rapid.IntRange(1, 30).Draw(r, "actions") {
			identity := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "identity")
			switch rapid.IntRange(0, 6).Draw(r, "action") {
			case 0, 1:
				tells++
				w.node(node.Draw(r, "from")).directory.Tell("thing", "t", word(fmt.Sprint("tell ", i)))
			case 2:
				from := node.Draw(r, "from")
				id := fmt.Sprintf("%s%d", identity, i)
				asks[id] = w.ask(from, "thing", id, "ask")
			case 3:
				w.cut[[2]string{node.Draw(r, "from"), node.Draw(r, "to")}] = rapid.Bool().Draw(r, "cut")
			case 4:
				w.node(node.Draw(r, "to")).directory.Receive(node.Draw(r, "from"), drawPacket(r, w))
			case 5:
				n := rapid.IntRange(0, len(names)-1).Draw(r, "restarted")
				stop(t, w, names[n])
				w.start(n)
			default:
				w.pass(time.Duration(rapid.IntRange(0, 2000).Draw(r, "pass")) * time.Millisecond)
			}
		}
		w.pass(activation.AnswerWaitMax + time.Minute)
		w.settled()
		for id, a := range asks {
			if a.calls > 1 {
				r.Fatalf("%s answered %d times", id, a.calls)
			}
			if a.by() != "" && w.told(id + " ask")[a.by()] == 0 {
				r.Fatalf("%s answered by %q, who was not told", id, a.by())
			}
		}
		if w.doubled == 0 && tells > 0 {
			for i := range 30 {
				if got := w.told(fmt.Sprint("t tell ", i)); len(got) > 3 {
					r.Fatalf("told at %v", got)
				}
			}
		}
	})
}

// drawPacket makes a packet of any kind, often with a number that means something.
func drawPacket(r *rapid.T, w *cluster) *actorv1.Packet {
	p := &actorv1.Packet{Id: rapid.Uint64Range(0, 40).Draw(r, "id"), Incarnation: rapid.Uint64Range(1000, 1003).Draw(r, "incarnation")}
	text := rapid.SampledFrom([]string{"", "thing", "stays", "node", "n1", "errand.actor.v1.Wake", "google.protobuf.StringValue"})
	content := rapid.SliceOfN(rapid.Byte(), 0, 8)
	switch rapid.IntRange(0, 5).Draw(r, "content") {
	case 0:
		p.Content = &actorv1.Packet_Deliver{Deliver: &actorv1.Deliver{
			Kind: text.Draw(r, "kind"), Identity: text.Draw(r, "identity"), Type: text.Draw(r, "type"),
			Message: content.Draw(r, "message"), Ask: rapid.Bool().Draw(r, "ask"), WaitMs: rapid.Int64().Draw(r, "wait"),
		}}
	case 1:
		p.Content = &actorv1.Packet_Taken{Taken: &actorv1.Taken{Refusal: text.Draw(r, "refusal")}}
	case 2:
		p.Content = &actorv1.Packet_Reply{Reply: &actorv1.Reply{
			Type: text.Draw(r, "type"), Message: content.Draw(r, "message"), Refusal: text.Draw(r, "refusal"),
		}}
	case 3:
		if len(w.sent) > 0 { // one of long ago, as it was
			return rapid.SampledFrom(slices.Clone(w.sent)).Draw(r, "sent").Packet
		}
	default:
	}
	return p
}

func FuzzReceive(f *testing.F) {
	for _, p := range []*actorv1.Packet{
		deliver(1, 1, "thing", "a", word("ask")), deliver(0, 1, "node", "n1", word("hello")),
		{Id: 1, Incarnation: 9, Content: &actorv1.Packet_Taken{Taken: &actorv1.Taken{Refusal: "no"}}},
		{Id: 1, Incarnation: 9, Content: &actorv1.Packet_Reply{Reply: &actorv1.Reply{Type: "google.protobuf.StringValue"}}},
	} {
		encoded, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("n2", encoded)
	}
	f.Fuzz(func(t *testing.T, from string, encoded []byte) {
		packet := &actorv1.Packet{}
		if proto.Unmarshal(encoded, packet) != nil {
			return
		}
		scheduler, clock := stepping.NewScheduler(1), &stepping.Clock{}
		failed := error(nil)
		h := host.New(host.Options{
			Clock: clock, Dispatcher: scheduler, Mailbox: stepping.Mailbox, Log: zap.NewNop(), StrictSpawn: true,
			Failed: func(err error) { failed = err },
		})
		d := activation.New(h, "n1", activation.Options{
			Transport: nowhere{}, Incarnation: 9, Ranks: func(string, string) []string { return []string{"n2", "n1"} },
		})
		must(t, d.Register("thing", subjects(&world{changed: func() {}}, &journal{})))
		d.AskThen("thing", "a", word("ask"), func(proto.Message, error) {})
		scheduler.Settle(1 << 10)
		d.Receive(from, packet)
		for scheduler.Settle(1 << 10); clock.Next(); scheduler.Settle(1 << 10) {
		}
		if failed != nil || d.Outgoing() != 0 {
			t.Errorf("%d under way, failed: %v", d.Outgoing(), failed)
		}
	})
}
