package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// restMin passes after a fault of a node before the next of its kind on it: one
// that is over at once shows nothing.
const restMin = 5 * time.Second

// windowLong is longer than the time after which a node is declared lost.
const windowLong = 130 * time.Second

// pair are two names of which one begins with the other, which are there from
// pairedFrom nodes on.
var pair = []string{NodeName(0), NodeName(pairedFrom - 1)}

const pairedFrom = 10

// focus lets faults meet, and runs meet them: what befalls one node at one time finds
// what faults that are spread over a whole world never show. Half of the worlds have
// none.
type focus struct {
	// share is the part of what is drawn that goes to victim, and to the moments.
	share   float64
	victim  string
	moments []time.Duration
}

// The bounds of how far from a moment a fault of it begins, and a run before it.
const (
	meetEarly = 10 * time.Second
	meetLate  = 20 * time.Second
)

func drawFocus(r *rand.Rand, o Options) focus {
	f := focus{share: pick(r, 0, 0, 0.5, 0.8), victim: NodeName(r.IntN(o.Nodes))}
	for range 1 + r.IntN(3) {
		f.moments = append(f.moments, between(r, startMargin, o.Length.D()))
	}
	return f
}

// moment draws when something begins that may be drawn to others: from early before to
// meetLate after one of the moments, or at any time.
func (f focus) moment(r *rand.Rand, o Options, early time.Duration) time.Duration {
	anywhere := between(r, startMargin, o.Length.D())
	near := pick(r, f.moments...) + between(r, -early, meetLate)
	if chance(r, f.share) {
		anywhere = min(max(near, startMargin), max(o.Length.D()-time.Millisecond, startMargin))
	}
	return anywhere.Round(time.Millisecond)
}

// drawer draws the faults of one world.
type drawer struct {
	*rand.Rand
	o      Options
	focus  focus
	faults []Fault
}

// recipe is how often one kind of fault comes and how it is drawn. mean is the
// number to expect in ten minutes with every class on and full strength.
type recipe struct {
	class Class
	mean  float64
	draw  func(d *drawer)
}

func drawFaults(r *rand.Rand, o Options, f focus) []Fault {
	d := &drawer{Rand: r, o: o, focus: f}
	strength := pick(r, 0.3, 1, 1, 2.5)
	for _, recipe := range recipes {
		// Drawn in any case, so that a class that is off moves no other.
		on, times := chance(r, 0.5), r.ExpFloat64()
		part := rand.New(rand.NewPCG(r.Uint64(), r.Uint64())) //nolint:gosec // reproducible on purpose
		if !on || !slices.Contains(o.Classes, recipe.class) {
			continue
		}
		count := int(recipe.mean*strength*times*min(o.Length.D().Minutes()/10, 6) + 0.5)
		d.Rand = part
		for range min(count, 40) {
			recipe.draw(d)
		}
	}
	slices.SortStableFunc(d.faults, func(a, b Fault) int { return cmp.Compare(a.Begin, b.Begin) })
	return d.faults
}

// add adds a fault of a duration; the moment is drawn.
func (d *drawer) add(lasts time.Duration, what What) {
	begin := d.focus.moment(d.Rand, d.o, meetEarly)
	d.faults = append(d.faults, Fault{Begin: Duration(begin), End: Duration(begin + lasts.Round(time.Millisecond)), What: what})
}

// down adds a fault that takes a daemon down, unless it is down at that time.
func (d *drawer) down(node string, lasts time.Duration, what What) {
	d.downAt(node, Duration(d.focus.moment(d.Rand, d.o, meetEarly)), lasts, what)
}

// downAt is down at a moment.
func (d *drawer) downAt(node string, begin Duration, lasts time.Duration, what What) {
	end := begin + Duration(lasts.Round(time.Millisecond))
	for _, f := range d.faults {
		if isDown(f.What) && f.What.On() == node && begin < f.End+Duration(restMin) && f.Begin < end+Duration(restMin) {
			return
		}
	}
	d.faults = append(d.faults, Fault{Begin: begin, End: end, What: what})
}

func isDown(w What) bool {
	switch w.(type) {
	case Crash, Restart, Reboot, Pause, DiskSwap, DiskRevert, DiskTorn, DiskLoss, Namesake:
		return true
	default:
		return false
	}
}

