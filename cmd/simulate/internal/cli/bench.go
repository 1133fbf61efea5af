package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// benchTime is how long each size is measured at least.
const benchTime = 10 * time.Second

// measure says how much faster than real time worlds go on one core, faults on.
func (a *app) measure(ctx context.Context) error {
	for _, nodes := range []int{1, 5, 15} {
		if a.nodes != 0 && nodes != a.nodes {
			continue
		}
		wanted := a.wanted
		wanted.Nodes = nodes
		var virtual time.Duration
		var steps, seeds uint64
		began := time.Now()
		for ; time.Since(began) < benchTime && ctx.Err() == nil; seeds++ {
			r := world.Execute(plan.Draw(seeds, wanted), world.Setup{})
			virtual += r.At
			steps += r.Steps
		}
		took := time.Since(began)
		fmt.Fprintf(a.stdout, "%2d nodes: %8.0fx real time, %8.0f turns/s, %6.1f seeds/s (%d seeds in %s, %s of virtual time)\n", nodes,
			virtual.Seconds()/took.Seconds(), float64(steps)/took.Seconds(), float64(seeds)/took.Seconds(), seeds, took.Round(time.Millisecond), virtual.Round(time.Second))
	}
	return ctx.Err()
}
