package plan

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/errand-run/errand/simulation/virtual"
)

// Wanted is what a caller fixes of a plan; what is zero is drawn.
type Wanted struct {
	Nodes int
	// Length is how long the faults and the workload go on.
	Length time.Duration
	// Classes are the classes of faults that may be drawn; nil means all, empty none.
	Classes []Class
	// Workload replaces the drawn one; a length that is drawn is not shorter.
	Workload []Call
}

// The bounds of what is drawn.
const (
	lengthShortMin = 2 * time.Minute
	lengthShortMax = 12 * time.Minute
	lengthLongMax  = 90 * time.Minute
	// convergeMin is how long the core has beyond its longest command. A node that
	// stays broken is declared lost after about two minutes, and a full TTL more for
	// every change of the store's leader; a run that was retried may have to wait for
	// that more than once.
	convergeMin = 25 * time.Minute
	// probes is how many nodes of the core are asked for one more run.
	probes = 3
	// startMargin lets the world come up before the first fault.
	startMargin = 5 * time.Second
)

// Draw draws the plan of a seed.
func Draw(seed uint64, wanted Wanted) Plan {
	streams := virtual.Streams{Seed: seed}
	p := Plan{Version: Version, Seed: seed}
	p.Options = drawOptions(streams.Of("options"), wanted)
	if wanted.Length == 0 {
		for _, c := range wanted.Workload {
			p.Options.Length = max(p.Options.Length, c.At+Duration(time.Second))
		}
	}
	focus := drawFocus(streams.Of("focus"), p.Options)
	p.Faults = drawFaults(streams.Of("faults"), p.Options, focus)
	if p.Workload = wanted.Workload; p.Workload == nil {
		p.Workload = drawWorkload(streams.Of("workload"), p.Options, focus)
	}
	if wanted.Workload == nil {
		drawImages(streams.Of("images"), p.Workload)
	}
	longest := Duration(0)
	for _, c := range p.Workload {
		if c.Command != nil {
			longest = max(longest, c.Command.Longest())
		}
	}
	p.Options.Converge = max(Duration(convergeMin), 2*longest+Duration(convergeMin)/2)
	return p
}

func drawOptions(r *rand.Rand, wanted Wanted) Options {
	o := Options{Nodes: wanted.Nodes, Length: Duration(wanted.Length), Session: defaultSession(), Probes: probes}
	nodes := pick(r, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5, 7, 10, 15)
	if o.Nodes == 0 {
		o.Nodes = nodes
	}
	o.Members = pick(r, 1, 3, 3, 3, 5)
	solo := chance(r, 0.5)
	if o.Solo = o.Nodes == 1 && solo; o.Solo {
		o.Members = 1
	}
	o.Shards = pick[int32](r, 1, 2, 2, 4, 8)
	o.SandboxesMax = pick[int64](r, 1, 2, 4, 8, 8, 32)
	length := between(r, lengthShortMin, lengthShortMax)
	if chance(r, 0.05) {
		length = between(r, lengthShortMax, lengthLongMax)
	}
	if o.Length == 0 {
		o.Length = Duration(length.Round(time.Second))
	}
	o.Policy = drawPolicy(r, o)
	o.Classes = drawClasses(r, wanted.Classes)
	o.Latency = Latency{
		Network: Duration(pick(r, 200*time.Microsecond, time.Millisecond, 5*time.Millisecond, 50*time.Millisecond)),
		Store:   Duration(pick(r, time.Millisecond, 3*time.Millisecond, 10*time.Millisecond, 100*time.Millisecond)),
		Disk:    Duration(pick(r, 100*time.Microsecond, time.Millisecond, 10*time.Millisecond)),
		Create:  Duration(pick(r, 5*time.Millisecond, 50*time.Millisecond, 500*time.Millisecond, 5*time.Second)),
		Start:   Duration(pick(r, time.Millisecond, 20*time.Millisecond, 200*time.Millisecond)),
		Kill:    Duration(pick(r, time.Millisecond, 10*time.Millisecond, 300*time.Millisecond)),
	}
	o.Flights = pick(r, 0, 1, 1, 1, 2, 4)
	if chance(r, 0.2) {
		o.OpsMax = pick(r, OpsLeast, 20, 40)
	}
	return o
}

func defaultSession() Session {
	return Session{
		Lease: Duration(time.Minute), Renew: Duration(5 * time.Second), Margin: Duration(15 * time.Second),
		KillBudget: Duration(10 * time.Second), Drift: 0.01, StartMargin: Duration(2 * time.Second),
		RestartMax: Duration(2 * time.Minute),
	}
}

func drawPolicy(r *rand.Rand, o Options) Policy {
	p := Policy{Kind: pick(r, PolicyFIFO, PolicyUniform, PolicyUniform, PolicyBiased, PolicyBiased, PolicyStarve)}
	switch p.Kind {
	case PolicyBiased:
		p.Every = pick[uint64](r, 100, 1000, 5000)
	case PolicyStarve:
		p.Starved = NodeName(r.IntN(o.Nodes))
	}
	return p
}

// drawClasses switches whole classes of faults off: one world in eight is quiet.
func drawClasses(r *rand.Rand, allowed []Class) []Class {
	if allowed == nil {
		allowed = Classes()
	}
	quiet := chance(r, 0.125)
	var on []Class
	for _, c := range Classes() {
		if drawn := chance(r, 0.6); drawn && !quiet && slices.Contains(allowed, c) {
			on = append(on, c)
		}
	}
	return on
}

// pick draws one of several.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

// between draws a duration of at least the first and below the second.
func between(r *rand.Rand, least, below time.Duration) time.Duration {
	if below <= least {
		return least
	}
	return least + time.Duration(r.Int64N(int64(below-least)))
}