// node draws the node that a fault befalls: often the victim, if there is one. Where
// there is one whose name begins with another's, those two are drawn often as well: who
// forgets the slash behind a name takes the one for the other.
func (d *drawer) node() string {
	n := NodeName(d.IntN(d.o.Nodes))
	switch {
	case chance(d.Rand, d.focus.share):
		return d.focus.victim
	case d.o.Nodes >= pairedFrom && chance(d.Rand, 0.3):
		return pick(d.Rand, pair...)
	}
	return n
}

// lasts draws how long a fault goes on: often short, sometimes longer than it takes
// to declare a node lost.
func (d *drawer) lasts() time.Duration {
	switch d.IntN(10) {
	case 0, 1, 2:
		return between(d.Rand, time.Second, 5*time.Second)
	case 3, 4, 5:
		return between(d.Rand, 5*time.Second, 30*time.Second)
	case 6, 7:
		return between(d.Rand, 30*time.Second, windowLong)
	default:
		return between(d.Rand, windowLong, 2*windowLong)
	}
}

// unguarded takes from a node all that would kill at its fence, for a time in which
// that may come.
func (d *drawer) unguarded(node string) {
	begin, lasts := Duration(d.focus.moment(d.Rand, d.o, meetEarly)), Duration(2*windowLong)
	for _, what := range []What{GuardDeath{Node: node}, LogDeath{Node: node}, StoreAway{Node: node}} {
		d.faults = append(d.faults, Fault{Begin: begin, End: begin + lasts, What: what})
	}
	d.downAt(node, begin+Duration(between(d.Rand, 0, windowLong).Round(time.Millisecond)), d.lasts(), Crash{Node: node})
}

// restarted stops the daemon of a node and brings it back, and lets something befall
// the session at either moment: that is when its time changes.
func (d *drawer) restarted(node string) {
	begin, lasts := Duration(d.focus.moment(d.Rand, d.o, meetEarly)), Duration(d.lasts().Round(time.Millisecond))
	d.downAt(node, begin, lasts.D(), Restart{Node: node})
	at := pick(d.Rand, begin, begin+lasts)
	near := at + Duration(between(d.Rand, -2*time.Second, 20*time.Second).Round(time.Millisecond))
	switch d.IntN(4) {
	case 0:
		d.beside(at, d.lasts(), StoreAway{Node: node, Answers: chance(d.Rand, 0.3)})
	case 1:
		d.beside(near, 0, LeaseRevoked{Node: node})
	case 2:
		d.downAt(node, near, d.lasts(), Crash{Node: node})
	default:
	}
	if chance(d.Rand, 0.5) {
		d.beside(near+Duration(between(d.Rand, 0, 5*time.Second).Round(time.Millisecond)), 0, KeyRemoved{Node: node})
	}
}

// beside adds a fault that goes with another, if its class is wanted.
func (d *drawer) beside(begin Duration, lasts time.Duration, what What) {
	if slices.Contains(d.o.Classes, what.Class()) {
		d.faults = append(d.faults, Fault{Begin: begin, End: begin + Duration(lasts.Round(time.Millisecond)), What: what})
	}
}

// unheard lets a session end at a moment, often while its node can not hear of it: that
// goes on to its fence, and others must wait for that.
func (d *drawer) unheard(node string, what What) {
	begin := Duration(d.focus.moment(d.Rand, d.o, meetEarly))
	d.faults = append(d.faults, Fault{Begin: begin, End: begin, What: what})
	if lasts := Duration(between(d.Rand, windowLong/2, 2*windowLong).Round(time.Millisecond)); chance(d.Rand, 0.6) {
		deaf := max(begin-Duration(between(d.Rand, 0, startMargin).Round(time.Millisecond)), 0)
		d.faults = append(d.faults, Fault{Begin: deaf, End: deaf + lasts, What: StoreAway{Node: node}})
	}
}

// failing lets the disk of a node fail, its daemon end meanwhile, and often the power go
// soon after the next one has read what is there.
func (d *drawer) failing(node string) {
	begin := Duration(d.focus.moment(d.Rand, d.o, meetEarly))
	lasts := Duration(between(d.Rand, 2*time.Second, 30*time.Second).Round(time.Millisecond))
	d.faults = append(d.faults, Fault{Begin: begin, End: begin + lasts, What: DiskErrors{Node: node, Chance: 0.3 + 0.7*d.Float64()}})
	crash := begin + Duration(between(d.Rand, 0, lasts.D()).Round(time.Millisecond))
	down := between(d.Rand, time.Second, restMin)
	d.downAt(node, crash, down, Crash{Node: node})
	if chance(d.Rand, 0.6) {
		d.downAt(node, crash+Duration((down+restMin+between(d.Rand, 0, 30*time.Second)).Round(time.Millisecond)), 10*time.Second+d.lasts(), Reboot{Node: node})
	}
}

