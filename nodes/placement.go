package nodes

import (
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// placement is one placement that the node knows. There may be a hundred thousand, most
// of which only run: see rest.
type placement struct {
	key PlacementKey
	id  string
	// next is the run's placement that came after this one.
	next *placement
	// doing is nil while it is at rest.
	*doing
	// resting is the entry of one at rest, encoded, without what it need not say.
	resting string

	// timeoutAt is when the execution timeout ends, on the boottime clock; timeoutSeat its
	// place among those that are watched, from 1, or 0.
	timeoutAt   time.Duration
	timeoutSeat int32
	// reminders counts how often the run was told again of the start.
	reminders int32
	// waitTag is that of the wait for its end that is under way, or 0.
	waitTag   uint64
	class     class
	counted   bool
	recovered bool
}

// doing is what is known of a placement that is not at rest. Its entry is what the
// journal holds or is about to hold; all else is lost in a crash and made up again.
type doing struct {
	entry *recordv1.JournalEntry
	// assignment is nil once the command runs.
	assignment *recordv1.Assignment
	lane       *lane
	written    []func()
	// creatingFrom and syncingFrom are on the monotonic clock.
	creatingFrom time.Duration
	syncingFrom  time.Duration
	mayExist     bool
	startCalled  bool
	waiting      bool
	passing
}

// passing is what has its zero value, but for an unseen end, before and after something
// is done with a placement: one of which anything else is known does not rest.
type passing struct {
	// The journal: at most one write is under way, the next takes all that has
	// changed meanwhile.
	writing bool

	// The start.
	queued   bool
	slot     bool
	creating bool
	// starting means that the driver has been asked to start it and has not answered.
	starting bool
	// held means that nobody has been told that it runs, nor the journal.
	held      bool
	withdrawn *recordv1.Void
	// overdue is set when the start deadline passed while it was being created: what
	// is told unless the create itself says why.
	overdue *recordv1.Void

	// The stop. A wish that comes while the start is under way waits for it.
	wish      *stopWish
	stopping  bool
	killing   bool
	signals   int
	delivered bool
	// unsure means that it is not known of a signal whether it reached the process;
	// killed, that what was left was ended by our KILL.
	unsure bool
	killed bool

	// The end.
	// waitTry is how often it has been waited for in vain, expected that the wait is bounded.
	waitTry  int
	expected bool
	// finished means that the driver said so when nobody had fenced the session.
	finished bool
	observed *recordv1.Exit
	// seen is the end as the driver has told it, unseen before it has. It is only read.
	seen *sandbox.Exit
	// emptying means that what is left of it is being killed; emptied, that nothing is.
	emptying bool
	emptied  bool
	// durable means that the end is on a disk, the driver's own perhaps; journaled, that
	// it is in the journal; flushed, that nothing is left of the command and its log is
	// as complete as it gets.
	durable   bool
	journaled bool
	flushed   bool
	reporting bool
	// reports counts the reports since the wait between them was last short, told all of
	// them.
	reports, told int
	acked         bool
	ackCommit     int64
	quarantined   bool
	tearing       bool
	// foreign means that the sandbox of its name is another's, which is in quarantine.
	foreign  bool
	tornDown bool
}

// unseen is the end of a placement that no driver has told.
var unseen sandbox.Exit

// class sorts placements for accounting.
type class uint8

const (
	// classStarting and classRunning occupy the node.
	classStarting class = iota
	classRunning
	// classReporting has an outcome that is not acknowledged.
	classReporting
	classQuarantined
	// classDone waits for its removal or for the watch.
	classDone
	classCount
)

func (p *placement) classify() class {
	switch p.entry.GetState() {
	case recordv1.JournalState_JOURNAL_STATE_ACCEPTED, recordv1.JournalState_JOURNAL_STATE_STARTING:
		return classStarting
	case recordv1.JournalState_JOURNAL_STATE_STARTED:
		return classRunning
	case recordv1.JournalState_JOURNAL_STATE_EXITED:
		if !p.emptied {
			return classRunning
		}
	default:
	}
	switch {
	case p.quarantined:
		return classQuarantined
	case p.acked:
		return classDone
	default:
		return classReporting
	}
}

func (c class) occupies() bool { return c == classStarting || c == classRunning }

// ended tells whether the outcome is decided.
func (p *placement) ended() bool { return terminalEntry(p.entry) }

func (p *placement) started() bool {
	return p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_STARTED
}

// usage is what occupying placements and reservations take.
type usage struct {
	count, cpuMillis, memoryBytes int64
}

func (u *usage) add(sign int64, cpuMillis, memoryBytes int64) {
	u.count += sign
	u.cpuMillis += sign * cpuMillis
	u.memoryBytes += sign * memoryBytes
}

// add makes a placement known.
func (m *Machine) add(entry *recordv1.JournalEntry, assignment *recordv1.Assignment) *placement {
	key := KeyOf(entry)
	// One text serves all who name the sandbox.
	id := records.SandboxID(key.Run, key.Attempt, key.Placement)
	if entry.GetSandbox() == id {
		id = entry.GetSandbox()
	}
	m.share(entry)
	p := &placement{key: key, id: id, doing: &doing{entry: entry, assignment: assignment, lane: m.laneOf(entry.GetDriver())}}
	p.seen, p.tornDown, p.emptied = &unseen, entry.GetTornDown(), entry.GetTornDown()
	// A create that a crash cut short may have left something.
	_, p.mayExist = m.orphans[p.id]
	m.placements[p.id] = p
	m.link(p)
	if entry.GetCommit() > m.assignments.Revision() {
		m.ahead = append(m.ahead, p)
	}
	m.settle(p)
	return p
}

func (m *Machine) drop(p *placement) {
	delete(m.placements, p.id)
	delete(m.acknowledged, p.id)
	m.unlink(p)
	m.counts[p.class]--
	p.counted = false
}

// settle brings the accounts up to date after a change of p, and lets go on what
// waited for it.
func (m *Machine) settle(p *placement) {
	if m.placements[p.id] != p {
		return
	}
	before, counted := p.class, p.counted
	p.class, p.counted = p.classify(), true
	if counted && before == p.class {
		return
	}
	if counted {
		m.counts[before]--
	}
	m.counts[p.class]++
	held, holds := counted && before.occupies(), p.class.occupies()
	switch {
	case holds && !held:
		m.usage.add(1, p.entry.GetCpuMillis(), p.entry.GetMemoryBytes())
		m.countUnfenced(p, 1)
	case held && !holds:
		m.usage.add(-1, p.entry.GetCpuMillis(), p.entry.GetMemoryBytes())
		m.countUnfenced(p, -1)
		m.releaseSlot(p)
		m.emptyPerhaps()
		m.pump()
	}
}

// countUnfenced counts what occupies the node and may outlive its session.
func (m *Machine) countUnfenced(p *placement, by int64) {
	if p.entry.GetUnfenced() {
		m.unfenced += by
	}
}

// emptyPerhaps tells whoever waits for it that no process of ours is left but those that
// outlive their session, and that the journal holds how each has ended: in the next
// session a kill of this one's fence would pass for an end of the command's own after a
// crash (G7).
func (m *Machine) emptyPerhaps() {
	if m.whenEmpty == nil || m.starts.creating() > 0 || m.crowded() {
		return
	}
	for _, p := range m.placements { //errand:unordered only whether there is one matters
		if p.doing != nil && p.writing && !p.journaled && p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_EXITED {
			return
		}
	}
	for _, o := range m.orphans {
		if !o.killed {
			return
		}
	}
	then := m.whenEmpty
	m.whenEmpty = nil
	then()
}
