package mutation

import (
	"fmt"
	"slices"
	"time"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/plan"
)

// Mutation is one protection that is taken away.
type Mutation struct {
	Name string
	// How says in words what is done.
	How string
	// Breaks are the guarantees of which one must be found violated.
	Breaks []check.Guarantee
	// Seeds is within how many seeds, from 1 on, that must happen.
	Seeds uint64
	// Wrap changes the ports of a daemon.
	Wrap func(Seat)
	// Wanted is what the plans are drawn with, and Shape adds to each what is about
	// this protection; nil adds nothing.
	Wanted plan.Wanted
	Shape  func(*plan.Plan)
}

// Plan is the plan of a seed for this mutation.
func (m Mutation) Plan(seed uint64) plan.Plan {
	wanted := m.Wanted
	if wanted.Nodes == 0 {
		wanted.Nodes = 3
	}
	if wanted.Length == 0 {
		wanted.Length = 4 * time.Minute
	}
	p := plan.Draw(seed, wanted)
	if m.Shape != nil {
		m.Shape(&p)
	}
	return p
}

// Ports changes the ports of a daemon before it is assembled.
func (m Mutation) Ports(node string, ports *nodes.Ports, receive func(from string, packet *actorv1.Packet)) {
	m.Wrap(Seat{Node: node, Ports: ports, Receive: receive})
}

