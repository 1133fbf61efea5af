package cli

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// benchTime is how much of a core's time each size is measured at least.
const benchTime = 10 * time.Second

// measure says how much faster than real time worlds go on one core, faults on. It
// counts the time that the process has had of all cores, so that a machine that is
// busy otherwise gives the same answer, and what collects garbage beside counts too.
func (a *app) measure(ctx context.Context) error {
	for _, nodes := range []int{1, 5, 15} {
		if a.nodes != 0 && nodes != a.nodes {
			continue
		}
		wanted := a.wanted
		wanted.Nodes = nodes
		var virtual time.Duration
		var steps, seeds uint64
		began := coreTime()
		for ; coreTime()-began < benchTime && ctx.Err() == nil; seeds++ {
			r := world.Execute(plan.Draw(seeds, wanted), a.setup(ctx))
			virtual += r.At
			steps += r.Steps
		}
		took := coreTime() - began
		fmt.Fprintf(a.stdout, "%2d nodes: %8.0fx real time, %8.0f turns/s, %6.1f seeds/s of one core (%d seeds in %s, %s of virtual time)\n", nodes,
			virtual.Seconds()/took.Seconds(), float64(steps)/took.Seconds(), float64(seeds)/took.Seconds(), seeds, took.Round(time.Millisecond), virtual.Round(time.Second))
	}
	return ctx.Err()
}

// coreTime is how much of the cores' time the process has had.
func coreTime() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(fmt.Sprintf("simulate: read the time used: %v", err))
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
