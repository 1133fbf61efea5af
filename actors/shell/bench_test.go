package shell_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/shell"
	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
)

// counter is a machine that only counts, and passivates when it is told.
type counter struct{ total *atomic.Int64 }

func (c *counter) Step(_ actors.Instant, in actors.Input) []actors.Effect {
	received, ok := in.(actors.Received)
	if !ok {
		return nil
	}
	c.total.Add(1)
	if received.Message == idle {
		return []actors.Effect{actors.Passivate{}}
	}
	return nil
}

var hello, idle = word("hello"), word("idle")

// newCounters makes a directory of counters on goroutines.
func newCounters(b *testing.B) (*activation.Directory, *atomic.Int64) {
	b.Helper()
	clock := &realClock{start: time.Now(), timers: map[*time.Timer]bool{}}
	h := host.New(host.Options{Clock: shell.HostClock(clock)})
	d := activation.New(h, "n1")
	total := new(atomic.Int64)
	machines := func(string) actors.Machine { return &counter{total: total} }
	if err := d.Register("counter", shell.Producer(machines, shell.Ports{Clock: clock, Router: d})); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	return d, total
}

func waitFor(total *atomic.Int64, n int64) {
	for total.Load() < n {
		runtime.Gosched()
	}
}

func BenchmarkTell(b *testing.B) {
	d, total := newCounters(b)
	names := make([]string, 64)
	for i := range names {
		names[i] = "identity-" + strconv.Itoa(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d.Tell("counter", names[i%len(names)], hello)
		if i%4096 == 0 { // as much as a mailbox would hold at most
			waitFor(total, int64(i-4096))
		}
	}
	waitFor(total, int64(b.N))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkMemory measures what an activation holds, and what is left of it when
// it has passivated.
func BenchmarkMemory(b *testing.B) {
	const actorsCount, burst = 20_000, 500
	for b.Loop() {
		before := heap()
		d, total := newCounters(b)
		empty := heap()
		for i := range actorsCount {
			d.Tell("counter", "r.default."+strconv.Itoa(1_000_000_000_000+i), hello)
			waitFor(total, int64(i-burst)) // a goroutine that ran once leaves its record for ever
		}
		waitFor(total, actorsCount)
		active := heap()
		for i := range actorsCount {
			d.Tell("counter", "r.default."+strconv.Itoa(1_000_000_000_000+i), idle)
			waitFor(total, int64(actorsCount+i-burst))
		}
		for d.Activations()["counter"] > 0 {
			runtime.Gosched()
		}
		passive := heap()
		b.ReportMetric(float64(empty-before), "B/host")
		b.ReportMetric(float64(active-empty)/actorsCount, "B/active")
		b.ReportMetric(float64(passive-empty)/actorsCount, "B/passivated")
		runtime.KeepAlive(d)
	}
}

// heap is what is held after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) + int64(stats.StackInuse)
}