// Table is every mutation.
func Table() []Mutation {
	safety := []check.Guarantee{check.G1, check.G2, check.G3, check.G4, check.G7, check.G8}
	pending := []check.Guarantee{check.Liveness, check.G9}
	together := []check.Guarantee{check.G2, check.G3, check.G4}
	quiet := plan.Wanted{Classes: []plan.Class{}}
	return []Mutation{
		{Name: "compare ignored", Seeds: 10, How: "the store does not compare the revision of a run's record", Breaks: safety, Wrap: comparesIgnored},
		{Name: "create overwrites", Seeds: 10, How: "a run is created whether or not it exists", Breaks: safety, Wrap: createOverwrites, Wanted: quiet},
		{Name: "session not compared", Seeds: 20, How: "a node's existence is compared instead of its session: it takes what was placed in an earlier one", Breaks: together, Wrap: sessionNeverCompared, Wanted: quiet, Shape: registeredAnew},
		{Name: "unknown is refused", Seeds: 20, How: "a write of unknown outcome is taken for not done", Breaks: []check.Guarantee{check.Linearizable}, Wrap: unknownTakenForRefused, Shape: unknowns},
		{Name: "unknown is done", Seeds: 20, How: "a write of unknown outcome is taken for done", Breaks: safety, Wrap: unknownTakenForDone, Shape: unknowns},
		{Name: "assignment kept", Seeds: 10, How: "the transaction that ends a run leaves its assignment", Breaks: []check.Guarantee{check.G4}, Wrap: endKeepsAssignment, Wanted: quiet},
		{Name: "gaps hidden", Seeds: 10, How: "a follower is not told of a gap in its watch", Breaks: pending, Wrap: gapsHidden, Wanted: quiet, Shape: outages},
		{Name: "window too short", Seeds: 10, How: "who waits for a lost node's end believes that it kills at once", Breaks: together, Wrap: windowOfOthersShort, Wanted: quiet, Shape: removed},
		{Name: "void not synced", Seeds: 60, How: "the journal acknowledges changes 5 s before they are durable", Breaks: append(safety, check.G10), Wrap: journalAcknowledgedEarly, Wanted: quiet, Shape: reboots},
		{Name: "rank 1 only", Seeds: 10, How: "nobody but the first in rank reads or writes the record of a run", Breaks: append(pending, check.G8), Wrap: firstRankOnly, Wanted: quiet, Shape: deaf},
		{Name: "no leader required", Seeds: 10, How: "watches do not require a leader and nobody asks whether they still hear", Breaks: pending, Wrap: watchesSilent, Wanted: quiet, Shape: isolations},
		{Name: "guard in solo", Seeds: 10, How: "the fence of a node that is alone is armed", Breaks: []check.Guarantee{check.G7}, Wrap: fenceInSolo, Wanted: plan.Wanted{Nodes: 1, Classes: []plan.Class{}}, Shape: solo},
		{Name: "codes made up", Seeds: 10, How: "a command that the runtime has lost is given the code 137", Breaks: []check.Guarantee{check.G7}, Wrap: codesMadeUp, Shape: losses},
		{Name: "loss unnoticed", Seeds: 20, How: "a wait for a sandbox that has vanished is never answered", Breaks: append(pending, check.G8), Wrap: lossUnnoticed, Shape: losses},
		{Name: "unavailable is lost", Seeds: 10, How: "a sandbox whose runtime does not answer is taken for gone", Breaks: []check.Guarantee{check.G8}, Wrap: unavailableTakenForLost, Wanted: quiet, Shape: runtimesAway},
		{Name: "wait given up", Seeds: 10, How: "an exit is not asked for again when the runtime has not answered", Breaks: pending, Wrap: waitsGivenUp, Wanted: quiet, Shape: runtimesAway},
		{Name: "leftover spared", Seeds: 20, How: "an end is told at the main process's exit, what that leaves behind lives on", Breaks: []check.Guarantee{check.G4}, Wrap: leftoverSpared, Wanted: quiet, Shape: orphans},
		{Name: "tokens alike", Seeds: 10, How: "every command carries the same fencing token", Breaks: []check.Guarantee{check.G12}, Wrap: tokensAlike, Wanted: quiet},
		{Name: "removal forgotten", Seeds: 10, How: "a sandbox is told to be removed and stays", Breaks: []check.Guarantee{check.G10}, Wrap: removesForgotten, Wanted: quiet},
		{Name: "stops forgotten", Seeds: 10, How: "signals and kills are told to be delivered and are not", Breaks: []check.Guarantee{check.G4, check.G9}, Wrap: stopsForgotten, Wanted: quiet},
		{Name: "no confirming read", Seeds: 10, How: "a renewal counts when it was sent, and the read that confirms it is answered out of memory", Breaks: together, Wrap: renewalsUnconfirmed, Wanted: quiet, Shape: lost},
		{Name: "fence late", Seeds: 10, How: "the fence is armed three minutes later than the renewal allows", Breaks: together, Wrap: fenceLate, Wanted: quiet, Shape: lost},
		{Name: "fence forgets", Seeds: 10, How: "a daemon that is started again does not learn that its session is fenced", Breaks: []check.Guarantee{check.G7}, Wrap: fenceForgets, Wanted: quiet, Shape: lostAndCrashed},
		{Name: "guard spares nothing", Seeds: 10, How: "who kills at the fence kills what waits for its node too", Breaks: []check.Guarantee{check.G7, check.Attempts}, Wrap: guardSparesNothing, Wanted: quiet, Shape: waiting},
		{Name: "lost in spite of wait", Seeds: 10, How: "a run that asked to wait for its node is given up with that", Breaks: []check.Guarantee{check.G4, check.Attempts}, Wrap: waitingLost, Wanted: quiet, Shape: waiting},
		{Name: "word unheard", Seeds: 20, How: "a node that was said to be dead comes back and does not hear of that", Breaks: []check.Guarantee{check.G4}, Wrap: wordUnheard, Wanted: quiet, Shape: waitingForTheDead},
		{Name: "word for anybody", Seeds: 10, How: "the word that a node is dead is taken although the node has a session", Breaks: []check.Guarantee{check.Attempts}, Wrap: wordForAnybody, Wanted: quiet, Shape: waitingForTheDead},
		{Name: "fence before the store", Seeds: 10, How: "the fence is moved for a planned restart before the store has heard of it", Breaks: together, Wrap: fenceBeforeStore, Wanted: quiet, Shape: stoppedUnheard},
		{Name: "fence not shortened", Seeds: 10, How: "who comes back from a planned restart tells the store and leaves the fence where it was", Breaks: together, Wrap: fenceNotShortened, Wanted: quiet, Shape: restartedAndLost},
		{Name: "timers late", Seeds: 10, How: "a timer of 25 s or more fires after forty times that", Breaks: []check.Guarantee{check.G9}, Wrap: timersLate, Wanted: quiet, Shape: overtime},
		{Name: "erased at the ack", Seeds: 10, How: "a node forgets a placement at the acknowledgement, whatever its watch has seen", Breaks: together, Wrap: erasedAtAck, Wanted: quiet, Shape: echoes},
		{Name: "stale resync", Seeds: 10, How: "after a gap a follower is shown what it was shown after the one before", Breaks: together, Wrap: staleResync, Wanted: quiet, Shape: gaps},
		{Name: "placed again unheard", Seeds: 10, How: "a placement of which nothing is heard for 20 s is given up without a word of its node", Breaks: together, Wrap: placedAgain, Wanted: quiet, Shape: slowStarts},
		{Name: "start unchecked", Seeds: 10, How: "the fence is not looked at when a start comes back", Breaks: together, Wrap: startUnchecked, Wanted: quiet, Shape: startsAtTheEnd},
		{Name: "kill believed", Seeds: 10, How: "a fenced node takes its sandboxes for empty and registers anew while they still run", Breaks: together, Wrap: killsBelated, Wanted: quiet, Shape: unguarded},
		{Name: "clock health ignored", Seeds: 10, How: "a wall clock that has just stepped decides what is irreversible", Breaks: []check.Guarantee{check.G9}, Wrap: healthIgnored, Wanted: quiet, Shape: stepsForward},
		{Name: "peers not compared", Seeds: 10, How: "a wall clock that stays wrong is trusted, whatever those of the other nodes say", Breaks: []check.Guarantee{check.G9}, Wrap: peersNotCompared, Wanted: quiet, Shape: astray},
		{Name: "end not clamped", Seeds: 10, How: "a run's end is dated by a wall clock that was set back", Breaks: []check.Guarantee{check.G11}, Wrap: endNotClamped, Wanted: quiet, Shape: stepsBack},
		{Name: "cancel always wins", Seeds: 10, How: "a stop is taken to have reached a command that had ended before", Breaks: []check.Guarantee{check.G7}, Wrap: stopsAlwaysReach, Wanted: quiet, Shape: cancelsTooLate},
		{Name: "no tombstone", Seeds: 10, How: "a run is created although one of that name was deleted", Breaks: []check.Guarantee{check.G1}, Wrap: tombstonesIgnored, Wanted: quiet, Shape: reused},
		{Name: "unknown sent again", Seeds: 20, How: "a write of unknown outcome is sent again, and the second answer taken for that of both", Breaks: []check.Guarantee{check.Linearizable}, Wrap: unknownSentAgain, Wanted: quiet, Shape: reusedUnsurely},
		{Name: "epoch ignored", Seeds: 10, How: "a node takes the epoch of a restored store for that of before", Breaks: together, Wrap: epochIgnored, Wanted: quiet, Shape: restored},
		{Name: "absent written again", Seeds: 10, How: "a run that is not there any more is taken for what it was last, and written", Breaks: []check.Guarantee{check.G1}, Wrap: absentWritten, Wanted: quiet, Shape: retired},
		{Name: "footprints ignored", Seeds: 10, How: "transactions travel together whatever they touch", Breaks: []check.Guarantee{check.Together}, Wrap: flawed(etcd.FlawFootprints), Wanted: quiet, Shape: crowded},
		{Name: "unknown batch resent singly", Seeds: 30, How: "what travelled together without an answer is sent again one by one", Breaks: []check.Guarantee{check.Together}, Wrap: flawed(etcd.FlawUnknownResent), Wanted: quiet, Shape: crowdedUnsurely},
		{Name: "child revision 0 taken", Seeds: 10, How: "what travelled with others has the revision that the store gives inside of a batch", Breaks: []check.Guarantee{check.Together}, Wrap: flawed(etcd.FlawChildRevision), Wanted: quiet, Shape: crowded},
		{Name: "refusal handed to the members", Seeds: 10, How: "why a flight was refused is told to everybody on it", Breaks: []check.Guarantee{check.Together}, Wrap: flawed(etcd.FlawRefusalHanded), Wanted: quiet, Shape: narrow},
		{Name: "registry pressed", Seeds: 10, How: "a node does not tell for how long a registry wants to be left alone", Breaks: []check.Guarantee{check.Attempts}, Wrap: registryPressed, Wanted: quiet, Shape: busyRegistries},
		{Name: "found and not durable", Seeds: 10, How: "a daemon acts by what it finds in its journal, which may be gone after the next loss of power", Breaks: append(pending, safety...), Wrap: mistaken(machine.FlawUnsettled), Wanted: quiet, Shape: failingDisks},
		{Name: "rest of a batch left", Seeds: 40, How: "a batch is written over what another has left that failed", Breaks: append(pending, safety...), Wrap: mistaken(machine.FlawWrittenOver), Wanted: quiet, Shape: failingDisks},
	}
}

