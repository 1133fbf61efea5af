// Package world builds a simulated cluster out of production's nodes and the models
// of all that is around them, lets a plan befall it, and judges what happened.
//
// Everything of a world belongs to one goroutine, and it starts none. Its time is a
// virtual.Timeline: while any actor has a message the policy picks one, and it takes
// exactly one message; when none has, the earliest event happens. So the same plan
// makes the same history, to the last event.
//
// A world has two phases. While the faults of the plan go on only safety counts.
// Then a random core of nodes is healed, with a store that it reaches, while all
// others stay broken for good: within a bounded time no run may be left that has not
// ended, and nothing of one on the core.
package world

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/errand-run/errand/cluster/host/stepping"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/members"
	"github.com/errand-run/errand/simulation/network"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// Driver is the sandbox driver of simulated machines.
const Driver = "null"

// The bounds of a world's work.
const (
	// checkEvery is how many steps pass between two looks of the expensive checkers.
	checkEvery = 4096
	// idleStepsMax is how many turns may be taken without progress (a commit, a start
	// or end of a command, an answer to a client) before a world is given up.
	idleStepsMax = 2_000_000
	// instantStepsMax is how many turns may be taken at one instant.
	instantStepsMax = 200_000
	// settleTime passes between convergence and the last look: what comes late then is
	// still judged.
	settleTime = 150 * time.Second
	// convergePoll is how often convergence is looked for.
	convergePoll = time.Second
)

// Setup is how a world is watched. The zero value only judges.
type Setup struct {
	// Observe hears of every event; Turns adds those of actors, and Logs the lines that
	// nodes log. What is added is not hashed.
	Observe func(history.Event)
	Turns   bool
	Logs    bool
	// Until ends the world after so many steps; 0 means none.
	Until uint64
	// Stop is asked now and then, unless it is nil; true ends the world as Until does.
	Stop func() bool
	// Canary switches on a checker that always fails.
	Canary bool
	// Ports may put other ports in the place of a daemon's, before it is assembled: what
	// a mutation is made of. Node is the name under which the daemon runs, receive hands
	// it a packet.
	Ports func(node string, ports *nodes.Ports, receive func(from string, packet *actorv1.Packet))
	// Prepare may change a world before it begins.
	Prepare func(*World)
}

// World is one simulated cluster.
type World struct {
	plan     plan.Plan
	setup    Setup
	streams  virtual.Streams
	timeline *virtual.Timeline
	history  *history.History
	checks   *check.Set
	keys     records.Keys

	Store   *etcd.Cluster
	Network *network.Network
	Members *members.Members

	seats  map[string]*seat
	sorted []*seat
	// epoch is that of the last restore, or of the beginning.
	epoch int64
	// up are the names that the members take for present.
	up     map[string]bool
	order  stepping.Order
	policy stepping.Policy
	// schedulers are those of the daemons, by place of the seat: nil where no turn may
	// be taken.
	schedulers []*stepping.Scheduler
	steps      uint64
	// progress is the step of the last progress, instant that of the last move of the
	// time.
	progress, instant uint64

	clients clients
	faults  faults
	// core are the nodes that are healed in the second phase; nil in the first.
	core map[string]bool
	// converged is when everything was found to have ended; 0 until then.
	converged time.Duration
	// over is set at the end, cut when that is before the world's own.
	over, cut bool
}

// New builds the world of a plan. The plan must be one that Check takes.
func New(p plan.Plan, setup Setup) *World {
	w := &World{
		plan: p, setup: setup, streams: virtual.Streams{Seed: p.Seed}, timeline: &virtual.Timeline{}, history: history.New(),
		keys: records.Keys{Root: records.RootDefault, Shards: p.Options.Shards}, seats: map[string]*seat{}, up: map[string]bool{},
	}
	w.history.Step = func() uint64 { return w.steps }
	w.checks = check.New(w.checkConfig())
	w.history.Observe(w.checks.Observe)
	w.history.Observe(w.noteProgress)
	if setup.Observe != nil {
		w.history.Observe(setup.Observe)
	}
	w.policy = policyOf(p.Options, w.streams.Of("schedule"))
	w.schedulers = make([]*stepping.Scheduler, p.Options.Nodes)
	w.build()
	w.clients.init(w)
	w.faults.init(w)
	if setup.Prepare != nil {
		setup.Prepare(w)
	}
	return w
}

