package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
)

// dispatcherThroughput is how many messages an actor takes before it yields its
// processor to others.
const dispatcherThroughput = 300

// ErrClosed is returned when something is asked of a host that was closed.
var ErrClosed = errors.New("the actor host is closed")

// Clock is the time that supervision runs on.
type Clock interface {
	// Now reads a clock that never steps.
	Now() time.Duration
	// After calls deliver once, d from now, on any goroutine. deliver does not
	// block. stop returns at once; a call that is under way may still happen.
	After(d time.Duration, deliver func()) (stop func())
}

// Options are what a host is made of. Clock is required.
type Options struct {
	Clock Clock
	// Dispatcher runs the turns of all actors; nil means a goroutine for each
	// actor that has messages.
	Dispatcher actor.Dispatcher
	// Mailbox makes the mailbox of each actor; nil means protoactor's unbounded
	// one.
	Mailbox actor.MailboxProducer
	// Log may be nil.
	Log *zap.Logger
	// Failed is told of every top actor that was given up, from a goroutine of the
	// dispatcher; it does not block. The host goes on without that actor, so an
	// owner ends the process. May be nil.
	Failed func(error)
	// StrictSpawn refuses props that were not made by Props.
	StrictSpawn bool
}

// Host is an actor system with one way to make actors. Its methods may be called
// from any goroutine.
type Host struct {
	system   *actor.ActorSystem
	log      *zap.Logger
	clock    Clock
	options  []actor.PropsOption
	children *supervisor
	tops     *supervisor

	mu     sync.Mutex
	closed bool
	roots  []*actor.PID
}

// New makes a host without actors. It starts no goroutine.
func New(options Options) *Host {
	if options.Clock == nil {
		panic("host: no clock")
	}
	if options.Dispatcher == nil {
		options.Dispatcher = actor.NewDefaultDispatcher(dispatcherThroughput)
	}
	if options.Mailbox == nil {
		options.Mailbox = actor.Unbounded()
	}
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	h := &Host{log: options.Log, clock: options.Clock}
	h.children = newSupervisor(options.Clock, options.Log, nil)
	h.tops = newSupervisor(options.Clock, options.Log, options.Failed)
	h.options = []actor.PropsOption{
		actor.WithDispatcher(options.Dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return &finalMailbox{Mailbox: options.Mailbox(), log: h.log} }),
		actor.WithSupervisor(h.children),
	}
	if options.StrictSpawn {
		h.options = append(h.options, actor.WithSpawnFunc(spawnSealed), actor.WithSpawnMiddleware(seal))
	}
	h.system = newSystem(options)
	return h
}

// newSystem makes the actor system with all of its own voices off: the throttle
// of its dead letters owns goroutines, its metrics own timers.
func newSystem(options Options) *actor.ActorSystem {
	log := newBridge(options.Log, options.Clock)
	system := actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(log) }),
		actor.WithDeadLetterThrottleCount(0),
		actor.WithDeadLetterThrottleInterval(0),
		actor.WithDeveloperSupervisionLogging(false),
		actor.WithMetricProviders(nil),
	)
	if options.StrictSpawn {
		system.Root.WithSpawnMiddleware(refuse)
	}
	return system
}

// System is the actor system, for those who send to actors and answer them.
func (h *Host) System() *actor.ActorSystem { return h.system }

// Clock is the clock the host was made with.
func (h *Host) Clock() Clock { return h.clock }

// Log is the log the host was made with, never nil.
func (h *Host) Log() *zap.Logger { return h.log }

// Props makes what an actor is spawned from. The producer makes a fresh actor for
// every start and restart.
func (h *Host) Props(producer actor.Producer) *actor.Props {
	return actor.PropsFromProducer(producer, h.options...)
}

// Spawn starts a top actor: one without a parent, which the host stops when it
// closes. It returns ErrClosed, or an error when the name is taken.
func (h *Host) Spawn(name string, producer actor.Producer) (*actor.PID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("spawn %s: %w", name, ErrClosed)
	}
	// Not by the root's own SpawnNamed: with a spawn middleware it loses the guardian.
	parent := h.system.Root.Copy().WithGuardian(h.tops)
	pid, err := actor.DefaultSpawner(h.system, name, h.Props(producer), parent)
	if err != nil {
		return nil, fmt.Errorf("spawn %s: %w", name, err)
	}
	h.roots = append(h.roots, pid)
	return pid, nil
}

// Stop stops an actor and all below it, and waits until they have stopped. Stopping
// one that is gone does nothing.
func (h *Host) Stop(ctx context.Context, pid *actor.PID) error {
	done := make(chan struct{})
	h.StopThen(pid, func() { close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return records.Errorf(records.ClassDeadline, "stop actor %s: %w", pid.GetId(), ctx.Err())
	}
}

// StopThen stops an actor and all below it and calls then once, when they have
// stopped, from a goroutine of the dispatcher or from this call. It does not
// wait.
func (h *Host) StopThen(pid *actor.PID, then func()) {
	process, alive := h.system.ProcessRegistry.Get(pid)
	if !alive {
		then()
		return
	}
	watcher := h.register("stopped", &watcher{then: then})
	process.SendSystemMessage(pid, &actor.Watch{Watcher: watcher})
	process.Stop(pid)
}

// Close stops all actors and waits for them. Called again it waits again.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	first := !h.closed
	h.closed = true
	roots := h.roots
	h.mu.Unlock()
	var failed []error
	for i := len(roots) - 1; i >= 0; i-- {
		failed = append(failed, h.Stop(ctx, roots[i]))
	}
	if first {
		h.children.close()
		h.tops.close()
		h.system.Shutdown()
	}
	return errors.Join(failed...)
}

// register gives a process that is not an actor an address of its own.
func (h *Host) register(prefix string, process addressed) *actor.PID {
	pid, fresh := h.system.ProcessRegistry.Add(process, prefix+h.system.ProcessRegistry.NextId())
	if !fresh {
		panic("host: the address " + pid.GetId() + " was given out twice")
	}
	process.at(h.system, pid)
	return pid
}
