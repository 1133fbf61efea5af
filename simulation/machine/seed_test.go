package machine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stormy are the faults of a machine on which everything goes wrong at times.
func stormy() Faults {
	f := Sound()
	slow := virtual.Span{Max: time.Minute}
	f.Disk.StallRate, f.Disk.Stall, f.Disk.ErrorRate, f.Disk.TearRate = 0.1, slow, 0.05, 0.3
	r := &f.Runtime
	r.SlowRate, r.Slow = 0.1, slow
	for _, rate := range []*float64{
		&r.CreateHangRate, &r.CreateLeaveRate, &r.CreateRefuseRate, &r.CreateFailRate, &r.StartRefuseRate, &r.StartFailRate,
		&r.StartUnknownRate, &r.UnavailableRate, &r.AnswerLostRate, &r.DoubleRate, &r.IncompleteRate, &r.KeepRate, &r.LieRate,
	} {
		*rate = 0.1
	}
	r.Kill, r.ExitDelay = virtual.Span{Max: 20 * second}, virtual.Span{Max: 5 * second}
	f.Fence.Kill = virtual.Span{Max: 12 * second}
	return f
}

// storm does to a machine whatever can be done, drawn from a seed, and holds what is
// true of it in any case.
func storm(t *testing.T, seed uint64, steps int) uint64 {
	b := newBench(t, seed, stormy())
	draw := virtual.Streams{Seed: seed}.Of("storm")
	answered, asked := 0, 0
	for i := range steps {
		id := fmt.Sprintf("e%d", draw.IntN(8))
		switch what := draw.IntN(20); {
		case what < 12:
			asked++
			stormOp(b, draw, id, func() { answered++ })
		case what < 14:
			b.life.Journal().Write(put(id), func(error) {})
		case what == 14:
			stormFault(b, draw, id)
		default:
			b.pass(time.Duration(draw.Int64N(int64(10 * second))))
		}
		if b.Paused() && draw.IntN(4) == 0 {
			b.Resume()
		}
		if !b.Off() && b.Daemon() == nil {
			b.life = b.Launch()
		}
		if b.Off() && draw.IntN(2) == 0 {
			b.PowerOn()
		}
		holdStorm(t, b, seed, i)
	}
	if answered == 0 || answered > 2*asked {
		t.Errorf("seed %d: %d answers to %d questions", seed, answered, asked)
	}
	return b.record.Hash()
}

func stormOp(b *bench, draw *rand.Rand, id string, answered func()) {
	verb := nodes.SandboxVerb(1 + draw.IntN(int(nodes.VerbList)))
	op := nodes.SandboxOp{Verb: verb, ID: id, Signal: sigterm}
	if verb == nodes.VerbCreate {
		op = creating(id, "fork", "30s", "sleep-exit", time.Duration(draw.Int64N(int64(time.Minute))).String(), "3")
		op.Timeout = 30 * second
	}
	op.Driver = "null"
	life := b.life
	heard := func() {
		if life.Dead() || b.Paused() {
			b.t.Errorf("%s %s: heard by a daemon that is dead, or stands still", verb, id)
		}
	}
	life.Sandboxes().Do(op, func(nodes.SandboxResult) {
		heard()
		answered()
	})
	life.Clock().After(second, heard)
	life.Journal().Load(func(nodes.JournalContent, error) { heard() })
}

func stormFault(b *bench, draw *rand.Rand, id string) {
	if b.Off() {
		return
	}
	switch draw.IntN(14) {
	case 0:
		b.life.Crash()
	case 1:
		b.PowerOff()
	case 2, 3:
		b.Pause(Pause(draw.IntN(4)))
	case 4:
		b.Rate(draw.Int64N(40_000) - 20_000)
	case 5:
		b.StepWall(time.Duration(draw.Int64N(int64(time.Hour))))
	case 6, 7:
		b.arm(int64(draw.IntN(3)), time.Duration(draw.Int64N(int64(30*second))))
	case 8:
		b.VanishSandbox(id)
	case 9:
		b.CrashShim(id, draw.IntN(2) == 0)
	case 10:
		b.KillLog(id)
	case 11:
		b.KillGuard()
	case 12:
		b.StartGuard()
	default:
		b.life.Sandboxes().Abandon("null", id)
	}
}

// holdStorm checks that history and machine agree about what lives, that each
// command starts once and ends once, and that clocks do not go back.
func holdStorm(t *testing.T, b *bench, seed uint64, step int) {
	t.Helper()
	for _, s := range b.Sandboxes() {
		told := 0
		for _, c := range b.commands(s.ID) {
			if c.Started {
				told++
			} else {
				told--
			}
			if told < 0 || told > 1 {
				t.Fatalf("seed %d step %d: %s started or ended twice: %+v", seed, step, s.ID, b.commands(s.ID))
			}
		}
		if (told == 1) != s.Alive {
			t.Fatalf("seed %d step %d: history says %d live in %s, the machine %v", seed, step, told, s.ID, s.Alive)
		}
	}
	if b.Off() {
		for _, s := range b.Sandboxes() {
			if s.Alive {
				t.Fatalf("seed %d step %d: %s lives without power", seed, step, s.ID)
			}
		}
	}
}

func TestOneSeedIsOneHistory(t *testing.T) {
	seen := map[uint64]uint64{}
	for seed := range uint64(30) {
		first, again := storm(t, seed, 300), storm(t, seed, 300)
		if first != again {
			t.Errorf("seed %d gave two histories", seed)
		}
		if other, ok := seen[first]; ok {
			t.Errorf("seeds %d and %d gave one history", seed, other)
		}
		seen[first] = seed
	}
}

// BenchmarkRun is all that a machine does for one run, beside renewals.
func BenchmarkRun(b *testing.B) {
	bench := newBench(b, 1, calm())
	b.ReportAllocs()
	for b.Loop() {
		bench.events = bench.events[:0]
		_ = bench.written(put("r"))
		bench.run("e1", "sleep-exit", "1s", "0")
		bench.verb(nodes.VerbWait, "e1")
		bench.verb(nodes.VerbKill, "e1")
		bench.verb(nodes.VerbFlush, "e1")
		bench.verb(nodes.VerbRemove, "e1")
		bench.life.Clock().Now()
	}
}

func BenchmarkClockNow(b *testing.B) {
	clock := newBench(b, 1, Sound()).life.Clock()
	b.ReportAllocs()
	for b.Loop() {
		clock.Now()
	}
}

func BenchmarkClockAfter(b *testing.B) {
	bench := newBench(b, 1, Sound())
	clock := bench.life.Clock()
	for range 1000 {
		clock.After(time.Hour, func() {})
	}
	b.ReportAllocs()
	for b.Loop() {
		clock.After(time.Millisecond, func() {})
		clock.After(time.Millisecond, func() {})()
		bench.line.Next()
	}
}
