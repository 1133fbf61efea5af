package nodes

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Limits and waits of the node.
const (
	// ReservationHold is how long a yes to a Reserve keeps its room.
	ReservationHold = 10 * time.Second
	// EntriesMax bounds the placements that a node knows, ended ones included that
	// wait for an acknowledgement or their removal.
	EntriesMax = 200_000
	// StartingSyncMax is how long it may take to journal "starting"; beyond it the
	// placement is given up, since the world may have moved on meanwhile.
	StartingSyncMax = time.Second
	// FenceSyncMax is how long the kill of a fenced sandbox waits for the journal to
	// hold why. After that it is killed all the same: the fence itself remembers.
	FenceSyncMax = time.Second
	// FenceKillPause is the longest pause between two kills of a fenced sandbox.
	FenceKillPause = 500 * time.Millisecond
	// LastWordMax is how long a create that the start deadline breaks off may take to
	// say what held it up.
	LastWordMax = 500 * time.Millisecond

	// StartSlotPatience is how long a sandbox under creation counts against the starts in
	// flight, unless its driver says before that it waits for the network and for no core.
	StartSlotPatience = 5 * time.Second
	// LightStartsMax bounds the creates and starts under way of light drivers.
	LightStartsMax = 256
	// CreatesMax bounds all creations under way of heavy drivers, those that gave their
	// slot back included. They wait for registries: so many that few nodes have room for
	// them, lest one that is silent keeps runs waiting that want nothing of it.
	CreatesMax = 1024
	// RetryMin and RetryMax bound the doubling wait between tries and reports.
	RetryMin = 200 * time.Millisecond
	RetryMax = 5 * time.Second
	// QuarantineHold is how long what nobody knows is kept.
	QuarantineHold = 24 * time.Hour
	// OrphanConfirm is the time between the two looks at the run of a sandbox that
	// the journal does not know.
	OrphanConfirm = time.Minute
	// ExitAfterKillMax is how long the exit of a sandbox may stay unseen when its
	// last process is known to be gone.
	ExitAfterKillMax = 30 * time.Second
	// TimeoutStep bounds one wait for the next execution timeout: timers count on a clock
	// that stands still while the machine is suspended, the timeouts do not.
	TimeoutStep = time.Minute
	// messageBytesMax bounds a cause that is put into a record.
	messageBytesMax = 512
)

// MachineConfig is what a Machine is made of.
type MachineConfig struct {
	Config
	// Incarnation differs between the machines of one process, so that a late result
	// for one is not taken by the next.
	Incarnation uint32
	// FreshUUID is the node's uuid if the journal has none yet.
	FreshUUID string
}

// Machine is the node actor: see the package documentation. It is an
// actors.Machine of kind "node" whose identity is the node's id.
type Machine struct {
	config MachineConfig
	keys   records.Keys

	now actors.Instant
	out []actors.Effect
	tag uint64

	loads     map[uint64]func(JournalContent, error)
	writes    map[uint64]func(error)
	commits   map[uint64]func(records.Result)
	sandboxes map[uint64]func(SandboxResult)
	leases    map[uint64]func(actors.LeaseResult)
	fences    map[uint64]func(FenceState, bool)
	timers    map[string]func()

	phase    Phase
	target   Phase
	climbing bool
	refused  error

	meta *recordv1.JournalMeta
	// fresh means that there is no journal yet.
	fresh bool
	// cluster is the id of the cluster in the store.
	cluster  string
	session  int64
	tenure   tenure
	epoch    int64
	draining bool
	reverted bool
	// removed is the word by which this machine is dead, until the next session.
	removed *recordv1.Removal
	// leaving: the daemon is to end, and left: it may.
	leaving, left bool
	// reopening: a session is to follow one of solo whose key was taken away.
	reopening bool
	era       era

	// placements has all, by their sandboxes, ofRun the first of each run. Those at rest
	// are nothing but their entry: find, placementOf, ofTheRun and everyone rouse them.
	placements map[string]*placement
	ofRun      map[string]*placement
	// restless are those that may come to rest at the end of the turn; encoding is where
	// their entries are encoded.
	restless     []*placement
	encoding     []byte
	starts       starts
	held         []heldStart
	timeouts     timeouts
	usage        usage
	reservations map[PlacementKey]*reservation
	assignments  records.Mirror
	ahead        []*placement
	acknowledged map[string]*placement
	orphans      map[string]*orphan
	// strays are the sandboxes of each driver that the last sweep found and could not
	// account for.
	strays map[string]map[string]bool
	// removals are those of sandboxes that could not be removed so far, by their ids.
	removals  map[string]*removal
	whenEmpty func()

	counts [classCount]int64
	// unfenced counts what occupies the node and goes on when its session ends.
	unfenced   int64
	journalErr error
	trouble    string
	// logsIncomplete and logsUnwritten are those of Status.
	logsIncomplete, logsUnwritten int64
	shown                         Status
}

// NewMachine makes the node actor of one activation.
func NewMachine(config MachineConfig) *Machine {
	return &Machine{
		config: config, keys: config.Keys,
		tag:          uint64(config.Incarnation) << 40,
		starts:       newStarts(config.StartsInFlightMax),
		loads:        map[uint64]func(JournalContent, error){},
		writes:       map[uint64]func(error){},
		commits:      map[uint64]func(records.Result){},
		sandboxes:    map[uint64]func(SandboxResult){},
		leases:       map[uint64]func(actors.LeaseResult){},
		fences:       map[uint64]func(FenceState, bool){},
		timers:       map[string]func(){},
		placements:   map[string]*placement{},
		ofRun:        map[string]*placement{},
		reservations: map[PlacementKey]*reservation{},
		acknowledged: map[string]*placement{},
		orphans:      map[string]*orphan{},
		restless:     make([]*placement, 0, restlessRoom),
		strays:       map[string]map[string]bool{},
		removals:     map[string]*removal{},
	}
}

