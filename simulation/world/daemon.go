package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/plan"
)

// What whoever starts the daemon on a machine does, in true time.
const (
	// startTimeout is how long a daemon may take to be announced before it gives up.
	startTimeout = 3 * time.Minute
	// startPoll is how often its start is looked at.
	startPoll = 500 * time.Millisecond
	// restartPause passes before a daemon that ended by itself is started again, and
	// refusedPause before one that refused to start.
	restartPause = 5 * time.Second
	refusedPause = 30 * time.Second
	// stopTimeout is how long a stop may take before the daemon is killed.
	stopTimeout = 10 * time.Second
	// leaveTimeout is how much of that it may take to have the time of a restart.
	leaveTimeout = 5 * time.Second
	// stopPoll is how often a stop is looked at.
	stopPoll = 20 * time.Millisecond
)

// daemon is one life of the node's daemon on a machine: production's node on
// simulated ports.
type daemon struct {
	world *World
	// machine is the name of the machine, node the name under which the daemon runs:
	// the same, unless a fault lets it claim another's.
	machine, node string
	life          *machine.Daemon
	turns         *stepping.Scheduler
	assembled     *nodes.Node
	store         *etcd.Client
	// calls is the store that clients of this daemon reach: the node's own.
	calls     actors.Store
	detach    []func()
	announced bool
	// stopping is set once the daemon was asked to stop.
	stopping bool
	// panics is how many turns of a kind of actor are still to panic.
	panics map[string]int
}

// seat is what a world keeps of a machine.
type seat struct {
	name string
	*machine.Machine
	daemon *daemon
	// as is the name under which its daemons run.
	as string
	// down counts the faults that keep a daemon from being started.
	down int
	// relaunch stops the timer by which the next one is started; nil when none runs.
	relaunch func()
	// lives numbers the daemons' lives for their random streams.
	lives int
	// torn counts the faults that let its disk undo a write; forgot is set once the disk
	// may have lost something.
	torn   int
	forgot bool
	// swapped is set while another machine has its disk.
	swapped bool
	// uuid is the identity that lies beside the journal; accepted is set once an
	// administrator has said that the journal is lost for good.
	uuid     string
	accepted bool
}

// launch starts a daemon on a machine, unless there is one or a fault forbids it.
func (w *World) launch(s *seat) {
	if s.daemon != nil || s.down > 0 || s.Off() {
		return
	}
	s.launchLater(nil)
	s.lives++
	d := &daemon{world: w, machine: s.name, node: s.as, life: s.Launch(), turns: stepping.Among(&w.order), panics: map[string]int{}}
	s.daemon = d
	random := w.streams.Of("ids/" + s.name + "/" + strconv.Itoa(s.lives))
	log := w.logger(s.name)
	ports := nodes.Ports{
		Clock: d.life.Clock(), Journal: d.life.Journal(), Fence: d.life.Fence(), Sandboxes: d.life.Sandboxes(),
		Rand: ids{random}, Log: log,
		Actors: host.Options{Dispatcher: d.turns, Mailbox: d.newBox, StrictSpawn: true, Failed: func(err error) { d.failed(err) }},
	}
	w.connect(d, &ports)
	if w.setup.Ports != nil {
		w.setup.Ports(d.node, &ports, d.receive)
	}
	d.calls = ports.Store
	assembled, err := nodes.New(ports, w.config(s))
	if err != nil {
		panic(fmt.Sprintf("world: assemble %s: %v", s.as, err))
	}
	d.assembled = assembled
	w.present()
	assembled.Advance(nodes.PhaseAnnounced)
	w.timeline.After(startPoll, func() { d.watchStart(s, w.timeline.Now()) })
}

// present lets the members know which daemons are there: one on a machine that stands
// still answers nobody.
func (w *World) present() {
	there := map[string]bool{}
	for _, s := range w.sorted {
		if s.daemon != nil && !s.Paused() {
			there[s.as] = true
		}
	}
	for _, s := range w.sorted {
		if w.up[s.name] != there[s.name] {
			w.up[s.name] = there[s.name]
			w.Members.Up(s.name, there[s.name])
		}
	}
}

