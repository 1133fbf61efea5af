package world

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
)

type event = history.Event

// lengthShort is how long the faults of a short plan go on.
const lengthShort = 45 * time.Second

var (
	debugSeed  = flag.Int64("debug-seed", -1, "print the trace of a seed")
	debugNodes = flag.Int("debug-nodes", 0, "nodes of that seed")
)

func TestDebug(t *testing.T) {
	if *debugSeed < 0 {
		return
	}
	p := plan.Draw(uint64(*debugSeed), plan.Wanted{Nodes: *debugNodes, Classes: []plan.Class{}})
	r := New(p, Setup{Turns: true, Logs: true, Observe: func(e history.Event) {
		fmt.Printf("%6d %12v %-8s %-4s %s %s\n", e.Step, e.At, e.Kind, e.Node, e.Run, e.Text)
	}}).Run()
	fmt.Println(r, r.Panic)
	for _, v := range r.Violations {
		fmt.Println(v)
	}
	for _, p := range r.Pending {
		fmt.Println(p)
	}
}
