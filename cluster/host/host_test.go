package host_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	"github.com/errand-run/errand/cluster/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a host that is stepped.
type bench struct {
	*host.Host
	scheduler *stepping.Scheduler
	clock     *stepping.Clock
	logs      *observer.ObservedLogs
	failed    []error
}

func newBench(seed uint64) *bench {
	core, logs := observer.New(zapcore.DebugLevel)
	b := &bench{scheduler: stepping.NewScheduler(seed), clock: &stepping.Clock{}, logs: logs}
	b.Host = host.New(host.Options{
		Clock: b.clock, Dispatcher: b.scheduler, Mailbox: stepping.Mailbox, Log: zap.New(core), StrictSpawn: true,
		Failed: func(err error) { b.failed = append(b.failed, err) },
	})
	return b
}

func (b *bench) settle() { b.scheduler.Settle(1 << 20) }

func (b *bench) spawn(t *testing.T, name string, receive actor.ReceiveFunc) *host.Top {
	t.Helper()
	top, err := b.Spawn(name, func() actor.Actor { return receive })
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func (b *bench) send(top *host.Top, message any) { b.System().Root.Send(top.PID, message) }

func TestSupervisorRestartsAfterGrowingPauses(t *testing.T) {
	b := newBench(1)
	var starts []time.Duration
	top := b.spawn(t, "fails", func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			starts = append(starts, b.clock.Now())
			panic("always")
		}
	})
	for b.settle(); b.clock.Next(); b.settle() {
	}
	want := []time.Duration{0, 100, 300, 700, 1500, 3100}
	if len(starts) != len(want) {
		t.Fatalf("started at %v", starts)
	}
	for i := range want {
		if starts[i] != want[i]*time.Millisecond {
			t.Errorf("start %d at %v, want %v ms", i, starts[i], want[i])
		}
	}
	if len(b.failed) != 1 || !errors.Is(b.failed[0], host.ErrFailed) {
		t.Errorf("told of %v", b.failed)
	}
	select {
	case <-top.Stopped():
	default:
		t.Error("the actor that was given up has not stopped")
	}
	if got := b.logs.FilterMessage("actor panicked"); got.Len() != 6 || !strings.Contains(got.All()[0].ContextMap()["stack"].(string), "host_test.go") {
		t.Errorf("%d panics logged, or without their stack", got.Len())
	}
}

func TestSupervisorForgetsFailuresAfterTheWindow(t *testing.T) {
	b := newBench(1)
	starts := 0
	top := b.spawn(t, "fails", func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case *actor.Started:
			starts++
		case string:
			panic("as told")
		}
	})
	for range 3 * host.RestartsMax {
		b.send(top, "panic")
		b.clock.After(host.RestartWindow/(host.RestartsMax-1), func() {})
		for b.settle(); b.clock.Next(); b.settle() {
		}
	}
	if starts != 1+3*host.RestartsMax || len(b.failed) != 0 {
		t.Errorf("started %d times, gave up %v", starts, b.failed)
	}
}

func TestSupervisorRestartsOneChildAlone(t *testing.T) {
	b := newBench(1)
	starts := map[string]int{}
	child := func(name string) *actor.Props {
		return b.Props(func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch ctx.Message().(type) {
				case *actor.Started:
					starts[name]++
				case string:
					panic("as told")
				}
			})
		})
	}
	b.spawn(t, "parent", func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			starts["parent"]++
			ctx.Send(ctx.Spawn(child("bad")), "panic")
			ctx.Spawn(child("good"))
		}
	})
	for b.settle(); b.clock.Next(); b.settle() {
	}
	if starts["parent"] != 1 || starts["good"] != 1 || starts["bad"] != 2 {
		t.Errorf("started %v", starts)
	}
}

// protoactor alone would make a second actor here: a restart that was decided
// earlier arrives behind a stop.
func TestStopIsFinalAlsoForAnActorThatWaitsForItsRestart(t *testing.T) {
	for seed := range uint64(20) {
		b := newBench(seed)
		events := []string{}
		top := b.spawn(t, "fails", func(ctx actor.Context) {
			switch ctx.Message().(type) {
			case *actor.Started:
				events = append(events, "started")
			case *actor.Stopped:
				events = append(events, "stopped")
			case string:
				panic("as told")
			}
		})
		b.settle()
		b.send(top, "panic")
		b.settle()
		b.System().Root.Stop(top.PID) // in the mailbox, not yet taken
		b.clock.Next()                // the restart comes behind it
		b.settle()
		if got := strings.Join(events, " "); got != "started stopped" {
			t.Fatalf("seed %d: %s", seed, got)
		}
	}
}

