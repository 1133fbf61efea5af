package deadline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// newSessionsBench has seen its shard, empty, and nodes as they are given.
func newSessionsBench(t testing.TB, nodes ...records.Event) *bench {
	b := &bench{
		t: t, machine: New("3", Config{Keys: testKeys, Sessions: true}),
		now: actors.Instant{Wall: epoch, WallHealthy: true}, revision: 100, timer: -1,
	}
	var follows []string
	for _, effect := range b.machine.Step(b.now, actors.Activated{}) {
		if f, ok := effect.(actors.Follow); ok {
			follows = append(follows, f.Prefix)
		}
	}
	if !slices.Equal(follows, []string{"/errand/live/3/", "/errand/nodes/"}) {
		t.Fatalf("follows %v", follows)
	}
	b.change(true)
	b.nodes(true, 100, nodes...)
	return b
}

func (b *bench) nodes(reset bool, revision int64, events ...records.Event) {
	b.step(actors.Followed{Prefix: "/errand/nodes/", Batch: records.Batch{Reset: reset, Revision: revision, Events: events}})
}

func session(node string, create int64) records.Event {
	return records.Event{KV: records.KV{Key: "/errand/nodes/" + node, Create: create, Mod: create}}
}

func sessionEnd(node string, at int64) records.Event {
	return records.Event{KV: records.KV{Key: "/errand/nodes/" + node, Mod: at}, Deleted: true}
}

func placedLive(run, node string, session int64) records.Event {
	value := records.Encode(&recordv1.Live{NextWake: epoch.Add(time.Hour).UnixMilli(), Node: node, Session: session})
	return records.Event{KV: records.KV{Key: "/errand/live/3/" + run, Value: value, Create: 1}}
}

func TestEndOfASessionWakesTheRunsThatArePlacedInIt(t *testing.T) {
	for _, test := range []struct {
		name string
		then func(b *bench)
		want []string
	}{
		{"deleted", func(b *bench) { b.nodes(false, 200, sessionEnd("n1", 200)) }, []string{"a", "b"}},
		{"registered anew", func(b *bench) { b.nodes(false, 201, sessionEnd("n1", 200), session("n1", 201)) }, []string{"a", "b"}},
		{"missing in a reset", func(b *bench) { b.nodes(true, 200, session("n2", 20), session("n10", 30)) }, []string{"a", "b"}},
		{"another in a reset", func(b *bench) { b.nodes(true, 200, session("n1", 150), session("n2", 20), session("n10", 30)) }, []string{"a", "b"}},
		{"another node's", func(b *bench) { b.nodes(false, 200, sessionEnd("n10", 200)) }, []string{"d"}},
		{"two at once", func(b *bench) { b.nodes(false, 200, sessionEnd("n1", 200), sessionEnd("n2", 200)) }, []string{"a", "b", "c"}},
		{"a run that has moved on", func(b *bench) {
			b.change(false, placedLive("a", "n2", 20))
			b.nodes(false, 200, sessionEnd("n1", 200))
		}, []string{"b"}},
		{"a run that has ended", func(b *bench) {
			b.change(false, gone("b"))
			b.nodes(false, 200, sessionEnd("n1", 200))
		}, []string{"a"}},
		{"a run that waits again", func(b *bench) {
			b.change(false, live("a", 0, time.Hour))
			b.nodes(false, 200, sessionEnd("n1", 200))
		}, []string{"b"}},
		{"before the run is seen to be placed", func(b *bench) {
			b.nodes(false, 200, sessionEnd("n1", 200))
			b.until(b.now.Mono + takeoverSpread)
			b.take()
			b.answer("a", time.Hour)
			b.answer("b", time.Hour)
			b.change(false, placedLive("e", "n1", 10))
		}, []string{"e"}},
		{"of a session that the nodes do not show yet", func(b *bench) { b.change(false, placedLive("e", "n3", 150)) }, nil},
		{"of one that has come and gone", func(b *bench) {
			b.change(false, placedLive("e", "n3", 150))
			b.nodes(true, 200, session("n1", 10), session("n2", 20), session("n10", 30))
		}, []string{"e"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newSessionsBench(t, session("n1", 10), session("n2", 20), session("n10", 30))
			b.change(false, placedLive("a", "n1", 10), placedLive("b", "n1", 10), placedLive("c", "n2", 20), placedLive("d", "n10", 30), live("w", 0, time.Hour))
			b.until(b.now.Mono + time.Second)
			if got := b.take(); len(got) != 0 {
				t.Fatalf("woken %v", got)
			}
			test.then(b)
			b.until(b.now.Mono + takeoverSpread - time.Millisecond)
			got := slices.Compact(slices.Sorted(slices.Values(b.take())))
			if !slices.Equal(got, test.want) {
				t.Errorf("woken %v, want %v", got, test.want)
			}
		})
	}
}