// removed lets a node be away for long enough to lose its session and somebody say then
// that it is dead: rightly where its power is off, else wrongly.
func (d *drawer) removed(node string) {
	begin := Duration(d.focus.moment(d.Rand, d.o, meetEarly))
	lasts := between(d.Rand, windowLong/2, 2*windowLong)
	switch d.IntN(4) {
	case 0:
		d.downAt(node, begin, lasts, Crash{Node: node})
	case 1:
		d.downAt(node, begin, lasts, Reboot{Node: node})
	case 2:
		d.downAt(node, begin, lasts, Pause{Node: node})
	default:
		d.beside(begin, lasts, StoreAway{Node: node, Answers: chance(d.Rand, 0.2)})
	}
	said := Duration((lasts + d.lasts()).Round(time.Millisecond))
	d.faults = append(d.faults, Fault{Begin: begin, End: begin + said, What: NodeRemoved{Node: node, Through: pick(d.Rand, d.o.NodeNames()...)}})
}

// side draws some nodes, not all, and the rest.
func (d *drawer) side() (some, rest []string) {
	names := d.o.NodeNames()
	d.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	n := 1
	if len(names) > 1 {
		n = 1 + d.IntN(len(names)-1)
	}
	some, rest = names[:n:n], names[n:]
	slices.Sort(some)
	slices.Sort(rest)
	return some, rest
}