func TestStrictSpawnRefusesForeignProps(t *testing.T) {
	b := newBench(1)
	foreign := actor.PropsFromFunc(func(actor.Context) { t.Error("a foreign actor runs") })
	var fromActor error
	b.spawn(t, "parent", func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			_, fromActor = ctx.SpawnNamed(foreign, "child")
			if _, err := ctx.SpawnNamed(b.Props(func() actor.Actor { return actor.ReceiveFunc(func(actor.Context) {}) }), "own"); err != nil {
				t.Errorf("the factory's own props: %v", err)
			}
		}
	})
	b.settle()
	if !errors.Is(fromActor, host.ErrForeignProps) {
		t.Errorf("an actor's spawn: %v", fromActor)
	}
	if _, err := b.System().Root.SpawnNamed(foreign, "top"); !errors.Is(err, host.ErrForeignProps) {
		t.Errorf("the root's spawn: %v", err)
	}
}

func TestLogHoldsNoMessage(t *testing.T) {
	type order struct{ Secret string }
	b := newBench(1)
	top := b.spawn(t, "gone", func(ctx actor.Context) {
		if m, ok := ctx.Message().(*order); ok {
			panic(m)
		}
	})
	b.send(top, &order{Secret: "hunter2"})
	for b.settle(); b.clock.Next(); b.settle() {
	}
	b.System().Root.Stop(top.PID)
	b.settle()
	for range 30 {
		b.send(top, &order{Secret: "hunter2"})
	}
	letters := 0
	for _, entry := range b.logs.All() {
		line, err := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "m"}).EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line.String(), "hunter2") {
			t.Errorf("logged: %s", line)
		}
		if entry.Message == "dead letter" {
			letters++
		}
	}
	if letters == 0 || letters > 10 {
		t.Errorf("%d dead letters logged", letters)
	}
}

func TestHostOnGoroutines(t *testing.T) {
	h := host.New(host.Options{Clock: timeClock{start: time.Now()}})
	var mu sync.Mutex
	stopped := []string{}
	note := func(name string) actor.Producer {
		return func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch ctx.Message().(type) {
				case *actor.Stopped:
					mu.Lock()
					defer mu.Unlock()
					stopped = append(stopped, name)
				case string:
					panic("as told")
				}
			})
		}
	}
	for _, name := range []string{"first", "second"} {
		if _, err := h.Spawn(name, note(name)); err != nil {
			t.Fatal(err)
		}
	}
	failing, err := h.Spawn("failing", note("failing"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Spawn("first", note("first")); err == nil {
		t.Error("a name was given twice")
	}
	h.System().Root.Send(failing.PID, "panic")

	gone := make(chan error, 1)
	reply := h.Expect(func(_ any, err error) { gone <- err })
	h.System().Root.RequestWithCustomSender(h.System().NewLocalPID("nobody"), "hello", reply.PID())
	if err := <-gone; records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("asked nobody: %v", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 2 {
		if err := h.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(stopped, " "); got != "failing second first" {
		t.Errorf("stopped in the order %q", got)
	}
	if _, err := h.Spawn("late", note("late")); !errors.Is(err, host.ErrClosed) {
		t.Errorf("spawned after the close: %v", err)
	}
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	h := host.New(host.Options{Clock: timeClock{start: time.Now()}})
	entered, leave := make(chan struct{}), make(chan struct{})
	top, err := h.Spawn("stuck", func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(*actor.Started); ok {
				close(entered)
				<-leave
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); records.ClassOf(err) != records.ClassDeadline || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(leave)
	<-top.Stopped()
}

// timeClock is the time of day as host.Clock.
type timeClock struct{ start time.Time }

func (c timeClock) Now() time.Duration { return time.Since(c.start) }

func (c timeClock) After(d time.Duration, deliver func()) func() {
	timer := time.AfterFunc(d, deliver)
	return func() { timer.Stop() }
}
