package nodes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/deadline"
	"github.com/errand-run/errand/actors/run"
	"github.com/errand-run/errand/actors/shell"
	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	ranking "github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// StartsPerCore is the default of Config.StartsInFlightMax, per core: creating
// sandboxes is bound by the processor.
const StartsPerCore = 2

// Router reaches the actors, wherever they are.
type Router interface {
	actors.Router
	// Ask waits for the answer. Errors have a class; OutcomeUnknown means that the
	// actor may have the message.
	Ask(ctx context.Context, kind, identity string, message proto.Message) (proto.Message, error)
	// AskRepeatedly is Ask for a message that may be taken more than once: an owner that
	// has it and does not answer is passed over in time.
	AskRepeatedly(ctx context.Context, kind, identity string, message proto.Message) (proto.Message, error)
}

// Node is one assembled node: the actors that live here and the way to them. It
// comes up in steps, each of which waits for those before: Recover, Adopt,
// Register, Reconcile, Announce. Its methods may be called from any goroutine.
type Node struct {
	ports     Ports
	config    Config
	host      *host.Host
	directory *activation.Directory
	view      *ranking.Tracker
	// clock is nil unless somebody compares it with those of others.
	clock  *comparedClock
	uuid   string
	status atomic.Pointer[Status]

	incarnations atomic.Uint32

	mu      sync.Mutex
	target  Phase
	reached Phase
	refused error
	changed chan struct{}
	deliver func(actors.Input)
	// starting counts the creates and starts under way; loads wait until there are
	// none.
	starting int
	loads    []func()
	// leaving: Leave was called, and left: the machine has answered.
	leaving, left bool

	residents residents
}

