package mutation

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/plan"
)

// flawed lets the store's client handle flights wrongly.
func flawed(flaw etcd.Flaw) func(Seat) {
	return func(seat Seat) {
		client, ok := seat.Ports.Store.(*etcd.Client)
		if !ok {
			panic("mutation: the store sends no flights")
		}
		client.Flaw = flaw
	}
}

// crowded lets many runs be submitted and canceled at once through each node, on a slow
// store, so that what the nodes ask of it leaves together.
func crowded(p *plan.Plan) {
	p.Options.Flights, p.Options.OpsMax = 1, 0
	p.Options.SandboxesMax = 64
	p.Options.Latency.Store = plan.Duration(20 * time.Millisecond)
	for i, node := range p.Options.NodeNames() {
		for k := range 8 {
			at := seconds(5+24*k) + plan.Duration(i)*plan.Duration(700*time.Millisecond)
			for range 8 {
				submit(p, at, node, plan.Command{Takes: plan.Duration(300 * time.Millisecond)})
			}
			label := fmt.Sprintf("m%d-%d", i, k)
			p.Workload = append(p.Workload, plan.Call{At: at, Verb: plan.VerbContend, Node: node, Label: label})
		}
	}
}

// crowdedUnsurely does so while writes time out.
func crowdedUnsurely(p *plan.Plan) {
	crowded(p)
	unknowns(p)
}

// narrow lets the store take few operations in a transaction.
func narrow(p *plan.Plan) {
	crowded(p)
	p.Options.OpsMax = plan.OpsLeast
}