func (w *World) checkConfig() check.Config {
	c := check.Config{Keys: w.keys, Nodes: w.plan.Options.Nodes, Epoch: machine.Epoch.UnixMilli(), SandboxesMax: w.plan.Options.SandboxesMax, Canary: w.setup.Canary}
	if !w.plan.Options.Solo {
		c.Session = sessionConfig(w.plan.Options.Session)
	}
	return c
}

// Machine returns a machine by its name, nil if there is none.
func (w *World) Machine(name string) *machine.Machine {
	if s := w.seats[name]; s != nil {
		return s.Machine
	}
	return nil
}

// Timeline is the world's time.
func (w *World) Timeline() *virtual.Timeline { return w.timeline }

// Execute builds the world of a plan and runs it. A panic is part of the result.
func Execute(p plan.Plan, setup Setup) (result Result) {
	defer func() {
		if r := recover(); r != nil {
			result = Result{Plan: p, Panic: fmt.Sprintf("%v\n%s", r, debug.Stack())}
		}
	}()
	return New(p, setup).Run()
}

// Run carries the plan out and says what became of it. It may be called once. After
// a panic of the world it tells the panic and what was found before.
func (w *World) Run() (result Result) {
	defer func() {
		if r := recover(); r != nil {
			stack := debug.Stack()
			result = w.afterPanic()
			result.Panic = fmt.Sprintf("%v\n%s", r, stack)
		}
	}()
	w.timeline.After(w.plan.Options.Length.D(), w.beginConvergence)
	for !w.over && w.step() {
	}
	return w.result()
}

// step takes one turn, or lets the earliest event happen.
func (w *World) step() bool {
	if w.setup.Until > 0 && w.steps >= w.setup.Until {
		w.cut = true
		return false
	}
	for i, s := range w.sorted {
		if w.schedulers[i] = nil; s.daemon != nil && !s.Paused() && s.daemon.turns.Waiting() > 0 {
			w.schedulers[i] = s.daemon.turns
		}
	}
	if !stepping.Ready(w.schedulers) {
		w.instant = w.steps
		return w.timeline.Next()
	}
	w.steps++
	scheduler, turn := w.policy.Pick(w.schedulers)
	w.schedulers[scheduler].StepAt(turn)
	if w.steps%checkEvery == 0 {
		w.checks.Step(w.steps, w.timeline.Now())
		w.checks.Expensive()
		if w.setup.Stop != nil && w.setup.Stop() {
			w.cut = true
			return false
		}
	}
	return w.steps-w.progress < idleStepsMax && w.steps-w.instant < instantStepsMax
}

// noteProgress notes when something was achieved.
func (w *World) noteProgress(e history.Event) {
	switch e.Kind {
	case history.KindCommand, history.KindCommit, history.KindAnswer, history.KindFault:
		w.progress = w.steps
	default:
	}
}

// tell adds an event of the world's own to the history.
func (w *World) tell(kind history.Kind, node, text string) {
	w.history.Add(history.Event{Step: w.steps, At: w.timeline.Now(), Kind: kind, Node: node, Text: text})
}

// log hands an event to whoever observes the world, past the history and its hash.
func (w *World) log(e history.Event) {
	if w.setup.Observe != nil {
		e.Step, e.At = w.steps, w.timeline.Now()
		w.setup.Observe(e)
	}
}

// turn is told of every message that an actor takes.
func (w *World) turn(b *box, message any) {
	if w.setup.Turns {
		w.log(turnEvent(b, message))
	}
}
