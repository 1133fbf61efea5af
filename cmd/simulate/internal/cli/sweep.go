package cli

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// tally is what a sweep has found.
type tally struct {
	mu       sync.Mutex
	failures int
	worst    int
	// executed counts seeds, virtual adds up their time in nanoseconds.
	executed atomic.Uint64
	virtual  atomic.Int64
	steps    atomic.Uint64
}

// sweep executes many seeds, each world on a goroutine of its own, and waits for
// all.
func (a *app) sweep(ctx context.Context, from, to uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	var found tally
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range a.parallel {
		workers.Go(func() {
			for seed := range seeds {
				if a.execute(plan.Draw(seed, a.wanted), &found) >= a.stop {
					cancel()
				}
			}
		})
	}
	progress := startProgress(a.stderr, to-from+1, &found)
	for seed := from; ; seed++ {
		select {
		case seeds <- seed:
		case <-ctx.Done():
		}
		if seed == to || ctx.Err() != nil {
			break
		}
	}
	close(seeds)
	workers.Wait()
	progress.stop()
	took := time.Since(began)
	executed, virtual := found.executed.Load(), time.Duration(found.virtual.Load())
	fmt.Fprintf(a.stdout, "%d seeds in %s (%.1f seeds/s), %s of virtual time (%.0fx), %d steps, %d failures, version %s\n",
		executed, took.Round(time.Millisecond), float64(executed)/took.Seconds(), virtual.Round(time.Second),
		virtual.Seconds()/took.Seconds(), found.steps.Load(), found.failures, version())
	if found.worst != ExitPassed {
		return exitError(found.worst)
	}
	if executed < to-from+1 {
		return ctx.Err()
	}
	return nil
}

// execute carries out one plan of a sweep and returns how many have failed so far.
func (a *app) execute(p plan.Plan, found *tally) int {
	result := world.Execute(p, world.Setup{Canary: a.canary})
	code := codeOf(result)
	var second *world.Result
	if a.twice {
		again := world.Execute(p, world.Setup{Canary: a.canary})
		if again.Hash != result.Hash {
			second, code = &again, ExitNondeterministic
		}
	}
	found.executed.Add(1)
	found.virtual.Add(int64(result.At))
	found.steps.Add(result.Steps)
	found.mu.Lock()
	defer found.mu.Unlock()
	if code == ExitPassed {
		return found.failures
	}
	found.failures++
	if found.worst == ExitPassed || code == ExitViolated || code == ExitPanicked && found.worst != ExitViolated {
		found.worst = code
	}
	a.explain(result, second)
	return found.failures
}

// codeOf is the exit code for a result.
func codeOf(r world.Result) int {
	switch r.Verdict() {
	case world.Panicked:
		return ExitPanicked
	case world.Violated:
		return ExitViolated
	case world.NotLive:
		return ExitNotLive
	default:
		return ExitPassed
	}
}
