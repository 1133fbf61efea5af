package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// Ledger is what has really happened, sorted by run and by machine. The record of a
// run is the store's last; commands are those that ran, whatever the record says.
type Ledger struct {
	config Config
	now    time.Duration
	epoch  int64
	runs   map[string]*Run
	order  []*Run
	live   []*Run
	// changed are the runs that the commit being observed has touched, in order, and
	// broken are the keys of it that hold no record.
	changed  []*Run
	broken   []string
	machines map[string]*machine
	// registered are the nodes that have opened a session with the commit being observed.
	registered []string
	// world is what befalls no machine in particular.
	world machine
	// steps counts the wall clocks that are wrong, steppedAt is when one last was set
	// right.
	steps     int
	steppedAt time.Duration
	// forgot says that some machine has lost what its journal held.
	forgot bool
	// restoredAt is when the store was last replaced by an older copy, raw says that one
	// was without its procedure.
	restoredAt time.Duration
	raw        bool
}

// Run is what has happened of one run.
type Run struct {
	ID string
	// Before and Record are the record before and after the last commit that touched
	// the run; nil when there was none.
	Before, Record *recordv1.Run
	// Live and Gone tell whether the run's live key and tombstone exist.
	Live, Gone bool
	// Assignments are the run's assignments that exist, sorted by node.
	Assignments []Assignment
	// Commands are those that were started for the run, in order.
	Commands []*Command
	// Former are those of a run of the same name that was lost with a restore.
	Former []*Command
	// Created is when the record was created, Queued when the current attempt began to
	// wait, Wished when the wish in the record came there, Left when a placement was
	// last given up, all in true time.
	Created, Queued, Wished, Left time.Duration
	// LeftBy is the node whose actor gave that placement up.
	LeftBy string
	// Misdated tells that the attempt began to wait when some wall clock was wrong, or
	// had been while its client asked: its bounds count from nobody knows when.
	Misdated bool
	// unknown is the last placement of whose start its node was told that nobody knows it.
	unknown placed
	// Deleted is how often the record was deleted.
	Deleted int
	// Rewritten and Forgotten tell that the last commit has put the record, and that it
	// has taken the tombstone away.
	Rewritten, Forgotten bool
	liveIndex            int
	tokens               []grant
	// tokenMax is the highest token of a command so far, tokenBefore that of all but
	// the last.
	tokenMax, tokenBefore uint64
}

// Assignment is one key below assignments/.
type Assignment struct {
	Node               string
	Attempt, Placement int32
	Create             int64
}

// placed is a placement, and when something befell it.
type placed struct {
	attempt, placement int32
	at                 time.Duration
}

// Belated tells whether a command was started only after its node had been told that
// nobody knows whether it would be.
func (r *Run) Belated(c *Command) bool {
	return r.unknown.attempt == c.Attempt && r.unknown.placement == c.Placement && c.Started > r.unknown.at
}

// grant is the token of a placement.
type grant struct {
	attempt, placement int32
	token              uint64
}

// Command is one command that was started.
type Command struct {
	Node               string
	Attempt, Placement int32
	Sandbox            string
	Token              uint64
	Started            time.Duration
	// Alive is true until its last process has ended: then at Ended, with Code, by
	// Cause, as history.Command has them.
	Alive bool
	Ended time.Duration
	Code  int32
	Cause string
	// TimeoutMs and GraceMs are those of the record at the start; 0 if it was absent.
	TimeoutMs, GraceMs int64
}

func newLedger(config Config) *Ledger {
	return &Ledger{config: config, runs: map[string]*Run{}, machines: map[string]*machine{}}
}

// Run returns what has happened of a run, nil if nothing has.
func (l *Ledger) Run(id string) *Run { return l.runs[id] }

// Runs returns all runs in the order in which they came up. It must not be changed.
func (l *Ledger) Runs() []*Run { return l.order }

// Changed returns the runs that the commit being observed has touched.
func (l *Ledger) Changed() []*Run { return l.changed }

// Now is the true time of the last event or step.
func (l *Ledger) Now() time.Duration { return l.now }

