package network

import (
	"fmt"
	"slices"
	"testing"
	"time"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// world is a network of three machines that note what they get.
type world struct {
	*Network
	line   *virtual.Timeline
	record *history.History
	events []history.Event
	got    map[string][]string
}

func newWorld(seed uint64) *world {
	w := &world{line: &virtual.Timeline{}, record: history.New(), got: map[string][]string{}}
	w.record.Observe(func(e history.Event) { w.events = append(w.events, e) })
	w.Network = New(w.line, virtual.Streams{Seed: seed}.Of("network"), w.record, nil)
	for _, name := range []string{"m1", "m2", "m3"} {
		w.listen(name, "n"+name[1:])
	}
	return w
}

func (w *world) listen(machine, node string) {
	w.Of(machine).Listen(node, func(from string, packet *actorv1.Packet) {
		w.got[machine] = append(w.got[machine], fmt.Sprintf("%s %s", from, packet.GetDeliver().GetIdentity()))
	})
}

func deliver(identity string) *actorv1.Packet {
	return &actorv1.Packet{Id: 1, Content: &actorv1.Packet_Deliver{Deliver: &actorv1.Deliver{Kind: "run", Identity: identity, Type: "t", Message: []byte("m")}}}
}

// send sends packets numbered from 0 and lets all arrive.
func (w *world) send(from, to string, n int) {
	for i := range n {
		w.Of(from).Send(to, deliver(fmt.Sprint(i)))
	}
	w.settle()
}

func (w *world) settle() {
	for w.line.Next() {
	}
}

func (w *world) texts() (texts []string) {
	for _, e := range w.events {
		texts = append(texts, e.Node+" "+e.Text)
	}
	return texts
}

func TestPacketsOfALinkArriveInOrderAndAreCopies(t *testing.T) {
	w := newWorld(1)
	packet := deliver("0")
	w.Of("m1").Send("n2", packet)
	if len(w.got["m2"]) > 0 {
		t.Error("delivered inside the call")
	}
	packet.GetDeliver().Identity = "changed"
	w.settle()
	w.send("m1", "n2", 50)
	want := []string{"n1 0"}
	for i := range 50 {
		want = append(want, fmt.Sprintf("n1 %d", i))
	}
	if !slices.Equal(w.got["m2"], want) {
		t.Errorf("got %v", w.got["m2"])
	}
	if took := w.line.Now(); took == 0 {
		t.Error("it took no time")
	}
	if texts := w.texts()[:2]; !slices.Equal(texts, []string{"m1 sent to m2", "m2 from m1 delivered"}) || w.events[0].Run != "0" {
		t.Errorf("history %q, run %q", texts, w.events[0].Run)
	}
}

func TestLinkFaults(t *testing.T) {
	const n = 400
	cases := []struct {
		name  string
		fault func(l *Link)
		check func(t *testing.T, got []string, took time.Duration)
	}{
		{"drop loses some", func(l *Link) { l.Drop = 0.5 }, func(t *testing.T, got []string, _ time.Duration) {
			if len(got) < n/4 || len(got) > 3*n/4 {
				t.Errorf("%d of %d arrived", len(got), n)
			}
		}},
		{"double delivers some twice", func(l *Link) { l.Double = 0.5 }, func(t *testing.T, got []string, _ time.Duration) {
			if len(got) < n+n/4 || len(got) > n+3*n/4 {
				t.Errorf("%d of %d arrived", len(got), n)
			}
		}},
		{"reorder lets some overtake", func(l *Link) { l.Reorder = 0.5 }, func(t *testing.T, got []string, _ time.Duration) {
			if len(got) != n || slices.IsSortedFunc(got, byNumber) {
				t.Errorf("%d in order", len(got))
			}
		}},
		{"hold delays some for minutes", func(l *Link) { l.Hold, l.HoldFor = 0.1, virtual.Span{Min: 10 * time.Minute, Max: 10 * time.Minute} }, func(t *testing.T, got []string, took time.Duration) {
			if len(got) != n || took < 10*time.Minute || slices.IsSortedFunc(got, byNumber) {
				t.Errorf("%d after %v", len(got), took)
			}
		}},
		{"slow link", func(l *Link) { l.Delay = virtual.Span{Min: time.Second, Max: 2 * time.Second} }, func(t *testing.T, got []string, took time.Duration) {
			if len(got) != n || took < time.Second || !slices.IsSortedFunc(got, byNumber) {
				t.Errorf("%d after %v", len(got), took)
			}
		}},
		{"cut loses all", func(l *Link) { l.Cut = true }, func(t *testing.T, got []string, _ time.Duration) {
			if len(got) > 0 {
				t.Errorf("got %v", got)
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(1)
			c.fault(w.Link("m1", "m2"))
			w.send("m1", "n2", n)
			c.check(t, w.got["m2"], w.line.Now())
			w.send("m2", "n1", 3)
			w.send("m1", "n3", 3)
			if len(w.got["m1"]) != 3 || len(w.got["m3"]) != 3 {
				t.Errorf("the other direction got %v, another pair %v", w.got["m1"], w.got["m3"])
			}
		})
	}
}

func byNumber(a, b string) int {
	var x, y int
	_, _ = fmt.Sscanf(a, "n1 %d", &x)
	_, _ = fmt.Sscanf(b, "n1 %d", &y)
	return x - y
}

func TestCutLosesWhatIsUnderWay(t *testing.T) {
	w := newWorld(1)
	w.Of("m1").Send("n2", deliver("0"))
	w.Isolate("m2")
	w.settle()
	if len(w.got["m2"]) > 0 || w.Reaches("m1", "m2") || w.Reaches("m2", "m3") || !w.Reaches("m1", "m3") {
		t.Errorf("got %v", w.got)
	}
	if !slices.Equal(w.texts(), []string{"m1 sent to m2", "m1 to m2 lost"}) {
		t.Errorf("history %q", w.texts())
	}
	w.Heal()
	w.Partition([]string{"m1", "m2"})
	w.send("m1", "n2", 1)
	w.send("m1", "n3", 1)
	w.send("m3", "n2", 1)
	if len(w.got["m2"]) != 1 || len(w.got["m3"]) > 0 {
		t.Errorf("across a partition: %v", w.got)
	}
}

func TestRulesDecideByWhatAPacketCarries(t *testing.T) {
	w := newWorld(1)
	stop := w.Script(func(from, to string, d *actorv1.Deliver) (Fate, bool) {
		switch {
		case d == nil:
			return Fate{}, false
		case d.GetIdentity() == "1" && to == "m2":
			return Fate{Drop: true}, true
		case d.GetIdentity() == "0":
			return Fate{HoldFor: 10 * time.Minute}, true
		}
		return Fate{}, false
	})
	w.send("m1", "n2", 3)
	w.Of("m1").Send("n2", &actorv1.Packet{Content: &actorv1.Packet_Taken{Taken: &actorv1.Taken{}}})
	w.settle()
	if want := []string{"n1 2", "n1 0", "n1 "}; !slices.Equal(w.got["m2"], want) {
		t.Errorf("got %v, want %v", w.got["m2"], want)
	}
	stop()
	w.send("m1", "n2", 2)
	if len(w.got["m2"]) != 5 {
		t.Errorf("after the rule: %v", w.got["m2"])
	}
}

func TestPacketsForANameOfTwoMachinesGoWhereTheFaultSays(t *testing.T) {
	w := newWorld(1)
	w.listen("m3", "n2")
	w.send("m1", "n2", 1)
	w.Prefer("n2", "m3")
	w.send("m1", "n2", 2)
	if len(w.got["m2"]) != 1 || len(w.got["m3"]) != 2 {
		t.Fatalf("got %v", w.got)
	}
	w.Of("m3").Listen("n2", nil) // its daemon ends
	w.send("m1", "n2", 1)
	if len(w.got["m2"]) != 2 {
		t.Errorf("got %v", w.got)
	}
	w.Of("m2").Listen("n2", nil)
	w.send("m1", "n2", 1)
	if last := w.texts()[len(w.events)-1]; last != "m1 to n2 lost" {
		t.Errorf("a packet for nobody: %s", last)
	}
}

func TestPacketIsLostWhenItsReceiverEndsMeanwhile(t *testing.T) {
	w := newWorld(1)
	w.Of("m1").Send("n2", deliver("0"))
	w.Of("m2").Listen("n2", nil)
	w.settle()
	if len(w.got["m2"]) > 0 {
		t.Errorf("got %v", w.got["m2"])
	}
}

func TestOneSeedIsOneHistory(t *testing.T) {
	storm := func(seed uint64) uint64 {
		w := newWorld(seed)
		w.Each(func(_, _ string, l *Link) {
			l.Drop, l.Double, l.Reorder, l.Hold, l.HoldFor = 0.1, 0.1, 0.1, 0.1, virtual.Span{Max: time.Minute}
		})
		for i := range 200 {
			w.Of([]string{"m1", "m2", "m3"}[i%3]).Send([]string{"n2", "n3", "n1"}[i%3], deliver(fmt.Sprint(i)))
			w.line.Next()
		}
		w.settle()
		return w.record.Hash()
	}
	if first, again := storm(1), storm(1); first != again {
		t.Error("one seed gave two histories")
	}
	if storm(1) == storm(2) {
		t.Error("two seeds gave one history")
	}
}

func BenchmarkSend(b *testing.B) {
	line := &virtual.Timeline{}
	n := New(line, virtual.Streams{Seed: 1}.Of("network"), history.New(), nil)
	n.Of("m2").Listen("n2", func(string, *actorv1.Packet) {})
	packet := deliver("t.app.task.1234567890123")
	packet.GetDeliver().Message = make([]byte, 300)
	b.ReportAllocs()
	for b.Loop() {
		n.Of("m1").Send("n2", packet)
		line.Next()
	}
}
