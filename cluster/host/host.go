package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/eventstream"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/workers"
)

// dispatcherThroughput is how many messages an actor takes before it yields its
// processor to others.
const dispatcherThroughput = 300

// turnsIdleMax is how many goroutines of the dispatcher wait for the next actor that has
// messages.
const turnsIdleMax = 64

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

// What a host is made of, under names that need no import of protoactor.
type (
	// Dispatcher runs the turns of actors.
	Dispatcher = actor.Dispatcher
	// MailboxProducer makes the mailbox of an actor.
	MailboxProducer = actor.MailboxProducer
)

// Options are what a host is made of. Clock is required.
type Options struct {
	Clock Clock
	// Dispatcher runs the turns of all actors; nil means a goroutine for each
	// actor that has messages, some of which are kept until the host closes.
	Dispatcher Dispatcher
	// Mailbox makes the mailbox of each actor; nil means protoactor's unbounded
	// one.
	Mailbox MailboxProducer
	// Log may be nil.
	Log *zap.Logger
	// Failed is told of every top actor that was given up, from a goroutine of the
	// dispatcher; it does not block. The host goes on without that actor, so an
	// owner ends the process. May be nil.
	Failed func(error)
	// StrictSpawn refuses props that were not made by Props.
	StrictSpawn bool
}

// turns is a dispatcher with a goroutine for each actor that has messages. A turn calls
// deep, and there are many: goroutines that are kept have the stack for it.
type turns struct{ workers *workers.Workers }

// Schedule implements actor.Dispatcher.
func (t *turns) Schedule(turn func()) { t.workers.Go(turn) }

// Throughput implements actor.Dispatcher.
func (t *turns) Throughput() int { return dispatcherThroughput }

// Host is an actor system with one way to make actors. Its methods may be called
// from any goroutine.
type Host struct {
	system   *actor.ActorSystem
	log      *zap.Logger
	clock    Clock
	options  []actor.PropsOption
	children *supervisor
	guardian *supervisor
	// turns is the dispatcher unless the options have another.
	turns *turns

	mu     sync.Mutex
	closed bool
	tops   []*Top
}

// New makes a host without actors. It starts no goroutine.
func New(options Options) *Host {
	if options.Clock == nil {
		panic("host: no clock")
	}
	h := &Host{clock: options.Clock, turns: &turns{workers.New(turnsIdleMax)}}
	if options.Dispatcher == nil {
		options.Dispatcher = h.turns
	}
	if options.Mailbox == nil {
		options.Mailbox = actor.Unbounded()
	}
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	h.log = options.Log
	h.children = newSupervisor(options.Clock, options.Log, nil)
	h.guardian = newSupervisor(options.Clock, options.Log, options.Failed)
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

// newSystem makes the actor system with all of its own voices off. Its event
// stream is replaced, for the throttle that listens there for dead letters starts
// a goroutine and a ticker at the first one.
func newSystem(options Options) *actor.ActorSystem {
	log := newBridge(options.Log, options.Clock)
	system := actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(log) }),
		actor.WithDeveloperSupervisionLogging(false),
		actor.WithMetricProviders(nil),
	)
	system.EventStream = eventstream.NewEventStream()
	system.EventStream.Subscribe(func(event any) {
		if letter, ok := event.(*actor.DeadLetterEvent); ok {
			buryLetter(system, letter)
		}
	})
	shrinkRegistry(system.ProcessRegistry)
	if options.StrictSpawn {
		system.Root.WithSpawnMiddleware(refuse)
	}
	return system
}

// buryLetter answers for an actor that is gone: who asked it need not wait, and
// who wants to watch it learns its end.
func buryLetter(system *actor.ActorSystem, letter *actor.DeadLetterEvent) {
	if letter.Sender != nil {
		system.Root.Send(letter.Sender, &actor.DeadLetterResponse{})
	}
	switch m := letter.Message.(type) {
	case *actor.Watch:
		if watcher, alive := system.ProcessRegistry.Get(m.Watcher); alive {
			watcher.SendSystemMessage(m.Watcher, &actor.Terminated{Who: letter.PID, Why: actor.TerminatedReason_NotFound})
		}
	case actor.IgnoreDeadLetterLogging, actor.SystemMessage, actor.MailboxMessage, *actor.DeadLetterResponse:
	default:
		system.Logger().Info("dead letter", slog.Any("to", letter.PID), slog.Any("message", letter.Message))
	}
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

// Top is an actor without a parent, which the host stops when it closes.
type Top struct {
	// PID is where it is told things. Do not change it.
	PID     *actor.PID
	system  *actor.ActorSystem
	stopped chan struct{}
}

// Stopped is closed when the actor and all below it have stopped.
func (t *Top) Stopped() <-chan struct{} { return t.stopped }

// Stop stops the actor and all below it, and waits until they have stopped. Called
// again it waits again. The error has ClassDeadline.
func (t *Top) Stop(ctx context.Context) error {
	t.system.Root.Stop(t.PID)
	select {
	case <-t.stopped:
		return nil
	case <-ctx.Done():
		select {
		case <-t.stopped: // at the same time: what is done counts
			return nil
		default:
		}
		return records.Errorf(records.ClassDeadline, "stop actor %s: %w", t.PID.GetId(), ctx.Err())
	}
}

// Spawn starts a top actor. It returns ErrClosed, or an error when the name is
// taken.
func (h *Host) Spawn(name string, producer actor.Producer) (*Top, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("spawn %s: %w", name, ErrClosed)
	}
	// Not by the root's own SpawnNamed: with a spawn middleware it loses the guardian.
	parent := h.system.Root.Copy().WithGuardian(h.guardian)
	pid, err := actor.DefaultSpawner(h.system, name, h.Props(producer), parent)
	if err != nil {
		return nil, fmt.Errorf("spawn %s: %w", name, err)
	}
	top := &Top{PID: pid, system: h.system, stopped: make(chan struct{})}
	// Watched from the beginning: an actor that waits for its children to stop already
	// answers new watchers that it is gone.
	watcher := h.register("watcher", &watcher{then: func() { close(top.stopped) }})
	if process, alive := h.system.ProcessRegistry.Get(pid); alive {
		process.SendSystemMessage(pid, &actor.Watch{Watcher: watcher})
	} else {
		close(top.stopped)
	}
	h.tops = append(h.tops, top)
	return top, nil
}

// Close stops all actors and waits for them. Called again it waits again.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	first := !h.closed
	h.closed = true
	tops := h.tops
	h.mu.Unlock()
	var failed []error
	for _, top := range slices.Backward(tops) {
		failed = append(failed, top.Stop(ctx))
	}
	if first {
		h.children.close()
		h.guardian.close()
		h.turns.workers.Stop()
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