func (l *Ledger) run(id string) *Run {
	r, ok := l.runs[id]
	if !ok {
		r = &Run{ID: id, liveIndex: -1}
		l.runs[id] = r
		l.order = append(l.order, r)
	}
	return r
}

func (l *Ledger) apply(e history.Event) {
	l.now = e.At
	switch e.Kind {
	case history.KindCommand:
		if c, ok := e.Detail.(history.Command); ok {
			l.command(e, c)
		}
	case history.KindCommit:
		if c, ok := e.Detail.(history.Commit); ok {
			l.commit(c)
		}
	case history.KindSandbox:
		if _, ok := e.Detail.(history.StartUnknown); ok {
			l.run(e.Run).unknown = placed{e.Attempt, e.Placement, e.At}
		}
	case history.KindRestore:
		if restore, ok := e.Detail.(history.Restore); ok {
			l.restore(restore)
		}
	case history.KindFault:
		if f, ok := e.Detail.(history.Fault); ok {
			l.fault(e, f)
		}
	case history.KindDaemon, history.KindMachine:
		m := l.machine(e.Node)
		m.disturbed, m.disturbedAt = true, e.At
		if e.Kind == history.KindMachine {
			m.pause(e)
		} else {
			m.launchedAt = e.At
		}
	default:
	}
}

func (l *Ledger) command(e history.Event, c history.Command) {
	r := l.run(e.Run)
	if c.Started {
		started := &Command{
			Node: e.Node, Attempt: e.Attempt, Placement: e.Placement, Sandbox: c.Sandbox, Token: c.Token, Started: e.At, Alive: true,
			TimeoutMs: r.Record.GetSpec().GetTimeoutMs(), GraceMs: r.Record.GetSpec().GetStopGraceMs(),
		}
		r.Commands = append(r.Commands, started)
		l.machine(e.Node).commands++
		r.tokenBefore, r.tokenMax = r.tokenMax, max(r.tokenMax, c.Token)
		return
	}
	for _, known := range slices.Backward(r.Commands) {
		if known.Alive && known.Node == e.Node && known.Attempt == e.Attempt && known.Placement == e.Placement {
			known.Alive, known.Ended, known.Code, known.Cause = false, e.At, c.Code, c.Cause
			l.machine(e.Node).commands--
			return
		}
	}
}

// Alive returns the run's commands of which a process is left.
func (r *Run) Alive() []*Command {
	var alive []*Command
	for _, c := range r.Commands {
		if c.Alive {
			alive = append(alive, c)
		}
	}
	return alive
}

// CommandOf returns the last command of a placement, nil if none was started.
func (r *Run) CommandOf(attempt, placement int32) *Command {
	for _, c := range slices.Backward(r.Commands) {
		if c.Attempt == attempt && c.Placement == placement {
			return c
		}
	}
	return nil
}

// Terminal tells whether the record says that the run has ended.
func (r *Run) Terminal() bool { return r.Record != nil && records.Terminal(r.Record.GetStatus()) }

// Current tells whether the record holds this placement.
func (r *Run) Current(attempt, placement int32) bool {
	p := r.Record.GetPlacement()
	return p != nil && r.Record.GetAttempt() == attempt && p.GetNumber() == placement
}

func (l *Ledger) commit(c history.Commit) {
	l.changed, l.broken, l.registered = l.changed[:0], nil, nil
	for _, change := range c.Changes {
		l.place(change)
		l.hear(c.Revision, change)
	}
	for _, r := range l.changed {
		l.settle(r)
	}
}

// place puts a change of a key where it belongs.
func (l *Ledger) place(change history.Change) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(change.Key, l.config.Keys.Root), "/")
	switch kind {
	case "runs":
		l.record(change)
	case "live":
		l.touch(records.LastPart(rest)).Live = change.After != nil
	case "gone":
		r := l.touch(records.LastPart(rest))
		r.Forgotten = r.Gone && change.After == nil
		r.Gone = change.After != nil
	case "assignments":
		l.assignment(rest, change)
	case "meta":
		cluster := &recordv1.Cluster{}
		if change.Key == l.config.Keys.Cluster() && change.After != nil && records.Decode(*change.After, cluster) == nil {
			l.epoch = cluster.GetEpoch()
		}
	}
}

