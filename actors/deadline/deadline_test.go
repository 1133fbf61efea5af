package deadline

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

var (
	epoch    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	testKeys = records.Keys{Root: "/errand/", Shards: 64}
)

// bench steps one machine and keeps its one timer.
type bench struct {
	t        testing.TB
	machine  *Machine
	now      actors.Instant
	revision int64
	timer    time.Duration
	woken    []string
	past     []int
	errors   int
	// follows and passivations count those effects.
	follows, passivations int
}

func newBench(t testing.TB) *bench {
	b := benchOf(t, Config{Keys: testKeys})
	if b.follows != 1 {
		t.Fatal("does not follow its shard")
	}
	return b
}

func benchOf(t testing.TB, cfg Config) *bench {
	b := &bench{t: t, machine: New("3", cfg), now: actors.Instant{Wall: epoch, WallHealthy: true}, revision: 100, timer: -1}
	b.step(actors.Activated{})
	return b
}

func (b *bench) step(in actors.Input) {
	turn := 0
	for _, effect := range b.machine.Step(b.now, in) {
		switch e := effect.(type) {
		case actors.SetTimer:
			b.timer = b.now.Mono + e.After
		case actors.Tell:
			wake := e.Message.(*actorv1.Wake)
			if e.Kind != actors.KindRun || e.Identity != wake.GetRun() || wake.GetShard() != 3 || wake.Shard == nil ||
				wake.GetNode() != b.machine.cfg.Node {
				b.t.Fatalf("told %v", e)
			}
			b.woken = append(b.woken, wake.GetRun())
			b.past = append(b.past, e.Past)
			turn++
		case actors.Follow:
			if e.Prefix != "/errand/live/3/" {
				b.t.Fatalf("follows %s", e.Prefix)
			}
			b.follows++
		case actors.Passivate:
			b.passivations++
		case actors.Log:
			if e.Level == actors.LogError {
				b.errors++
			}
		default:
			b.t.Fatalf("%T", effect)
		}
	}
	if turn > wakesPerTurn {
		b.t.Fatalf("%d wakes in one turn", turn)
	}
}

// until fires the timer whenever it is due, up to a moment.
func (b *bench) until(moment time.Duration) {
	for b.timer >= 0 && b.timer <= moment {
		b.at(b.timer)
		b.timer = -1
		b.step(actors.TimerFired{Name: timerDue})
	}
	b.at(moment)
}

func (b *bench) at(moment time.Duration) {
	b.now.Wall = b.now.Wall.Add(moment - b.now.Mono)
	b.now.Mono, b.now.Boot = moment, moment
}

func (b *bench) take() []string {
	woken := b.woken
	b.woken = nil
	return woken
}

func live(run string, mod int64, next time.Duration) records.Event {
	value := records.Encode(&recordv1.Live{NextWake: epoch.Add(next).UnixMilli()})
	return records.Event{KV: records.KV{Key: "/errand/live/3/" + run, Value: value, Create: 1, Mod: mod}}
}

// placed is the live key of a run that a node has.
func placed(run string, next time.Duration) records.Event {
	event := live(run, 0, 0)
	event.KV.Value = records.Encode(&recordv1.Live{NextWake: epoch.Add(next).UnixMilli(), Node: "n1", Session: 1})
	return event
}

func (b *bench) change(reset bool, events ...records.Event) {
	b.revision++
	for i := range events {
		events[i].KV.Mod = b.revision
	}
	b.step(actors.Followed{Prefix: "/errand/live/3/", Batch: records.Batch{Reset: reset, Revision: b.revision, Events: events}})
}

func gone(run string) records.Event {
	return records.Event{KV: records.KV{Key: "/errand/live/3/" + run}, Deleted: true}
}

func (b *bench) answer(run string, in time.Duration) {
	b.step(actors.Received{Message: &actorv1.Awake{Run: run, InMs: in.Milliseconds()}})
}

func TestTakeoverWakesAllOnceSpreadOverASecond(t *testing.T) {
	b := newBench(t)
	b.change(true, live("c", 1, time.Hour), live("a", 1, time.Hour), live("b", 1, -time.Hour), live("d", 1, time.Hour))
	if got := b.take(); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("woken at once: %v", got)
	}
	b.until(749 * time.Millisecond)
	if got := b.take(); !slices.Equal(got, []string{"b", "c"}) {
		t.Fatalf("woken then: %v", got)
	}
	b.until(999 * time.Millisecond)
	if got := b.take(); !slices.Equal(got, []string{"d"}) {
		t.Fatalf("woken at last: %v", got)
	}
}

