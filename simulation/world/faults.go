package world

import (
	"fmt"
	"slices"

	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// faults let the plan's faults begin and end.
type faults struct {
	world *World
	// active are those under way, in the order in which they began.
	active []*active
	// over is set once the core is healed: nothing begins any more.
	over bool
}

// active is a fault under way.
type active struct {
	plan.Fault
	// end takes it back; nil for one that happens at a moment.
	end  func()
	stop func()
	// older is the copy of the disk that a DiskRevert puts back, nil if there is none.
	older *machine.DiskCopy
	// snapshot is the copy of the store that a StoreRestored puts back, nil if there is
	// none.
	snapshot *etcd.Snapshot
}

func (f *faults) init(w *World) {
	f.world = w
	for _, fault := range w.plan.Faults {
		a := &active{Fault: fault}
		if early, ok := fault.What.(plan.DiskRevert); ok {
			f.copyEarly(a, early)
		}
		if early, ok := fault.What.(plan.StoreRestored); ok {
			w.timeline.After(max((fault.Begin-early.Age).D(), firstCopy), func() { a.snapshot = w.Store.Snapshot() })
		}
		w.timeline.After(fault.Begin.D(), func() { f.begin(a) })
	}
}

// begin lets a fault happen, unless it is about a node that does not exist: the
// minimizer takes nodes away.
func (f *faults) begin(a *active) {
	if f.over {
		return
	}
	if on := a.What.On(); on != "" && f.world.seats[on] == nil {
		return
	}
	f.active = append(f.active, a)
	f.note(a.Fault, true)
	a.end = f.world.apply(a)
	if a.end == nil && a.End <= a.Begin {
		f.drop(a)
		return
	}
	a.stop = f.world.timeline.After((a.End - a.Begin).D(), func() { f.finish(a) })
}

// finish ends a fault that lasted.
func (f *faults) finish(a *active) {
	f.drop(a)
	if a.stop != nil {
		a.stop()
	}
	if a.end != nil {
		a.end()
	}
	f.note(a.Fault, false)
}

func (f *faults) drop(a *active) {
	f.active = slices.DeleteFunc(f.active, func(other *active) bool { return other == a })
}

func (f *faults) note(fault plan.Fault, begin bool) {
	w := f.world
	text := "ends: " + fault.String()
	if begin {
		text = "begins: " + fault.String()
	}
	w.history.Add(history.Event{
		Step: w.steps, At: w.timeline.Now(), Kind: history.KindFault, Node: fault.What.On(), Text: text,
		Detail: history.Fault{Name: fault.What.Kind(), Begin: begin, Instant: fault.End <= fault.Begin, Outside: w.outlasts(fault)},
	})
}

// outlasts tells whether a fault stops a machine for longer than a kill may take:
// while nobody there can kill, what was to be killed is still there.
func (w *World) outlasts(fault plan.Fault) bool {
	_, paused := fault.What.(plan.Pause)
	return paused && !w.plan.Options.Solo && fault.End-fault.Begin > w.plan.Options.Session.KillBudget/2
}

// believedMax is how many nodes that can do nothing the others take for good ones, for
// ever: a shard's deadline actor is kept on three nodes, and one of them must work.
const believedMax = 2

// heal ends all faults, and then breaks the nodes outside the core for good.
func (f *faults) heal() {
	f.over = true
	for len(f.active) > 0 {
		f.finish(f.active[len(f.active)-1])
	}
	w := f.world
	w.refreshStoreLinks()
	w.refreshLinks()
	random := w.streams.Of("broken")
	for i := range w.Store.Members() {
		w.Store.Rejoin(i)
		w.Store.Resume(i)
		w.Store.Start(i)
	}
	// A minority of the store may stay away as well.
	for i := range (w.Store.Members() - 1) / 2 {
		if virtual.Chance(random, 0.5) {
			w.Store.Isolate((i + random.IntN(2)) % w.Store.Members())
		}
	}
	believed := 0
	for _, s := range w.sorted {
		if w.core[s.name] {
			w.repair(s)
			continue
		}
		how := []string{"crash", "off", "pause", "alone", "deaf", "mute", "no store"}[random.IntN(7)]
		blind := virtual.Chance(random, 0.5)
		switch {
		case believed >= believedMax:
			blind = false
			if how == "no store" {
				how = "alone"
			}
		case blind || how == "no store":
			believed++
		}
		w.breakForGood(s, how, blind)
	}
	w.Members.Update()
}

// repair sees that a node of the core can work again, as somebody does who is called.
func (w *World) repair(s *seat) {
	w.resume(s)
	s.PowerOn()
	s.StartGuard()
	s.Alter(w.base())
	w.exitIf(s, s.as != s.name)
	s.as, s.down = s.name, 0
	w.launch(s)
}

func (w *World) exitIf(s *seat, condition bool) {
	if condition {
		w.exit(s, -1)
	}
}

// breakForGood leaves a node in a state from which nobody will free it. Blind,
// the others go on believing that it is alive.
func (w *World) breakForGood(s *seat, how string, blind bool) {
	w.tell(history.KindFault, s.name, "stays broken: "+how)
	w.history.Add(history.Event{
		Step: w.steps, At: w.timeline.Now(), Kind: history.KindFault, Node: s.name, Text: how, Detail: history.Fault{Name: "broken", Begin: true, Outside: how == "pause"},
	})
	if kv, ok := w.Store.State().Get(w.keys.Node(s.name)); ok && kv.Lease == 0 {
		// Somebody has taken its lease away: nothing but somebody ends that session.
		w.Store.Delete(kv.Key)
	}
	switch how {
	case "crash":
		s.down++
		w.exit(s, -1)
	case "off":
		s.down++
		w.exit(s, -1)
		s.PowerOff()
	case "pause":
		if s.Off() {
			return
		}
		s.Pause(stopped)
		w.present()
	case "no store":
		w.Store.Link(s.name).CutAll()
	default:
		for _, other := range w.sorted {
			if other == s {
				continue
			}
			w.Network.Link(s.name, other.name).Cut = how != "deaf"
			w.Network.Link(other.name, s.name).Cut = how != "mute"
		}
		if how == "alone" {
			w.Store.Link(s.name).CutAll()
		}
	}
	for _, other := range w.sorted {
		if other != s && blind {
			w.Members.Of(other.name).Force(s.name, true)
		}
	}
}

// apply lets a fault befall the world, and returns what takes it back.
func (w *World) apply(a *active) (end func()) {
	switch a.What.Class() {
	case plan.ClassNetwork:
		return w.applyNetwork(a)
	case plan.ClassNode:
		return w.applyNode(a)
	case plan.ClassClock:
		return w.applyClock(a)
	case plan.ClassStore:
		return w.applyStore(a)
	case plan.ClassSandbox:
		return w.applySandbox(a)
	default:
		panic(fmt.Sprintf("world: nobody applies %s", a.What.Kind()))
	}
}