func (l *Ledger) touch(id string) *Run {
	r := l.run(id)
	if !slices.Contains(l.changed, r) {
		r.Before, r.Rewritten, r.Forgotten = r.Record, false, false
		l.changed = append(l.changed, r)
	}
	return r
}

func (l *Ledger) record(change history.Change) {
	r := l.touch(records.LastPart(change.Key))
	r.Rewritten = true
	if change.After == nil {
		r.Record = nil
		return
	}
	record, err := records.DecodeRun(*change.After)
	if err != nil {
		l.broken = append(l.broken, change.Key)
		return
	}
	r.Record = record
}

func (l *Ledger) assignment(rest string, change history.Change) {
	node, id, _ := strings.Cut(rest, "/")
	r := l.touch(id)
	r.Assignments = slices.DeleteFunc(r.Assignments, func(a Assignment) bool { return a.Node == node })
	if change.After == nil {
		return
	}
	stored := &recordv1.Assignment{}
	if err := records.Decode(*change.After, stored); err != nil {
		l.broken = append(l.broken, change.Key)
		return
	}
	a := Assignment{Node: node, Attempt: stored.GetAttempt(), Placement: stored.GetPlacement(), Create: change.After.Create}
	r.Assignments = append(r.Assignments, a)
	slices.SortFunc(r.Assignments, func(a, b Assignment) int { return strings.Compare(a.Node, b.Node) })
	if change.Before == nil {
		token := records.FencingTokenOf(l.epoch, a.Create)
		r.tokens = append(r.tokens, grant{a.Attempt, a.Placement, token})
	}
}

// settle notes what a commit means for a run, when all of it is known.
func (l *Ledger) settle(r *Run) {
	if before, after := r.Before.GetPlacement(), r.Record.GetPlacement(); before != nil && (after == nil || before.GetNumber() != after.GetNumber()) {
		r.Left = l.now
		r.LeftBy, _, _ = strings.Cut(r.Record.GetWriter(), "/")
	}
	switch {
	case r.Before == nil && r.Record != nil:
		r.Created, r.Queued, r.Misdated = l.now, l.now, l.misdates()
		// A name that is used again, when its tombstone is gone, begins anew.
		for _, c := range r.Commands {
			if l.restoredAt > 0 && !c.Alive {
				r.Former = append(r.Former, c)
			}
		}
		r.Commands, r.tokens = r.Alive(), nil
	case r.Before != nil && r.Record == nil:
		r.Deleted++
	case r.Before.GetQueuedAt() != r.Record.GetQueuedAt():
		r.Queued, r.Misdated = l.now, l.misdates()
	case r.Before.GetAttempt() != r.Record.GetAttempt():
		r.Queued, r.Misdated = l.now+leastBackoff(r.Record), l.misdates()
	}
	if r.Before.GetWish().GetReason() != r.Record.GetWish().GetReason() {
		r.Wished = l.now
	}
	l.index(r)
}

// index keeps a run among the live ones while it is.
func (l *Ledger) index(r *Run) {
	isLive := r.Record != nil && !r.Terminal()
	switch {
	case isLive && r.liveIndex < 0:
		r.liveIndex = len(l.live)
		l.live = append(l.live, r)
	case !isLive && r.liveIndex >= 0:
		last := l.live[len(l.live)-1]
		l.live[r.liveIndex], last.liveIndex = last, r.liveIndex
		l.live = l.live[:len(l.live)-1]
		r.liveIndex = -1
	}
}

// askedMax is how long before its creation a client may have asked for a run.
const askedMax = time.Minute

// misdates tells whether what is queued now may bear the time of a wrong clock.
func (l *Ledger) misdates() bool {
	return l.steps > 0 || l.steppedAt > 0 && l.now-l.steppedAt <= askedMax
}

func (c *Command) String() string {
	return fmt.Sprintf("the command of attempt %d placement %d on %s (started at %v)", c.Attempt, c.Placement, c.Node, c.Started)
}
