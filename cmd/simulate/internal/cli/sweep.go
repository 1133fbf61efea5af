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
	mu    sync.Mutex
	worst int
	// executed counts seeds, virtual adds up their time in nanoseconds.
	executed, failures atomic.Uint64
	virtual            atomic.Int64
	steps              atomic.Uint64
}

// state is how far the sweep has come.
func (t *tally) state(total uint64, took time.Duration) state {
	return state{executed: t.executed.Load(), failures: t.failures.Load(), total: total, took: took, virtual: time.Duration(t.virtual.Load())}
}

// sweep executes many seeds, each world on a goroutine of its own, and waits for
// all.
func (a *app) sweep(ctx context.Context, from, to uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	var found tally
	total := max(to-from+1, to-from) // not 0 for all that there are
	progress := startProgress(a.stderr, total, &found)
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range a.parallel {
		workers.Go(func() {
			for seed := range seeds {
				a.judge(ctx, plan.Draw(seed, a.wanted), &found, func(r world.Result, second *world.Result) {
					progress.without(func() { a.explain(r, second) })
					if found.failures.Load() >= uint64(a.stop) { //nolint:gosec // at least 1
						cancel()
					}
				})
			}
		})
	}
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
	of := ""
	if executed < total {
		of = fmt.Sprintf(" of %d", total)
	}
	fmt.Fprintf(a.stdout, "%d%s seeds in %s (%.1f seeds/s), %s of virtual time (%.0fx), %d steps, %d failures, version %s\n",
		executed, of, took.Round(time.Millisecond), float64(executed)/took.Seconds(), virtual.Round(time.Second),
		virtual.Seconds()/took.Seconds(), found.steps.Load(), found.failures.Load(), version())
	if found.worst != ExitPassed {
		return exitError(found.worst)
	}
	return ctx.Err()
}

// judge carries out one plan of a sweep and tells if it failed, one at a time. What
// was cut off by the sweep's end does not count.
func (a *app) judge(ctx context.Context, p plan.Plan, found *tally, failed func(r world.Result, second *world.Result)) {
	result := world.Execute(p, a.setup(ctx))
	code := codeOf(result)
	var second *world.Result
	if a.twice && !result.Cut {
		again := world.Execute(p, a.setup(ctx))
		if !again.Cut && again.Hash != result.Hash {
			second, code = &again, ExitNondeterministic
		}
	}
	found.mu.Lock()
	defer found.mu.Unlock()
	if result.Cut && ctx.Err() != nil {
		return
	}
	found.executed.Add(1)
	found.virtual.Add(int64(result.At))
	found.steps.Add(result.Steps)
	if code == ExitPassed {
		return
	}
	found.failures.Add(1)
	if found.worst == ExitPassed || code == ExitViolated || code == ExitPanicked && found.worst != ExitViolated {
		found.worst = code
	}
	failed(result, second)
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