func TestWakeIsRepeatedUntilTheKeyMovesOrTheAnswerSaysWhen(t *testing.T) {
	cases := []struct {
		name  string
		then  func(b *bench)
		until time.Duration
		woken int
	}{
		{"nobody answers", func(*bench) {}, 5 * time.Second, 4},
		{"the key moves", func(b *bench) { b.change(false, live("a", 0, 4*time.Second)) }, 3900 * time.Millisecond, 0},
		{"the key moves and its time comes", func(b *bench) { b.change(false, live("a", 0, 4*time.Second)) }, 4 * time.Second, 1},
		{"the run ends", func(b *bench) { b.change(false, gone("a")) }, time.Hour, 0},
		{"a reset lacks it", func(b *bench) { b.change(true) }, time.Hour, 0},
		{"wait a while", func(b *bench) { b.answer("a", 3*time.Second) }, 4 * time.Second, 1},
		{"wait too little", func(b *bench) { b.answer("a", time.Millisecond) }, 1099 * time.Millisecond, 0},
		{"look at the key", func(b *bench) { b.answer("a", 0) }, 2 * time.Second, 1},
		{"an answer about another run", func(b *bench) { b.answer("x", time.Hour) }, 2 * time.Second, 1},
		{
			"an answer about an older wake",
			func(b *bench) { b.change(false, live("a", 0, 2*time.Second)); b.answer("a", time.Hour) },
			2 * time.Second, 1,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.change(true)
			b.change(false, live("a", 0, time.Second))
			b.until(time.Second)
			if got := b.take(); !slices.Equal(got, []string{"a"}) {
				t.Fatalf("woken %v", got)
			}
			c.then(b)
			b.until(c.until)
			if got := b.take(); len(got) != c.woken {
				t.Fatalf("woken %d times, want %d", len(got), c.woken)
			}
		})
	}
}

func TestNothingIsDoneByAClockThatIsNotHealthy(t *testing.T) {
	b := newBench(t)
	b.change(true)
	b.change(false, placed("a", time.Second))
	b.now.WallHealthy = false
	b.now.Wall = b.now.Wall.Add(24 * time.Hour)
	b.until(30 * time.Second)
	if got := b.take(); len(got) != 0 {
		t.Fatalf("woken %v", got)
	}
	b.now.Wall = epoch.Add(b.now.Mono)
	b.now.WallHealthy = true
	b.until(b.now.Mono + unhealthyLook)
	if got := b.take(); len(got) != 1 {
		t.Fatalf("woken %v after the clock was well", got)
	}
}

func TestRunsThatWaitForANodeAreLookedAtWithoutAWallClock(t *testing.T) {
	b := newBench(t)
	b.change(true)
	b.change(false, live("a", 0, 30*time.Second))
	b.now.WallHealthy = false
	for range 3 {
		b.until(b.now.Mono + lookMax + takeoverSpread)
		if got := b.take(); len(got) == 0 {
			t.Fatalf("not woken within %s", lookMax)
		}
		b.answer("a", lookMax)
	}
}

func TestStepOfTheWallClockIsNoticed(t *testing.T) {
	b := newBench(t)
	b.change(true)
	b.change(false, live("a", 0, time.Hour))
	b.now.Wall = b.now.Wall.Add(2 * time.Hour)
	b.until(lookMax)
	if got := b.take(); len(got) == 0 {
		t.Fatal("not woken")
	}
}

// Whoever wrote a next_wake may have had a clock that was a day ahead.
func TestFarNextWakeIsNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name, node string
		next       time.Duration
		answer     time.Duration
		woken      []time.Duration
	}{
		{"a waiting run", "", 24 * time.Hour, time.Hour, []time.Duration{waitingMax, waitingMax + time.Hour}},
		{"a placed run", "n1", 24 * time.Hour, 24 * time.Hour, []time.Duration{placedMax, 2 * placedMax}},
		{"a waiting run in time", "", 30 * time.Second, time.Hour, []time.Duration{30 * time.Second}},
		{"a placed run in time", "n1", 30 * time.Minute, time.Hour, []time.Duration{30 * time.Minute}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.change(true)
			event := live("a", 0, 0)
			event.KV.Value = records.Encode(&recordv1.Live{NextWake: epoch.Add(c.next).UnixMilli(), Node: c.node, Session: 1})
			b.change(false, event)
			for _, at := range c.woken {
				b.until(at - time.Millisecond)
				if got := b.take(); len(got) != 0 {
					t.Fatalf("woken %v before %s", got, at)
				}
				b.until(at)
				if got := b.take(); len(got) != 1 {
					t.Fatalf("woken %v at %s", got, at)
				}
				b.answer("a", c.answer)
			}
		})
	}
}

func TestAllAreWokenWhenTheWallClockWasSetAndCanBeTrustedAgain(t *testing.T) {
	b := newBench(t)
	b.change(true)
	b.change(false, placed("a", 30*time.Second), placed("b", 40*time.Second))
	b.now.Wall, b.now.WallHealthy = b.now.Wall.Add(-24*time.Hour), false
	b.until(time.Minute)
	if got := b.take(); len(got) != 0 {
		t.Fatalf("woken %v by a clock that was just set", got)
	}
	b.now.WallHealthy = true
	b.until(time.Minute + lookMax + takeoverSpread)
	if got := b.take(); !slices.Contains(got, "a") || !slices.Contains(got, "b") {
		t.Fatalf("woken %v", got)
	}
}