func TestEndOfABusySessionIsSpreadAndBounded(t *testing.T) {
	const runs = 3 * wakesPerTurn
	b := newSessionsBench(t, session("n1", 10))
	events := make([]records.Event, runs)
	for i := range events {
		events[i] = placedLive(fmt.Sprintf("r%04d", i), "n1", 10)
	}
	b.change(false, events...)
	b.nodes(false, 200, sessionEnd("n1", 200))
	b.until(b.now.Mono + takeoverSpread/2)
	if got := len(b.woken); got < runs/3 || got > 2*runs/3 {
		t.Errorf("%d woken at half time", got)
	}
	b.until(b.now.Mono + takeoverSpread/2 - time.Millisecond)
	if got := slices.Compact(slices.Sorted(slices.Values(b.take()))); len(got) != runs {
		t.Errorf("%d woken", len(got))
	}
}

// TestEveryRunOfASessionThatIsOverIsWoken plays placements and sessions in any order
// of the two follows against a plain model.
func TestEveryRunOfASessionThatIsOverIsWoken(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newSessionsBench(t)
		type where struct {
			node    string
			session int64
		}
		revision, sessions, runs := int64(1000), map[string]int64{}, map[string]where{}
		var waiting []records.Event
		show := func(reset bool) {
			events := waiting
			if waiting = nil; reset {
				events = nil
				for _, node := range []string{"n1", "n2", "n3"} {
					if s := sessions[node]; s != 0 {
						events = append(events, session(node, s))
					}
				}
			}
			b.nodes(reset, revision, events...)
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			node := fmt.Sprintf("n%d", rapid.IntRange(1, 3).Draw(rt, "node"))
			run := fmt.Sprintf("r%d", rapid.IntRange(0, 5).Draw(rt, "run"))
			revision++
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0:
				if sessions[node] != 0 {
					waiting = append(waiting, sessionEnd(node, revision))
					sessions[node] = 0
				} else {
					sessions[node] = revision
					waiting = append(waiting, session(node, revision))
				}
			case 1, 2:
				if sessions[node] != 0 {
					runs[run] = where{node, sessions[node]}
					b.change(false, placedLive(run, node, sessions[node]))
				}
			case 3:
				delete(runs, run)
				b.change(false, gone(run))
			case 4:
				show(false)
			case 5:
				show(true)
			default:
				b.until(b.now.Mono + time.Duration(rapid.IntRange(0, 1500).Draw(rt, "pass"))*time.Millisecond)
			}
		}
		b.take()
		revision++
		show(rapid.Bool().Draw(rt, "reset"))
		b.until(b.now.Mono + 2*takeoverSpread)
		woken := b.take()
		for run, at := range runs {
			if sessions[at.node] != at.session && !slices.Contains(woken, run) {
				rt.Fatalf("%s is in session %d of %s, which has %d, and was not woken", run, at.session, at.node, sessions[at.node])
			}
		}
		for _, h := range b.machine.hosts {
			for i, e := range h.seats {
				if e.host != h || int(e.seat) != i || runs[e.run].node != h.name {
					rt.Fatalf("%s is in seat %d of %s", e.run, i, h.name)
				}
			}
		}
	})
}