// later is the i-th of some moments spread over the time of a plan.
func later(p *plan.Plan, i, of int) plan.Duration {
	return p.Options.Length * plan.Duration(i+1) / plan.Duration(of+1)
}

func addFault(p *plan.Plan, begin, lasts plan.Duration, what plan.What) {
	p.Faults = append(p.Faults, plan.Fault{Begin: begin, End: begin + lasts, What: what})
}

// outages cut each node from the store for longer than its session lives, one after
// the other.
func outages(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		addFault(p, later(p, i, p.Options.Nodes), plan.Duration(150*time.Second), plan.StoreAway{Node: node})
	}
}

// unknowns let writes of all nodes time out now and then.
func unknowns(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		addFault(p, later(p, i, p.Options.Nodes)/2, p.Options.Length/2, plan.Unknown{Node: node, Chance: 0.3, Late: plan.Duration(3 * time.Second)})
	}
}

// reboots take each machine down a few times, while starts are under way of which the
// slow store has not heard.
func reboots(p *plan.Plan) {
	const times = 3
	p.Options.SandboxesMax = 64
	p.Options.Latency.Store = plan.Duration(500 * time.Millisecond)
	for i, node := range p.Options.NodeNames() {
		for k := range times {
			begin := later(p, k, times) + plan.Duration(i)*plan.Duration(6*time.Second)
			for burst := range 10 {
				submit(p, begin-plan.Duration(5-burst/2)*plan.Duration(800*time.Millisecond), node, plan.Command{Takes: plan.Duration(20 * time.Second)})
			}
			addFault(p, begin, plan.Duration(12*time.Second), plan.Reboot{Node: node})
		}
	}
}