func TestUnreadableLiveKeyIsDueAtOnce(t *testing.T) {
	b := newBench(t)
	b.change(true)
	bad := live("a", 0, time.Hour)
	bad.KV.Value = []byte{0xff}
	b.change(false, bad)
	if got := b.take(); len(got) != 1 || b.errors != 1 {
		t.Fatalf("woken %v, %d errors", got, b.errors)
	}
}

func TestNoSuchShardLeaves(t *testing.T) {
	for _, identity := range []string{"", "x", "-1", "64", "99999999999"} {
		effects := New(identity, Config{Keys: testKeys}).Step(actors.Instant{}, actors.Activated{})
		if !slices.ContainsFunc(effects, func(e actors.Effect) bool { _, ok := e.(actors.Passivate); return ok }) {
			t.Errorf("%q stays", identity)
		}
	}
}

// TestEveryLiveRunIsWokenWhenDue plays random changes and answers against a plain
// model: a run is never left alone past the later of its next_wake and what it
// answered, and nothing is woken that is not live.
func TestEveryLiveRunIsWokenWhenDue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		b.change(true)
		due := map[string]time.Duration{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			run := fmt.Sprintf("r%d", rapid.IntRange(0, 5).Draw(rt, "run"))
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				due[run] = b.now.Mono + time.Duration(rapid.IntRange(-2000, 5000).Draw(rt, "next"))*time.Millisecond
				b.change(false, live(run, 0, due[run]))
			case 2:
				delete(due, run)
				b.change(false, gone(run))
			default:
				b.until(b.now.Mono + time.Duration(rapid.IntRange(0, 2500).Draw(rt, "pass"))*time.Millisecond)
			}
			for _, woken := range b.take() {
				if _, ok := due[woken]; !ok {
					rt.Fatalf("%s was woken and is not live", woken)
				}
				if due[woken] > b.now.Mono {
					rt.Fatalf("%s was woken at %s, due at %s", woken, b.now.Mono, due[woken])
				}
			}
		}
		b.until(b.now.Mono + 7*time.Second)
		woken := b.take()
		for run := range due {
			if !slices.Contains(woken, run) {
				rt.Fatalf("%s is due and was not woken", run)
			}
		}
	})
}

func TestHundredThousandLiveRunsAreCheap(t *testing.T) {
	const runs = 100_000
	// The project's bar for a passivated live run, all of it.
	const bytesMax = 512
	events := make([]records.Event, runs)
	for i := range events {
		events[i] = live(fmt.Sprintf("r.default.%026d", i), 1, time.Hour)
	}
	b := newBench(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	// The events stay referenced, so their keys and values are added by hand.
	b.change(true, events...)
	for moment := time.Duration(0); moment < 2*time.Second; moment += 10 * time.Millisecond {
		b.until(moment)
		b.woken = b.woken[:0]
	}
	b.woken = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	perRun := int(after.HeapAlloc-before.HeapAlloc)/runs + len(events[0].KV.Key) + len(events[0].KV.Value)
	t.Logf("%d bytes per live run", perRun)
	if perRun > bytesMax {
		t.Errorf("%d bytes per live run, at most %d", perRun, bytesMax)
	}
	if len(b.machine.entries) != runs || b.machine.live.Len() != runs {
		t.Error("not all are there")
	}
	runtime.KeepAlive(events)
}

func TestAnswersFromOtherShardsAndUnknownMessagesDoNothing(t *testing.T) {
	b := newBench(t)
	b.change(true)
	for _, m := range []proto.Message{&actorv1.Awake{Run: "x", InMs: 5}, &actorv1.Activate{}, &actorv1.Stop{}} {
		b.step(actors.Received{Message: m})
	}
	if len(b.take()) != 0 {
		t.Error("somebody was woken")
	}
}

func TestManyDueAtOnceAreWokenInOrderAndInPortions(t *testing.T) {
	const runs = 3*wakesPerTurn + 1
	b := newBench(t)
	b.change(true)
	events := make([]records.Event, runs)
	want := make([]string, runs)
	for i := range events {
		// In the order of arrival they would be mixed up.
		want[i] = fmt.Sprintf("r%04d", i)
		events[i*7%runs] = live(want[i], 0, -time.Hour)
	}
	b.change(false, events...)
	if len(b.woken) != wakesPerTurn {
		t.Fatalf("%d wakes in the first turn", len(b.woken))
	}
	b.until(10 * time.Millisecond)
	if got := b.take(); !slices.Equal(got, want) {
		t.Fatalf("woken %d, the first %v", len(got), got[:5])
	}
}
