package world

import (
	"fmt"
	"testing"

	"github.com/errand-run/errand/simulation/plan"
)

// BenchmarkWorld measures how much faster than real time worlds go, faults on.
func BenchmarkWorld(b *testing.B) {
	for _, nodes := range []int{1, 5, 15} {
		b.Run(fmt.Sprintf("%d-nodes", nodes), func(b *testing.B) {
			virtual, seed := 0.0, uint64(0)
			for b.Loop() {
				virtual += New(plan.Draw(seed, plan.Wanted{Nodes: nodes}), Setup{}).Run().At.Seconds()
				seed++
			}
			b.ReportMetric(virtual/b.Elapsed().Seconds(), "x-real-time")
		})
	}
}
