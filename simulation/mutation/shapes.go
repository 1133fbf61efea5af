package mutation

import (
	"time"

	"github.com/errand-run/errand/simulation/plan"
)

func seconds(n int) plan.Duration { return plan.Duration(n) * plan.Duration(time.Second) }

// echoes bring messages twice, the second time late, to nodes whose watches are late
// too, while short commands come and go.
func echoes(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		addFault(p, seconds(2), p.Options.Length, plan.WatchLag{Node: node, By: seconds(10)})
		for k := range 20 {
			submit(p, seconds(5+9*k+i), node, plan.Command{Takes: seconds(6)})
		}
	}
	addFault(p, seconds(3), p.Options.Length, plan.DoubledTell{Delay: seconds(25)})
	p.Options.SandboxesMax = 32
}

// gaps let the watches of each node miss something again and again: the store has
// forgotten it when the node comes back.
func gaps(p *plan.Plan) {
	for i, node := range p.Options.NodeNames() {
		for k := range 8 {
			begin := seconds(20 + 26*k + 7*i)
			addFault(p, begin, seconds(10), plan.StoreAway{Node: node})
			addFault(p, begin+seconds(8), 0, plan.Compaction{})
			submit(p, begin-seconds(6), node, plan.Command{Takes: seconds(14)})
		}
	}
	p.Options.SandboxesMax = 32
}

// stoppedUnheard stops each daemon while it does not reach the store, and ends its
// session then.
func stoppedUnheard(p *plan.Plan) {
	longRuns(p)
	for i, node := range p.Options.NodeNames() {
		begin := later(p, i, p.Options.Nodes)
		addFault(p, begin-seconds(1), seconds(170), plan.StoreAway{Node: node})
		addFault(p, begin, seconds(160), plan.Restart{Node: node})
		addFault(p, begin+seconds(8), 0, plan.KeyRemoved{Node: node})
	}
}

// restartedAndLost restarts each daemon and loses it, and its session, soon after.
func restartedAndLost(p *plan.Plan) {
	longRuns(p)
	for i, node := range p.Options.NodeNames() {
		begin := later(p, i, p.Options.Nodes)
		addFault(p, begin, seconds(4), plan.Restart{Node: node})
		addFault(p, begin+seconds(15), seconds(160), plan.Crash{Node: node})
		addFault(p, begin+seconds(16), 0, plan.KeyRemoved{Node: node})
	}
}

// slowStarts let every start take long.
func slowStarts(p *plan.Plan) {
	p.Options.Latency.Create, p.Options.Latency.Start = seconds(6), seconds(10)
	p.Options.SandboxesMax = 64
	for i, node := range p.Options.NodeNames() {
		for k := range 4 {
			submit(p, seconds(10+15*k+i), node, plan.Command{Takes: seconds(60)})
		}
	}
}

// startsAtTheEnd let starts be under way when the deadline of their session comes;
// nobody but the daemon sees to it.
func startsAtTheEnd(p *plan.Plan) {
	p.Options.Latency.Create, p.Options.Latency.Start = seconds(12), seconds(14)
	p.Options.SandboxesMax = 64
	for i, node := range p.Options.NodeNames() {
		begin := later(p, i, p.Options.Nodes)
		addFault(p, begin, seconds(170), plan.StoreAway{Node: node})
		unguard(p, node, begin-seconds(20), seconds(200))
		for k := range 24 {
			submit(p, begin-seconds(8)+seconds(k)/4, node, plan.Command{Takes: seconds(600)})
		}
	}
	p.Options.Converge += plan.Duration(30 * time.Minute)
}

// unguard kills all on a node that would kill in the daemon's stead.
func unguard(p *plan.Plan, node string, begin, lasts plan.Duration) {
	addFault(p, begin, lasts, plan.GuardDeath{Node: node})
	addFault(p, begin, lasts, plan.LogDeath{Node: node})
}

// unguarded lets nodes be lost whose guard is dead.
func unguarded(p *plan.Plan) {
	lost(p)
	for _, node := range p.Options.NodeNames() {
		unguard(p, node, seconds(3), p.Options.Length)
	}
}

// stepsForward let wall clocks jump ahead for some seconds while runs wait.
func stepsForward(p *plan.Plan) {
	p.Options.SandboxesMax = 1
	for i, node := range p.Options.NodeNames() {
		for k := range 4 {
			submit(p, seconds(4+2*i+k), node, plan.Command{Takes: seconds(40)})
			addFault(p, seconds(30+45*k+4*i), seconds(10), plan.WallStep{Node: node, By: plan.Duration(time.Hour)})
		}
	}
}

// astray lets one wall clock be ahead for long while runs wait that were queued before.
func astray(p *plan.Plan) {
	p.Options.SandboxesMax = 1
	for k := range 5 * p.Options.Nodes {
		submit(p, seconds(4)+seconds(k)/4, plan.NodeName(k%p.Options.Nodes), plan.Command{Takes: seconds(40)})
	}
	addFault(p, seconds(20), p.Options.Length, plan.WallStep{Node: p.Options.NodeNames()[0], By: plan.Duration(time.Hour)})
}

