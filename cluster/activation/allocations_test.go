//go:build !race

package activation_test

import (
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// The allocations of one message to an actor of this node, from Tell to the end of its
// turn, and of an actor's whole life around one message.
const (
	tellAllocations = 4
	lifeAllocations = 28
)

func TestAllocationsOfATell(t *testing.T) {
	scheduler := stepping.NewScheduler(1)
	h := host.New(host.Options{Clock: &stepping.Clock{}, Dispatcher: scheduler, Mailbox: stepping.Mailbox})
	d := activation.New(h, "n1")
	taken := 0
	if err := d.Register("counter", func(string) actor.Producer {
		return func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch ctx.Message().(type) {
				case *actorv1.Wake:
					taken++
				case *actorv1.Activate:
					ctx.Request(ctx.Parent(), &activation.Passivate{Deliveries: 1})
				}
			})
		}
	}); err != nil {
		t.Fatal(err)
	}
	settle := func() {
		for scheduler.Step() { // until nothing moves
		}
	}
	message := &actorv1.Wake{Run: "r.default.one"}
	tell := func() {
		d.Tell("counter", "r.default.one", message)
		settle()
	}
	tell()
	const messages = 1000
	if got := testing.AllocsPerRun(messages, tell); got != tellAllocations {
		t.Errorf("a tell: %.0f allocations, want %d", got, tellAllocations)
	}
	if taken != messages+2 {
		t.Fatalf("%d messages were taken", taken)
	}
	live := func() {
		d.Tell("counter", "r.default.other", &actorv1.Activate{})
		settle()
	}
	if got := testing.AllocsPerRun(messages, live); got != lifeAllocations {
		t.Errorf("an actor's life: %.0f allocations, want %d", got, lifeAllocations)
	}
	if n := d.Activations()["counter"]; n != 1 {
		t.Fatalf("%d actors are active", n)
	}
}
