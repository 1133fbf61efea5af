package simulation_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// unreadable is a store that answers for everything but the records of runs. Its node
// keeps its session, so it knows of nothing that is wrong with it.
type unreadable struct {
	actors.Store
	keys records.Keys
	// refused counts what was asked about runs.
	refused *int
}

func (s unreadable) Txn(txn records.Txn, deliver func(records.Result)) {
	for _, op := range slices.Concat(txn.Then, txn.Else) {
		if strings.HasPrefix(op.Key, s.keys.Runs()) {
			*s.refused++
			s.Store.Txn(records.Read(records.Get(s.keys.NodeInfo("none"))), func(records.Result) {
				deliver(records.Result{Err: records.Errorf(records.ClassUnavailable, "runs can not be read here")})
			})
			return
		}
	}
	s.Store.Txn(txn, deliver)
}

// ownedCalls submits runs, half of which are canceled while they run, and asks for all
// of them in the end. A node of three owns a third of them.
func ownedCalls() (calls []plan.Call) {
	const runs = 30
	for i := range runs {
		label, node := "w"+strconv.Itoa(i), []string{"n2", "n3"}[i%2]
		at := func(d time.Duration) plan.Duration {
			return plan.Duration(5*time.Second + time.Duration(i)*100*time.Millisecond + d)
		}
		takes := 5 * time.Second
		if i%4 < 2 {
			takes = time.Hour
			calls = append(calls, plan.Call{At: at(40 * time.Second), Verb: plan.VerbCancel, Node: node, Label: label})
		}
		calls = append(calls,
			plan.Call{
				At: at(0), Verb: plan.VerbSubmit, Node: node, Label: label, App: "a", Key: label,
				Command: &plan.Command{Takes: plan.Duration(takes), StopGrace: plan.Duration(time.Second)},
			},
			plan.Call{At: at(2 * time.Minute), Verb: plan.VerbGet, Node: node, Label: label},
		)
	}
	slices.SortStableFunc(calls, func(a, b plan.Call) int { return cmp.Compare(a.At, b.At) })
	return calls
}

// A node that takes every message for its run actors and gets nowhere with any keeps
// no run from starting and ending, no client from canceling, and none of its own
// reports from being heard.
func TestOwnerThatGetsNowhereBlocksNothing(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		p := plan.Draw(seed, plan.Wanted{Nodes: 3, Length: 3 * time.Minute, Classes: []plan.Class{}, Workload: ownedCalls()})
		p.Options.SandboxesMax, p.Options.Probes = 32, 0
		refused, ended := 0, 0
		execute(t, p, world.Setup{
			Ports: func(node string, ports *nodes.Ports, _ func(string, *actorv1.Packet)) {
				if node == "n1" {
					ports.Store = unreadable{ports.Store, records.Keys{Root: records.RootDefault, Shards: p.Options.Shards}, &refused}
				}
			},
			Observe: func(e history.Event) {
				call, ok := e.Detail.(history.Call)
				if !ok || e.Kind != history.KindAnswer {
					return
				}
				if call.Outcome != "ok" {
					t.Errorf("seed %d at %s: %s", seed, e.At, e.Text)
				}
				if run, ok := call.Detail.(*recordv1.Run); ok && call.Verb == plan.VerbGet {
					if ended++; run.GetEndedAt() == 0 {
						t.Errorf("seed %d: %s is %s", seed, run.GetId(), records.Word(run.GetStatus()))
					}
				}
			},
		}, fmt.Sprintf("--seed %d --nodes 3 --hours 0.05 --faults none", seed))
		if refused == 0 || ended == 0 {
			t.Errorf("seed %d: %d were refused, %d have ended", seed, refused, ended)
		}
	}
}
