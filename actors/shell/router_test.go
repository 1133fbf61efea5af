package shell_test

import (
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/shell"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
)

// routes notes where messages are told.
type routes struct{ told []string }

func (r *routes) Tell(kind, identity string, _ proto.Message) {
	r.told = append(r.told, kind+" "+identity)
}

func (r *routes) TellPast(past int, kind, identity string, _ proto.Message) {
	told := kind + " " + identity
	if past > 0 {
		told += " past " + strconv.Itoa(past)
	}
	r.told = append(r.told, told)
}

func (r *routes) TellAt(node, kind, identity string, _ proto.Message) {
	r.told = append(r.told, kind+" "+identity+" at "+node)
}

// teller tells once where an actor belongs, once past the first there and once at a
// node.
type teller struct{}

func (teller) Step(actors.Instant, actors.Input) []actors.Effect {
	return []actors.Effect{
		actors.Tell{Kind: "run", Identity: "a", Message: word("hello")},
		actors.Tell{Kind: "run", Identity: "a", Past: 1, Message: word("hello")},
		actors.Tell{Kind: "run", Identity: "a", Node: "n2", Message: word("hello")},
	}
}

func TestShellTellsWhereATellSays(t *testing.T) {
	r, scheduler, clock := &routes{}, stepping.NewScheduler(1), steppedClock{&stepping.Clock{}}
	h := host.New(host.Options{Clock: shell.HostClock(clock), Dispatcher: scheduler, Mailbox: stepping.Mailbox})
	producer := shell.Producer(func(string) actors.Machine { return teller{} }, shell.Ports{Clock: clock, Router: r})
	if _, err := h.Spawn("teller", producer("teller")); err != nil {
		t.Fatal(err)
	}
	scheduler.Settle(100)
	if want := []string{"run a", "run a past 1", "run a at n2"}; !slices.Equal(r.told, want) {
		t.Errorf("told %q, want %q", r.told, want)
	}
}