// config is what a node is told about itself.
func (w *World) config(s *seat) nodes.Config {
	o := w.plan.Options
	c := nodes.Config{
		ID: s.as, Keys: w.keys, Address: s.name + ":7321", Version: "simulated", BootID: s.BootID(),
		LogPath:      func(run string, attempt int32) string { return "/logs/" + run + "/" + strconv.Itoa(int(attempt)) },
		SandboxesMax: o.SandboxesMax, CPUMillis: 64_000, MemoryBytes: 64 << 30,
		Drivers: []string{Driver}, StartsInFlightMax: 4,
		UUID: s.uuid, AcceptLostJournal: s.accepted,
	}
	if !o.Solo {
		c.Session = sessionConfig(o.Session)
	}
	return c
}

func sessionConfig(s plan.Session) nodes.SessionConfig {
	return nodes.SessionConfig{
		Lease: s.Lease.D(), Renew: s.Renew.D(), Margin: s.Margin.D(), KillBudget: s.KillBudget.D(), Drift: s.Drift, StartMargin: s.StartMargin.D(),
		RestartMax: s.RestartMax.D(),
	}
}

// watchStart sees a daemon come up, or ends one that does not.
func (d *daemon) watchStart(s *seat, since time.Duration) {
	w := d.world
	if s.daemon != d || d.announced || d.stopping {
		return
	}
	status := d.assembled.Status()
	switch refused := d.assembled.Refused(); {
	case refused != nil:
		w.tell(history.KindDaemon, s.name, "refuses: "+refused.Error())
		w.exit(s, refusedPause)
	case status.Phase >= nodes.PhaseAnnounced:
		d.announced = true
		w.tell(history.KindDaemon, s.name, "announced in session "+strconv.FormatInt(status.Session, 10))
	case w.timeline.Now()-since >= startTimeout && !s.Paused():
		w.tell(history.KindDaemon, s.name, "gives up to start: "+status.Trouble)
		w.exit(s, restartPause)
	default:
		w.timeline.After(startPoll, func() { d.watchStart(s, since) })
	}
}

// failed is told that an actor was given up: production ends the process then.
func (d *daemon) failed(err error) {
	w := d.world
	w.tell(history.KindDaemon, d.machine, "an actor was given up: "+err.Error())
	w.timeline.After(0, func() {
		if s := w.seats[d.machine]; s.daemon == d {
			w.exit(s, restartPause)
		}
	})
}

// exit ends a daemon at once, as a crash does, and starts the next one after a
// while. A negative while starts none.
func (w *World) exit(s *seat, pause time.Duration) {
	d := s.daemon
	if d == nil {
		return
	}
	s.daemon = nil
	for _, detach := range d.detach {
		detach()
	}
	d.life.Crash()
	w.present()
	if pause >= 0 {
		s.launchLater(w.timeline.After(pause, func() { w.launch(s) }))
	}
}

// launchLater keeps the one timer by which the next daemon is started: what was to
// start it before does not any more.
func (s *seat) launchLater(stop func()) {
	if s.relaunch != nil {
		s.relaunch()
	}
	s.relaunch = stop
}

// stop ends a daemon as an update does: it is asked, and killed if it does not. The
// next one is started once it has ended and no fault forbids it.
func (w *World) stop(s *seat) {
	d := s.daemon
	if d == nil || d.stopping {
		return
	}
	d.stopping = true
	w.tell(history.KindDaemon, s.name, "stops")
	since := w.timeline.Now()
	var poll func()
	poll = func() {
		if s.daemon != d {
			return
		}
		if err := d.assembled.Leave(ended); err != nil && w.timeline.Now()-since < leaveTimeout {
			w.timeline.After(stopPoll, poll)
			return
		}
		// Turns are taken while there are any at the same instant: that the close waits
		// for nothing but them shows in that it is done when it is asked again.
		if err := d.assembled.Close(ended); err != nil && w.timeline.Now()-since < stopTimeout {
			w.timeline.After(stopPoll, poll)
			return
		}
		w.tell(history.KindDaemon, s.name, "stopped")
		w.exit(s, -1)
		w.launch(s)
	}
	poll()
}

// ended is a context that has ended: who waits with it does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// ids is the Rand port on a stream of the world.
type ids struct{ *rand.Rand }

// Fill fills the bytes from the stream.
func (i ids) Fill(b []byte) {
	for len(b) > 0 {
		n := i.Uint64()
		for range min(8, len(b)) {
			b[0] = byte(n)
			b, n = b[1:], n>>8
		}
	}
}

// logger makes the log of a node: its lines become part of the history, if anybody
// looks at them.
func (w *World) logger(name string) *zap.Logger {
	if !w.setup.Logs {
		return zap.NewNop()
	}
	return zap.New(&logCore{world: w, node: name})
}