// Step takes one input. Results that nobody waits for any more are dropped.
func (m *Machine) Step(now actors.Instant, in actors.Input) []actors.Effect {
	m.now, m.out = now, nil
	m.checkFence()
	switch in := in.(type) {
	case actors.Activated:
		m.emit(Attach{})
	case Advance:
		m.target = max(m.target, in.To)
		m.climb()
	case Leave:
		m.leave()
	case JournalLoaded:
		if then, ok := take(m.loads, in.Tag); ok {
			then(in.Content, in.Err)
		}
	case JournalWritten:
		if then, ok := take(m.writes, in.Tag); ok {
			then(in.Err)
		}
	case actors.Committed:
		if then, ok := take(m.commits, in.Tag); ok {
			then(in.Result)
		}
	case SandboxDone:
		m.sandboxDone(in)
	case LeaseCalled:
		if then, ok := take(m.leases, in.Tag); ok {
			then(in.Result)
		}
	case FenceRead:
		if then, ok := take(m.fences, in.Tag); ok {
			then(in.State, in.OK)
		}
	case actors.TimerFired:
		if then, ok := take(m.timers, in.Name); ok {
			then()
		}
	case actors.Followed:
		m.followed(in)
	case actors.Received:
		m.received(in)
	}
	m.restPerhaps()
	m.show()
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) received(in actors.Received) {
	switch message := in.Message.(type) {
	case *actorv1.Reserve:
		m.reserve(message, in.From)
	case *actorv1.Start:
		m.toldToStart(message)
	case *actorv1.Stop:
		m.toldToStop(message)
	case *actorv1.Ack:
		m.ack(message)
	case *actorv1.Describe:
		m.tellStep(message, in.From)
	case *actorv1.Activate:
	}
}

func take[K comparable, V any](from map[K]V, key K) (V, bool) {
	value, ok := from[key]
	delete(from, key)
	return value, ok
}

func (m *Machine) emit(effect actors.Effect) { m.out = append(m.out, effect) }

func (m *Machine) nextTag() uint64 {
	m.tag++
	return m.tag
}

func (m *Machine) commit(txn records.Txn, then func(records.Result)) {
	tag := m.nextTag()
	m.commits[tag] = then
	m.emit(actors.Commit{Tag: tag, Txn: txn})
}

func (m *Machine) do(op SandboxOp, then func(SandboxResult)) {
	tag := m.nextTag()
	m.sandboxes[tag] = then
	m.emit(DoSandbox{Tag: tag, Op: op})
}

// sandboxDone takes the result of an operation, or that it waits.
func (m *Machine) sandboxDone(in SandboxDone) {
	if in.Op.Verb == VerbWait {
		m.waited(in)
		return
	}
	then, ok := m.sandboxes[in.Tag]
	if !in.Result.Waiting {
		delete(m.sandboxes, in.Tag)
	}
	if ok {
		then(in.Result)
	}
}

// after replaces the timer of that name.
func (m *Machine) after(name string, d time.Duration, then func()) {
	m.timers[name] = then
	m.emit(actors.SetTimer{Name: name, After: max(d, 0)})
}

func (m *Machine) cancel(name string) {
	if _, ok := take(m.timers, name); ok {
		m.emit(actors.SetTimer{Name: name, After: -1})
	}
}

// tellPast tells a run's actor, past some of the nodes that it belongs on.
func (m *Machine) tellPast(past int, run string, message proto.Message) {
	m.emit(actors.Tell{Kind: actors.KindRun, Identity: run, Message: message, Past: past})
}

func (m *Machine) log(level actors.LogLevel, text string, fields ...any) {
	m.emit(actors.Log{Level: level, Text: text, Fields: fields})
}

// warn says that a try has failed: the first one, and then whenever their number has
// doubled. A runtime that is away for hours does not fill the log with its sandboxes.
func (m *Machine) warn(try int, text string, fields ...any) {
	if try&(try+1) == 0 {
		m.log(actors.LogWarn, text, append(fields, "tries", try+1)...)
	}
}

// backoff returns the wait before try n, from 0.
func backoff(n int) time.Duration {
	return min(RetryMin<<min(n, 10), RetryMax)
}

// clip makes a text fit for a record.
func clip(text string) string { return records.Clip(text, messageBytesMax) }

// sortedKeys makes an order out of a map wherever effects follow from it.
func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

// show publishes the status if it has changed.
func (m *Machine) show() {
	status := Status{
		Phase: m.phase, UUID: m.meta.GetUuid(), Session: m.session, Draining: m.draining, Fenced: m.session != 0 && m.fenced(),
		Starting: m.counts[classStarting], Sandboxes: m.counts[classStarting] + m.counts[classRunning],
		Unacknowledged: m.counts[classReporting],
		Quarantined:    m.counts[classQuarantined] + int64(len(m.orphans)),
		LogsIncomplete: m.logsIncomplete, LogsUnwritten: m.logsUnwritten,
		Trouble: m.trouble,
	}
	if m.journalErr != nil {
		status.Trouble = "write journal: " + m.journalErr.Error()
	}
	if status != m.shown {
		m.shown = status
		m.emit(Show{Status: status})
	}
}