// orphans let commands leave children behind.
func orphans(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		submit(p, plan.Duration(5+i)*plan.Duration(time.Second), node, plan.Command{Takes: plan.Duration(time.Second), Orphan: plan.Duration(20 * time.Second)})
	}
	p.Options.SandboxesMax = 32
}

// submit adds a submit to the node's API.
func submit(p *plan.Plan, at plan.Duration, node string, command plan.Command) {
	if command.Timeout == 0 {
		command.Timeout = plan.Duration(8 * time.Hour)
	}
	command.StartDeadline, command.StopGrace = plan.Duration(5*time.Minute), plan.Duration(10*time.Second)
	label := fmt.Sprintf("m%d", len(p.Workload))
	p.Workload = append(p.Workload, plan.Call{At: max(at, 0), Verb: plan.VerbSubmit, Node: node, Label: label, Command: &command})
}

// longRuns let commands run that are still there when a node is declared lost.
func longRuns(p *plan.Plan) {
	for i := range 4 * p.Options.Nodes {
		node := plan.NodeName(i % p.Options.Nodes)
		submit(p, plan.Duration(5+i)*plan.Duration(time.Second), node, plan.Command{Takes: plan.Duration(10 * time.Minute)})
	}
	p.Options.SandboxesMax = 32
	p.Options.Converge += plan.Duration(30 * time.Minute)
}