// New assembles a node. It does nothing yet.
func New(ports Ports, config Config) (*Node, error) {
	if config.StartsInFlightMax == 0 {
		config.StartsInFlightMax = StartsPerCore * runtime.GOMAXPROCS(0)
	}
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if ports.Clock == nil || ports.Store == nil || ports.Rand == nil || ports.Journal == nil || ports.Sandboxes == nil {
		return nil, errors.New("node: clock, store, rand, journal and sandboxes must be given")
	}
	if config.Session.Lease > 0 && (ports.Leases == nil || ports.Fence == nil) {
		return nil, errors.New("node: leases and fence must be given unless the session is solo")
	}
	if ports.Log == nil {
		ports.Log = zap.NewNop()
	}
	if ports.Nodes == nil {
		ports.Nodes = onlyNode(config.ID)
	}
	if ports.Scores == nil {
		ports.Scores = ranking.NewScores(ranking.MarkLife)
	}
	n := &Node{config: config, uuid: config.UUID, changed: make(chan struct{})}
	if ports.Peers != nil {
		n.clock = &comparedClock{Clock: ports.Clock, peers: ports.Peers}
		ports.Clock = n.clock
	}
	n.ports = ports
	if n.uuid == "" {
		n.uuid = NewUUID(ports.Rand)
	}
	n.status.Store(&Status{})
	ports.Actors.Clock, ports.Actors.Log = shell.HostClock(ports.Clock), ports.Log
	n.host = host.New(ports.Actors)
	n.view = ranking.NewTracker(ports.Nodes.Alive)
	n.directory = activation.New(n.host, config.ID, n.delivery())
	if err := n.registerKinds(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return n, nil
}

// delivery is how the directory reaches other nodes, if there are any.
func (n *Node) delivery() activation.Options {
	if n.ports.Transport == nil {
		return activation.Options{}
	}
	return activation.Options{
		Transport:   n.ports.Transport,
		Ranks:       func(kind, identity string) []string { return n.view.View().Ranks(kind, identity) },
		Able:        n.able,
		Incarnation: n.ports.Rand.Uint64(),
	}
}

// Why a node does not carry actors of others.
var (
	errFenced = errors.New("the node has lost its session, and with it the store")
	errNew    = errors.New("the node has no session yet")
)

// able keeps actors away from a node that is alive and reached by all, and does not
// reach the store: there they could do nothing, and nobody else would.
func (n *Node) able() error {
	switch status := n.Status(); {
	case status.Fenced:
		return errFenced
	case status.Session == 0:
		return errNew
	default:
		return nil
	}
}

func (n *Node) registerKinds() error {
	ports := shell.Ports{Clock: n.ports.Clock, Store: n.ports.Store, Router: n.directory, Log: n.ports.Log, Perform: n.performRun}
	runs := shell.Producer(func(id string) actors.Machine {
		return run.New(id, run.Config{
			Node: n.config.ID, Keys: n.config.Keys, Writer: n.writer(), Nodes: n.ports.Nodes, Rand: n.ports.Rand,
			Loss: n.config.Session.loss(), Scores: n.ports.Scores,
		})
	}, ports)
	ports.Perform = nil
	deadlines := shell.Producer(func(shard string) actors.Machine {
		return deadline.New(shard, deadline.Config{
			Keys: n.config.Keys, Sessions: n.config.Session.Lease > 0, Node: n.config.ID, View: n.view.View,
		})
	}, ports)
	ports.Perform = n.perform
	node := shell.Producer(func(string) actors.Machine {
		return NewMachine(MachineConfig{Config: n.config, Incarnation: n.incarnations.Add(1), FreshUUID: n.uuid})
	}, ports)
	return errors.Join(
		n.directory.Register(actors.KindRun, runs),
		n.directory.Register(actors.KindDeadline, deadlines, activation.Resident),
		n.directory.Register(actors.KindNode, node, activation.Pinned),
	)
}

// writer names this node's session in the records that its actors write.
func (n *Node) writer() string {
	return n.config.ID + "/" + strconv.FormatInt(n.Status().Session, 10)
}

// performRun carries out the effects of run actors.
func (n *Node) performRun(effect actors.Effect, _ func(actors.Input)) bool {
	judge, ok := effect.(run.Judge)
	if ok {
		judge.On(n.ports.Scores)
	}
	return ok
}

// perform carries out the effects of the node actor.
func (n *Node) perform(effect actors.Effect, deliver func(actors.Input)) bool {
	switch e := effect.(type) {
	case Attach:
		n.attach(deliver)
	case LoadJournal:
		n.loadWhenQuiet(func() {
			n.ports.Journal.Load(func(content JournalContent, err error) {
				deliver(JournalLoaded{Tag: e.Tag, Content: content, Err: err})
			})
		})
	case WriteJournal:
		n.ports.Journal.Write(e.Change, func(err error) { deliver(JournalWritten{Tag: e.Tag, Err: err}) })
	case DoSandbox:
		n.doSandbox(e, deliver)
	case AbandonCreate:
		n.ports.Sandboxes.Abandon(e.Driver, e.ID)
	case Reached:
		n.note(e)
	case Show:
		n.status.Store(&e.Status)
	default:
		return n.performSession(effect, deliver)
	}
	return true
}

// doSandbox holds on to nothing of a spec, which may be large and has the environment,
// and to little of a wait, which may take very long and of which there are many.
func (n *Node) doSandbox(e DoSandbox, deliver func(actors.Input)) {
	tag, verb, driver, id := e.Tag, e.Op.Verb, e.Op.Driver, e.Op.ID
	if verb == VerbWait {
		n.ports.Sandboxes.Do(e.Op, func(result SandboxResult) {
			deliver(SandboxDone{Tag: tag, Op: SandboxOp{Verb: VerbWait, ID: id}, Result: result})
		})
		return
	}
	counts := verb == VerbCreate || verb == VerbStart
	if counts {
		n.begin()
	}
	n.ports.Sandboxes.Do(e.Op, func(result SandboxResult) {
		if counts && !result.Waiting {
			n.ended()
		}
		deliver(SandboxDone{Tag: tag, Op: SandboxOp{Verb: verb, Driver: driver, ID: id}, Result: result})
	})
}

// begin counts what must have ended before a successor of the node actor may look
// at what there is.
func (n *Node) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starting++
}

// ended is what follows begin.
func (n *Node) ended() {
	n.mu.Lock()
	var loads []func()
	if n.starting--; n.starting == 0 {
		loads, n.loads = n.loads, nil
	}
	n.mu.Unlock()
	for _, load := range loads {
		load()
	}
}