// stepsBack let wall clocks jump back for some seconds while runs end.
func stepsBack(p *plan.Plan) {
	p.Options.SandboxesMax = 32
	for i, node := range p.Options.NodeNames() {
		addFault(p, seconds(30), seconds(60), plan.WallStep{Node: node, By: -plan.Duration(24 * time.Hour)})
		submit(p, seconds(15+i), node, plan.Command{Takes: seconds(40)})
	}
}

// cancelsTooLate cancel commands that have ended of which nobody has heard yet.
func cancelsTooLate(p *plan.Plan) {
	p.Options.SandboxesMax = 32
	for i, node := range p.Options.NodeNames() {
		addFault(p, seconds(3), p.Options.Length, plan.LateExit{Node: node, By: seconds(8)})
		for k := range 8 {
			at := seconds(10 + 12*k + i)
			submit(p, at, node, plan.Command{Takes: seconds(4)})
			label := p.Workload[len(p.Workload)-1].Label
			p.Workload = append(p.Workload, plan.Call{At: at + seconds(6), Verb: plan.VerbCancel, Node: node, Label: label})
		}
	}
}

// restored puts the store back to what it was when runs waited and ran that have ended
// since.
func restored(p *plan.Plan) {
	p.Options.SandboxesMax = 2
	for k := range 6 * p.Options.Nodes {
		submit(p, seconds(20)+seconds(k)/4, plan.NodeName(k%p.Options.Nodes), plan.Command{Takes: seconds(10)})
	}
	addFault(p, seconds(100), seconds(20), plan.StoreRestored{Age: seconds(70)})
}

// deleteRun adds the deletion of the run that was submitted last.
func deleteRun(p *plan.Plan, at plan.Duration, node string) {
	label := p.Workload[len(p.Workload)-1].Label
	p.Workload = append(p.Workload, plan.Call{At: at, Verb: plan.VerbDelete, Node: node, Label: label})
}

// reused delete runs soon after their end, and submit them again by the same key.
func reused(p *plan.Plan) {
	p.Options.SandboxesMax = 32
	for i, node := range p.Options.NodeNames() {
		for k := range 5 {
			at := seconds(10 + 20*k + i)
			submit(p, at, node, plan.Command{Takes: seconds(2)})
			again := p.Workload[len(p.Workload)-1]
			again.Key, again.At = again.Label, at+seconds(15)
			p.Workload[len(p.Workload)-1].Key = again.Label
			deleteRun(p, at+seconds(10), node)
			p.Workload = append(p.Workload, again)
		}
	}
}

// retired delete the runs of a node that is lost before it comes back and tells how
// they ended.
func retired(p *plan.Plan) {
	p.Options.SandboxesMax = 32
	names, away := p.Options.NodeNames(), p.Options.NodeNames()[0]
	addFault(p, seconds(30), seconds(180), plan.StoreAway{Node: away})
	addFault(p, seconds(30), seconds(180), plan.Cut{From: []string{away}, To: names[1:], Both: true})
	for k := range 8 {
		submit(p, seconds(10+k), away, plan.Command{Takes: seconds(600)})
		deleteRun(p, seconds(190), names[1])
	}
	p.Options.Converge += plan.Duration(30 * time.Minute)
}

// reusedUnsurely is reused while nobody hears of many writes.
func reusedUnsurely(p *plan.Plan) {
	reused(p)
	unknowns(p)
}

// failingDisks let the slow disk of each node fail, three times, while many commands come
// at once, its daemon die before that is over, and its power go soon after the next one
// has come up.
func failingDisks(p *plan.Plan) {
	const times = 3
	p.Options.SandboxesMax = 64
	p.Options.Latency.Disk = plan.Duration(20 * time.Millisecond)
	for i, node := range p.Options.NodeNames() {
		for k := range times {
			begin := seconds(20 + 65*k + 18*i)
			for burst := range 3 {
				for range 8 {
					submit(p, begin+seconds(2*burst), node, plan.Command{Takes: seconds(3 + burst)})
				}
			}
			addFault(p, begin, seconds(6), plan.DiskErrors{Node: node, Chance: 0.7})
			addFault(p, begin+seconds(5), seconds(3), plan.Crash{Node: node})
			addFault(p, begin+seconds(20), seconds(10), plan.Reboot{Node: node})
		}
	}
}

// busyRegistries let the registry refuse the nodes for a while, with a wish to be left
// alone, while runs of its images are submitted.
func busyRegistries(p *plan.Plan) {
	p.Options.SandboxesMax = 32
	for i, node := range p.Options.NodeNames() {
		addFault(p, seconds(20), seconds(60), plan.RegistryBusy{Node: node, Chance: 1, RetryAfter: seconds(25)})
		for k := range 6 {
			submit(p, seconds(22+3*k+i), node, plan.Command{Takes: seconds(2), Image: "base:1"})
		}
	}
}