// overtime lets commands run into their timeout.
func overtime(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		submit(p, plan.Duration(5+i)*plan.Duration(time.Second), node, plan.Command{Takes: plan.Duration(20 * time.Minute), Timeout: plan.Duration(30 * time.Second)})
	}
	p.Options.SandboxesMax = 32
	p.Options.Converge += plan.Duration(30 * time.Minute)
}

// lost lets nodes be declared lost while commands run on them.
func lost(p *plan.Plan) {
	longRuns(p)
	outages(p)
}

// removed lets an administrator delete the key of a node that can not hear of it.
func removed(p *plan.Plan) {
	lost(p)
	for i, node := range p.Options.NodeNames() {
		addFault(p, later(p, i, p.Options.Nodes)+plan.Duration(2*time.Second), 0, plan.KeyRemoved{Node: node})
	}
}

// registeredAnew ends sessions again and again while placements are committed late.
func registeredAnew(p *plan.Plan) {
	for i := range 20 {
		at := plan.Duration(10+5*i) * plan.Duration(time.Second)
		for k, node := range p.Options.NodeNames() {
			addFault(p, at+plan.Duration(k)*plan.Duration(1500*time.Millisecond), 0, plan.KeyRemoved{Node: node})
			submit(p, at-plan.Duration(time.Second), node, plan.Command{Takes: plan.Duration(10 * time.Minute)})
		}
	}
	for _, node := range p.Options.NodeNames() {
		addFault(p, plan.Duration(5*time.Second), plan.Duration(2*time.Minute), plan.Unknown{Node: node, Chance: 0.5, Late: plan.Duration(4 * time.Second)})
	}
	p.Options.SandboxesMax = 64
	p.Options.Converge += plan.Duration(30 * time.Minute)
}

// lostAndCrashed crashes a daemon beside while its node is being lost.
func lostAndCrashed(p *plan.Plan) {
	longRuns(p)
	for i, node := range p.Options.NodeNames() {
		begin := later(p, i, p.Options.Nodes)
		addFault(p, begin, plan.Duration(80*time.Second), plan.StoreAway{Node: node})
		addFault(p, begin+plan.Duration(30*time.Second), plan.Duration(60*time.Second), plan.Crash{Node: node})
	}
}

// deaf cuts nodes off from what the others tell them.
func deaf(p *plan.Plan) {
	for i := range 40 {
		submit(p, plan.Duration(5+5*i)*plan.Duration(time.Second), plan.NodeName(i%p.Options.Nodes), plan.Command{Takes: plan.Duration(40 * time.Second)})
	}
	p.Options.SandboxesMax = 32
	names := p.Options.NodeNames()
	for i, node := range names {
		others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == node })
		addFault(p, later(p, i, len(names)), p.Options.Length, plan.Cut{From: others, To: []string{node}})
	}
}

// isolations cut the store's members off one after the other.
func isolations(p *plan.Plan) {
	p.Options.Members = 3
	for i := range p.Options.Members {
		addFault(p, later(p, i, p.Options.Members), plan.Duration(30*time.Second), plan.MemberCut{Member: i})
	}
}

func solo(p *plan.Plan) { p.Options.Solo, p.Options.Members = true, 1 }

// runtimesAway let the runtime of each node be away for a moment now and then, while
// commands run.
func runtimesAway(p *plan.Plan) {
	const times = 4
	for i, node := range p.Options.NodeNames() {
		for k := range times {
			begin := later(p, k, times) + plan.Duration(i)*plan.Duration(time.Second)
			submit(p, begin-plan.Duration(8*time.Second), node, plan.Command{Takes: plan.Duration(20 * time.Second)})
			addFault(p, begin, plan.Duration(2*time.Second), plan.RuntimeAway{Node: node})
		}
	}
	p.Options.SandboxesMax = 32
}

// losses let the sandboxes of each node vanish now and then.
func losses(p *plan.Plan) {
	const times = 6
	for _, node := range p.Options.NodeNames() {
		for k := range times {
			addFault(p, later(p, k, times), 0, plan.Vanish{Node: node})
			addFault(p, later(p, k, times)+plan.Duration(9*time.Second), 0, plan.ShimDeath{Node: node})
		}
	}
}