// loadWhenQuiet keeps a node actor that was restarted by its supervisor from
// taking for dead what its predecessor is just starting.
func (n *Node) loadWhenQuiet(load func()) {
	n.mu.Lock()
	if n.starting > 0 {
		n.loads = append(n.loads, load)
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	load()
}

// attach takes the way to a fresh machine and sends it to where its predecessor
// was to go.
func (n *Node) attach(deliver func(actors.Input)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deliver, n.reached, n.refused = deliver, 0, nil
	if n.target > 0 {
		deliver(Advance{To: n.target})
	}
	if n.leaving {
		deliver(Leave{})
	}
}

func (n *Node) note(reached Reached) {
	if reached.Phase == PhaseReconciling && reached.Err == nil {
		n.keepResidents()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if reached.Err != nil {
		n.refused = reached.Err
		n.ports.Log.Error("node can not go on", zap.Stringer("phase", reached.Phase), zap.Error(reached.Err))
	} else {
		n.reached = reached.Phase
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Advance asks for a phase and does not wait for it: Status tells when it is
// reached, and in Trouble what keeps the node from it.
func (n *Node) Advance(to Phase) {
	n.mu.Lock()
	first := n.target == 0
	n.target = max(n.target, to)
	if n.deliver != nil {
		n.deliver(Advance{To: to})
	}
	n.mu.Unlock()
	if first {
		n.directory.Tell(actors.KindNode, n.config.ID, &actorv1.Activate{})
	}
}

// Refused is why the node can not come to the phase that it was asked for; nil
// unless it has given that up.
func (n *Node) Refused() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused
}

// advance asks for a phase and waits until it is reached.
func (n *Node) advance(ctx context.Context, to Phase) error {
	n.Advance(to)
	for {
		n.mu.Lock()
		reached, refused, changed := n.reached, n.refused, n.changed
		n.mu.Unlock()
		if reached >= to {
			return nil
		}
		if refused != nil {
			return refused
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := ctx.Err()
			if trouble := n.Status().Trouble; trouble != "" {
				err = fmt.Errorf("%s: %w", trouble, err)
			}
			return records.Errorf(records.ClassDeadline, "node %s is not %s: %w", n.config.ID, to, err)
		}
	}
}

// Recover reads the journal and refuses one that is not this node's.
func (n *Node) Recover(ctx context.Context) error { return n.advance(ctx, PhaseRecovered) }

// Adopt finds the sandboxes that survived and takes care of them again.
func (n *Node) Adopt(ctx context.Context) error { return n.advance(ctx, PhaseAdopted) }

// Register resumes the node's session or opens a new one. It refuses a name that
// is another machine's.
func (n *Node) Register(ctx context.Context) error { return n.advance(ctx, PhaseRegistered) }

// Reconcile follows the node's assignments and activates the actors that work
// without being asked.
func (n *Node) Reconcile(ctx context.Context) error { return n.advance(ctx, PhaseReconciling) }

// Announce accepts reservations.
func (n *Node) Announce(ctx context.Context) error { return n.advance(ctx, PhaseAnnounced) }

// Router is the way to the actors.
func (n *Node) Router() Router { return n.directory }

// AskThen asks an actor and calls then once with its answer, if that ever comes. It
// does not block and then must not either; drop ends the wait.
func (n *Node) AskThen(kind, identity string, message proto.Message, then func(proto.Message, error)) (drop func()) {
	return n.directory.AskThen(kind, identity, message, then)
}

// Receive takes a packet that another node's Transport was given for this one. It
// does not block. The packet must not be changed afterwards.
func (n *Node) Receive(from string, packet *actorv1.Packet) { n.directory.Receive(from, packet) }

// Status is the latest reading of the node.
func (n *Node) Status() Status {
	status := *n.status.Load()
	if lead := n.clock.astray(); lead != 0 && status.Trouble == "" {
		status.Trouble = astrayText(lead)
	}
	return status
}

// LostScore returns the nodes that could not start what runs have brought there, as far as
// the actors of this node have met that.
func (n *Node) LostScore() []ranking.Lost { return n.ports.Scores.Lost(n.ports.Clock.Now().Mono) }

// Activations returns how many actors of each kind are active.
func (n *Node) Activations() map[string]int { return n.directory.Activations() }

// Close stops the actors and waits for them. Sandboxes go on; whoever comes next
// adopts them, and has the time that Leave was given for it. The ports stay open.
func (n *Node) Close(ctx context.Context) error {
	n.leaveResidents()
	if err := errors.Join(n.directory.Stop(ctx), n.host.Close(ctx)); err != nil {
		return fmt.Errorf("close node %s: %w", n.config.ID, err)
	}
	return nil
}

// onlyNode is the presence view of a node that is alone.
type onlyNode string

func (n onlyNode) Candidates() []actors.Candidate {
	return []actors.Candidate{{Node: string(n), Score: 1}}
}

func (n onlyNode) Alive() []string { return []string{string(n)} }

// NewUUID draws a random UUID (version 4).
func NewUUID(rand actors.Rand) string {
	var b [16]byte
	rand.Fill(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