// recipes are tried in this order.
var recipes = []recipe{
	{ClassNetwork, 2, func(d *drawer) {
		if from, to := d.side(); len(to) > 0 {
			d.add(d.lasts(), Cut{From: from, To: to, Both: chance(d.Rand, 0.5)})
		}
	}},
	{ClassNetwork, 1, func(d *drawer) { // for good
		if from, to := d.side(); len(to) > 0 {
			d.add(d.o.Length.D(), Cut{From: from, To: to})
		}
	}},
	{ClassNetwork, 3, func(d *drawer) {
		n := Noise{Drop: d.Float64() * pick(d.Rand, 0, 0.1, 0.9), Duplicate: d.Float64() * pick(d.Rand, 0, 0.3)}
		n.Delay = Duration(between(d.Rand, 0, pick(d.Rand, 10*time.Millisecond, time.Second, 20*time.Second)))
		if chance(d.Rand, 0.5) {
			n.From = d.node()
		}
		if chance(d.Rand, 0.5) {
			n.To = d.node()
		}
		d.add(d.lasts(), n)
	}},
	{ClassNetwork, 0.7, func(d *drawer) {
		if some, rest := d.side(); len(rest) > 0 {
			d.add(pick(d.Rand, d.lasts(), 10*time.Minute), Hold{From: pick(d.Rand, some...), To: pick(d.Rand, rest...)})
		}
	}},
	{ClassNetwork, 1.5, func(d *drawer) {
		some, _ := d.side()
		d.add(pick(d.Rand, d.lasts(), d.o.Length.D()), View{Node: d.node(), Alive: some})
	}},
	{ClassNetwork, 0.7, func(d *drawer) {
		d.add(d.lasts(), Flap{Node: d.node(), Period: Duration(between(d.Rand, 500*time.Millisecond, 20*time.Second))})
	}},
	{ClassNetwork, 0.7, func(d *drawer) {
		d.add(d.lasts(), DoubledTell{Delay: Duration(between(d.Rand, 0, pick(d.Rand, time.Second, time.Minute, 10*time.Minute)))})
	}},
	{ClassNode, 0.4, func(d *drawer) {
		if some, rest := d.side(); len(rest) > 0 {
			n := pick(d.Rand, some...)
			d.down(n, d.lasts(), Namesake{Node: n, As: pick(d.Rand, rest...)})
		}
	}},
	{ClassNode, 3, func(d *drawer) { n := d.node(); d.down(n, d.lasts(), Crash{Node: n}) }},
	{ClassNode, 2, func(d *drawer) {
		f := Restart{Node: d.node(), Revoke: chance(d.Rand, 0.15)}
		if chance(d.Rand, 0.2) {
			f.Cut = Duration(between(d.Rand, time.Millisecond, pick(d.Rand, 20*time.Millisecond, 200*time.Millisecond, 5*time.Second)).Round(time.Millisecond))
		}
		d.down(f.Node, d.lasts(), f)
	}},
	{ClassNode, 0.5, func(d *drawer) { d.restarted(d.node()) }},
	{ClassNode, 1, func(d *drawer) { n := d.node(); d.down(n, d.lasts()+10*time.Second, Reboot{Node: n}) }},
	{ClassNode, 2, func(d *drawer) { n := d.node(); d.down(n, d.lasts(), Pause{Node: n, Suspend: chance(d.Rand, 0.3)}) }},
	{ClassNode, 0.15, func(d *drawer) { n := d.node(); d.down(n, d.lasts(), Pause{Node: n, Uncounted: true}) }},
	{ClassNode, 2, func(d *drawer) {
		d.add(0, Panic{Node: d.node(), Actor: pick(d.Rand, "run", "run", "node", "deadline", "activator"), Turns: pick(d.Rand, 1, 1, 1, 2, 3)})
	}},
	{ClassNode, 2, func(d *drawer) {
		stall := DiskStall{Node: d.node()}
		if chance(d.Rand, 0.5) {
			stall.By = Duration(between(d.Rand, 10*time.Millisecond, pick(d.Rand, time.Second, 3*time.Second, time.Minute)))
		}
		d.add(d.lasts(), stall)
	}},
	{ClassNode, 1, func(d *drawer) { d.add(d.lasts(), DiskFull{Node: d.node()}) }},
	{ClassNode, 0.3, func(d *drawer) {
		if some, rest := d.side(); len(rest) > 0 {
			n := pick(d.Rand, some...)
			d.down(n, d.lasts(), DiskSwap{Node: n, With: pick(d.Rand, rest...)})
		}
	}},
	{ClassNode, 0.5, func(d *drawer) {
		n := d.node()
		d.down(n, d.lasts(), DiskRevert{Node: n, Age: Duration(between(d.Rand, 0, 3*time.Minute))})
	}},
	{ClassNode, 0.7, func(d *drawer) { n := d.node(); d.down(n, d.lasts(), DiskTorn{Node: n}) }},
	{ClassNode, 0.3, func(d *drawer) { n := d.node(); d.down(n, d.lasts(), DiskLoss{Node: n}) }},
	{ClassClock, 1.5, func(d *drawer) {
		by := pick(d.Rand, -24*time.Hour, -time.Hour, -time.Minute, 3*time.Second, 30*time.Second, -500*time.Millisecond, time.Hour, 24*time.Hour)
		d.add(pick(d.Rand, 10*time.Second, d.lasts()), WallStep{Node: d.node(), By: Duration(by)})
	}},
	{ClassClock, 1, func(d *drawer) {
		// Two clocks differ by at most the bound if each is off by less than half of it.
		d.add(pick(d.Rand, d.lasts(), d.o.Length.D()), Drift{Node: d.node(), By: (d.Float64() - 0.5) * 0.0098})
	}},
	{ClassStore, 2, func(d *drawer) { d.add(d.lasts(), StoreAway{Node: d.node(), Answers: chance(d.Rand, 0.3)}) }},
	{ClassStore, 0.5, func(d *drawer) { d.add(pick(d.Rand, time.Minute, d.lasts()), StoreAway{}) }},
	{ClassStore, 1.5, func(d *drawer) {
		d.add(d.lasts(), WatchLag{Node: d.node(), By: Duration(between(d.Rand, 0, time.Minute))})
	}},
	{ClassStore, 2, func(d *drawer) {
		late := between(d.Rand, 0, pick(d.Rand, time.Second, 10*time.Second, 5*time.Minute, time.Hour))
		d.add(d.lasts(), Unknown{Node: d.node(), Chance: d.Float64() * 0.6, Late: Duration(late)})
	}},
	{ClassStore, 1, func(d *drawer) {
		f := LeaderPause{}
		if chance(d.Rand, 0.5) {
			f.Then = d.node()
		}
		d.add(between(d.Rand, 5*time.Second, 25*time.Second), f)
	}},
	{ClassStore, 1.5, func(d *drawer) { d.add(0, LeaderChange{}) }},
	{ClassStore, 1.5, func(d *drawer) { d.add(d.lasts(), MemberCut{Member: d.IntN(d.o.Members)}) }},
	{ClassStore, 0.7, func(d *drawer) { n := d.node(); d.unheard(n, KeyRemoved{Node: n}) }},
	{ClassStore, 0.3, func(d *drawer) { d.add(0, LeaseDropped{Node: d.node()}) }},
	{ClassStore, 0.7, func(d *drawer) { n := d.node(); d.unheard(n, LeaseRevoked{Node: n}) }},
	{ClassStore, 1.5, func(d *drawer) { d.add(0, Compaction{}) }},
	{ClassStore, 0.7, func(d *drawer) { d.add(d.lasts(), StoreRefuses{Full: chance(d.Rand, 0.3)}) }},
	{ClassSandbox, 1.5, func(d *drawer) {
		d.add(d.lasts(), SlowCreate{Node: d.node(), By: Duration(between(d.Rand, 0, pick(d.Rand, time.Second, 20*time.Second, 3*time.Minute)))})
	}},
	{ClassSandbox, 1.5, func(d *drawer) {
		d.add(d.lasts(), FailedStart{Node: d.node(), Chance: d.Float64(), Permanent: chance(d.Rand, 0.2)})
	}},
	{ClassSandbox, 1, func(d *drawer) {
		d.add(d.lasts(), LateExit{Node: d.node(), By: Duration(between(d.Rand, 0, pick(d.Rand, time.Second, time.Minute, 5*time.Minute)))})
	}},
	{ClassSandbox, 1, func(d *drawer) { d.add(d.lasts(), DoubledExit{Node: d.node()}) }},
	{ClassSandbox, 0.7, func(d *drawer) {
		d.add(0, ShimDeath{Node: d.node(), Alive: chance(d.Rand, 0.5)})
	}},
	{ClassSandbox, 1.5, func(d *drawer) { d.add(0, Vanish{Node: d.node()}) }},
	{ClassSandbox, 1, func(d *drawer) {
		d.add(d.lasts(), SlowKill{Node: d.node(), By: Duration(between(d.Rand, 0, pick(d.Rand, 5*time.Second, 2*time.Minute)))})
	}},
	{ClassSandbox, 1, func(d *drawer) { d.add(d.lasts(), GuardDeath{Node: d.node()}) }},
	{ClassSandbox, 1, func(d *drawer) { d.add(pick(d.Rand, 0, d.lasts()), LogDeath{Node: d.node()}) }},
	{ClassSandbox, 0.3, func(d *drawer) { d.unguarded(d.node()) }},
	{ClassNetwork, 1, func(d *drawer) {
		f := Selected{Message: pick(d.Rand, "Start", "Started", "Exited", "Voided", "Stop", "Ack", "Wake", "Reserve", "Reserved")}
		if chance(d.Rand, 0.5) {
			f.Hold = Duration(between(d.Rand, 0, pick(d.Rand, 10*time.Second, 10*time.Minute)))
		}
		d.add(pick(d.Rand, d.lasts(), d.lasts(), d.o.Length.D()), f)
	}},
	{ClassStore, 0.15, func(d *drawer) {
		f := StoreRestored{Age: Duration(between(d.Rand, 0, pick(d.Rand, 10*time.Second, time.Minute, 5*time.Minute))), Online: chance(d.Rand, 0.5) && !d.o.Solo}
		lasts := between(d.Rand, time.Second, time.Minute)
		if f.Online {
			lasts += windowLong / 2
		}
		d.add(lasts, f)
	}},
	{ClassStore, 0.05, func(d *drawer) {
		d.add(0, StoreRestored{Age: Duration(between(d.Rand, 0, 3*time.Minute)), Raw: true})
	}},
	{ClassNode, 1, func(d *drawer) { d.add(d.lasts(), DiskErrors{Node: d.node(), Chance: d.Float64()}) }},
	{ClassSandbox, 1.5, func(d *drawer) { d.add(d.lasts(), Flaky{Node: d.node(), Chance: d.Float64()}) }},
	{ClassSandbox, 2, func(d *drawer) { d.add(min(d.lasts(), windowLong/2), RuntimeAway{Node: d.node()}) }},
	{ClassNode, 0.7, func(d *drawer) { d.failing(d.node()) }},
	{ClassSandbox, 1.5, func(d *drawer) {
		d.add(d.lasts(), RegistryBusy{
			Node: d.node(), Chance: pick(d.Rand, d.Float64(), 1), RetryAfter: Duration(between(d.Rand, 0, pick(d.Rand, time.Millisecond, 5*time.Second, 30*time.Second))),
			Slow: Duration(between(d.Rand, 0, pick(d.Rand, time.Millisecond, 10*time.Second, 2*time.Minute))),
		})
	}},
	{ClassNode, 1, func(d *drawer) { d.removed(d.node()) }},
}
