package run

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// world plays one run: a store, two activations of its actor (of which one is
// always stale), two nodes, and a network that loses, doubles and delays.
type world struct {
	t     *rapid.T
	keys  records.Keys
	store *memory
	now   actors.Instant
	seed  uint64

	actors [2]*activation
	nodes  []*node
	// toRun and toNode are messages on their way.
	toRun  []proto.Message
	toNode []addressed
	// landing are transactions whose sender has been told "unknown" and which may
	// still be carried out.
	landing []records.Txn

	// history has the record after each revision that changed it, oldest first.
	history     []version
	assignments map[int64]*recordv1.Assignment
	canceled    bool
	console     bool
	loss        Loss
	retries     int32

	// owner is what an activation has last said of the run; said has what the nodes and
	// the engine have said of themselves, failed whether a transaction was not answered.
	owner  *actorv1.Explained
	said   map[string]bool
	failed bool
}

type version struct {
	revision int64
	run      *recordv1.Run
}

type addressed struct {
	node    string
	message proto.Message
}

type activation struct {
	machine *Machine
	timers  map[string]time.Duration
	commits []actors.Commit
}

func newWorld(t *rapid.T) *world { return newWorldOf(t, Loss{}) }

func newWorldOf(t *rapid.T, loss Loss) *world {
	w := &world{
		t: t, loss: loss, keys: records.Keys{Root: "/errand/", Shards: 4}, store: newMemory(), now: at(0),
		assignments: map[int64]*recordv1.Assignment{}, said: map[string]bool{},
	}
	w.store.written = w.check
	for i := range 2 {
		n := &node{world: w, name: fmt.Sprintf("n%d", i+1), journal: map[slot]*entry{}, goneAt: map[int64]time.Duration{}}
		w.nodes = append(w.nodes, n)
		w.store.txn(w.keys.Register(n.name, &recordv1.NodeSession{}, 0, 0, &recordv1.NodeInfo{}))
		n.session = w.store.revision
	}
	run := newRun()
	run.Spec.StartDeadlineMs, run.Spec.TimeoutMs, run.Spec.StopGraceMs = 20_000, 5_000, 1_000
	if rapid.Bool().Draw(t, "tries again") {
		w.retries = rapid.Int32Range(0, 3).Draw(t, "retries")
		run.Spec.Retry = &recordv1.Retry{
			Retries: w.retries, BackoffMs: 500, BackoffMaxMs: 2_000, JitterPercent: 20,
			OnNodeLoss: rapid.SampledFrom([]recordv1.OnNodeLoss{
				recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL, recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY,
			}).Draw(t, "on loss"),
		}
	} else if w.console = rapid.Bool().Draw(t, "console"); w.console {
		run.Trigger, run.Spec.Stdin = recordv1.Trigger_TRIGGER_CONSOLE, true
		run.Spec.TimeoutMs = 60_000
	}
	w.store.txn(w.keys.Create(run, run.GetQueuedAt()+10_000))
	for i := range w.actors {
		w.activate(i)
	}
	return w
}

// Candidates, Uint64 and Fill make the world the ports of its machines.
func (w *world) Candidates() []actors.Candidate {
	return []actors.Candidate{{Node: "n1"}, {Node: "n2"}}
}

func (w *world) Uint64() uint64 { w.seed++; return w.seed }

func (w *world) Fill(b []byte) {
	for i := range b {
		b[i] = byte(w.Uint64())
	}
}

func (w *world) activate(i int) {
	cfg := Config{Keys: w.keys, Writer: "session", Nodes: w, Rand: w, Loss: w.loss}
	w.actors[i] = &activation{machine: New(testID, cfg), timers: map[string]time.Duration{}}
	w.step(i, actors.Activated{})
}

func (w *world) step(i int, in actors.Input) {
	a := w.actors[i]
	effects := a.machine.Step(w.now, in)
	if len(a.machine.pending) > pendingMax+2 {
		w.t.Fatalf("%d requests are pending", len(a.machine.pending))
	}
	for _, effect := range effects {
		switch e := effect.(type) {
		case actors.Commit:
			a.commits = append(a.commits, e)
			if len(a.commits) > 1 {
				w.t.Fatal("two transactions in flight")
			}
		case actors.SetTimer:
			delete(a.timers, e.Name)
			if e.After >= 0 {
				a.timers[e.Name] = w.now.Mono + e.After
			}
		case actors.Tell:
			w.told(e)
		case actors.Answer:
			if said, ok := e.Message.(*actorv1.Explained); ok {
				w.owner = said
				continue
			}
			w.answered(e.Message.(*actorv1.Canceled))
		case actors.Passivate:
			if len(a.commits) > 0 {
				w.t.Fatal("passivates with a transaction in flight")
			}
			// The directory may refuse; both must do.
			if w.store.revision%2 == 0 {
				w.activate(i)
				return
			}
		}
	}
}

func (w *world) told(e actors.Tell) {
	if e.Kind != actors.KindNode {
		return
	}
	switch m := e.Message.(type) {
	case *actorv1.Start:
		if !proto.Equal(w.assignments[m.GetCommit()], m.GetAssignment()) {
			w.t.Fatalf("Start{%d} of what was not committed there: %v", m.GetCommit(), m.GetAssignment())
		}
	case *actorv1.Ack:
		run := w.runAt(m.GetCommit())
		if m.GetUnknown() || run == nil || current(run, m.GetAttempt(), m.GetPlacement(), e.Identity) ||
			ahead(run, m.GetAttempt(), m.GetPlacement()) {
			w.t.Fatalf("%v acknowledges what %d does not hold: %v", m, m.GetCommit(), run)
		}
	}
	w.toNode = append(w.toNode, addressed{e.Identity, e.Message})
}

func (w *world) answered(answer *actorv1.Canceled) {
	run := w.runAt(answer.GetRevision())
	wished := run.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED
	switch answer.GetOutcome() {
	case actorv1.Canceled_OUTCOME_RECORDED:
		if !wished && run.GetStatus() != recordv1.Status_STATUS_CANCELED {
			w.t.Fatalf("a cancel was answered that is not recorded: %v", run)
		}
	case actorv1.Canceled_OUTCOME_TERMINAL:
		if !records.Terminal(run.GetStatus()) {
			w.t.Fatalf("answered as terminal: %v", run)
		}
	case actorv1.Canceled_OUTCOME_NOT_FOUND:
		w.t.Fatal("the run exists")
	default:
	}
}

func (w *world) run() *recordv1.Run { return w.history[len(w.history)-1].run }

func (w *world) runAt(revision int64) *recordv1.Run {
	var run *recordv1.Run
	for _, v := range w.history {
		if v.revision <= revision {
			run = v.run
		}
	}
	return run
}

// commit takes the outstanding transaction of an activation to an end.
func (w *world) commit(i, fate int) {
	a := w.actors[i]
	if len(a.commits) == 0 {
		return
	}
	c := a.commits[0]
	a.commits = nil
	result := records.Result{}
	w.failed = w.failed || fate < 3
	switch fate {
	case 0: // never arrives
		result.Err = records.Errorf(records.ClassUnavailable, "refused")
	case 1: // carried out, nobody knows
		w.store.txn(c.Txn)
		result.Err = records.Errorf(records.ClassOutcomeUnknown, "timed out")
	case 2: // carried out later or never, nobody knows
		w.landing = append(w.landing, c.Txn)
		result.Err = records.Errorf(records.ClassOutcomeUnknown, "timed out")
	default:
		result = w.store.txn(c.Txn)
	}
	w.step(i, actors.Committed{Tag: c.Tag, Result: result})
}

// check compares the record before and after each transaction that wrote.
func (w *world) check(before map[string]records.KV) {
	key := w.keys.Run(testID)
	if w.store.keys[key].Mod == before[key].Mod {
		return
	}
	run, err := records.DecodeRun(w.store.keys[key])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range w.nodes {
		if kv, ok := w.store.keys[w.keys.Assignment(n.name, testID)]; ok && kv.Mod == w.store.revision {
			assignment := &recordv1.Assignment{}
			if err := records.Decode(kv, assignment); err != nil {
				w.t.Fatal(err)
			}
			w.assignments[kv.Mod] = assignment
		}
	}
	if len(w.history) > 0 {
		w.checkMove(w.run(), run)
	}
	w.checkKeys(run)
	if len(w.history) > 0 {
		w.checkTold(w.run(), run)
	}
	w.history = append(w.history, version{w.store.revision, run})
}

var legalMoves = map[recordv1.Status][]recordv1.Status{
	recordv1.Status_STATUS_PENDING: {
		recordv1.Status_STATUS_PENDING, recordv1.Status_STATUS_RUNNING, recordv1.Status_STATUS_SUCCEEDED,
		recordv1.Status_STATUS_FAILED, recordv1.Status_STATUS_TIMED_OUT, recordv1.Status_STATUS_CANCELED,
	},
	recordv1.Status_STATUS_RUNNING: {
		recordv1.Status_STATUS_RUNNING, recordv1.Status_STATUS_PENDING, recordv1.Status_STATUS_SUCCEEDED,
		recordv1.Status_STATUS_FAILED, recordv1.Status_STATUS_TIMED_OUT, recordv1.Status_STATUS_CANCELED,
	},
}

func (w *world) checkMove(old, run *recordv1.Run) {
	if records.Terminal(old.GetStatus()) {
		was := proto.CloneOf(old)
		was.LateExits, was.Events, was.Writer = run.GetLateExits(), run.GetEvents(), run.GetWriter()
		if !proto.Equal(was, run) {
			w.t.Fatalf("a terminal run changed\nfrom %v\nto   %v", old, run)
		}
		return
	}
	if !slices.Contains(legalMoves[old.GetStatus()], run.GetStatus()) {
		w.t.Fatalf("illegal move from %s to %s", old.GetStatus(), run.GetStatus())
	}
	from, to := old.GetPlacement(), run.GetPlacement()
	switch {
	case run.GetAttempt() != old.GetAttempt():
		w.checkAgain(old, run)
	case old.GetStatus() == recordv1.Status_STATUS_RUNNING && run.GetStatus() == recordv1.Status_STATUS_PENDING:
		w.t.Fatalf("back to waiting without another attempt\nfrom %v\nto   %v", old, run)
	case from == nil && to != nil && (to.GetNumber() != old.GetPlacements()+1 || run.GetPlacements() != to.GetNumber()):
		w.t.Fatalf("placement %v after %d placements", to, old.GetPlacements())
	case from != nil && to != nil && !proto.Equal(from, to):
		w.t.Fatalf("placed again without leaving: from %v to %v", from, to)
	case from != nil && to == nil:
		w.checkLeft(old, run)
	}
	unheard := w.console && w.now.Mono >= attendGrace
	if by := run.GetWish().GetBy(); by == byAttendance && !unheard {
		w.t.Fatalf("given up at %s", w.now.Mono)
	}
	if run.GetStatus() == recordv1.Status_STATUS_CANCELED && !w.canceled && !unheard {
		w.t.Fatal("CANCELED, but nobody canceled")
	}
	if run.ExitCode != nil {
		e := w.node(from.GetNode()).journal[slot{old.GetAttempt(), from.GetNumber()}]
		if e == nil || e.exit == nil || e.exit.Code == nil || e.exit.GetCode() != run.GetExitCode() {
			w.t.Fatalf("exit code %d was not observed", run.GetExitCode())
		}
	}
}

func (w *world) checkLeft(old, run *recordv1.Run) {
	from := old.GetPlacement()
	n := w.node(from.GetNode())
	e := n.journal[slot{old.GetAttempt(), from.GetNumber()}]
	if (e == nil || e.void == nil && e.exit == nil) && !n.lost(old.GetAttempt(), from) {
		w.t.Fatalf("left %v, whose node has not said void or exited: now %v", from, run)
	}
}

// checkAgain judges a move to another attempt: the one before is over, on record, and
// one that may be followed.
func (w *world) checkAgain(old, run *recordv1.Run) {
	if run.GetAttempt() != old.GetAttempt()+1 || run.GetStatus() != recordv1.Status_STATUS_PENDING || run.GetPlacement() != nil || old.GetPlacement() == nil {
		w.t.Fatalf("another attempt\nfrom %v\nto   %v", old, run)
	}
	w.checkLeft(old, run)
	failures, losses := 0, 0
	for i, a := range run.GetAttempts() {
		if a.GetNumber() != int32(i+1) || a.GetReason() == recordv1.Reason_REASON_UNSPECIFIED || !records.Terminal(a.GetStatus()) || a.GetEndedAt() <= 0 {
			w.t.Fatalf("attempt %d is not told: %v", i+1, a)
		}
		if isFailure(a.GetReason()) {
			failures++
		} else {
			losses++
		}
	}
	if failures > int(w.retries) || losses > lossesMax || old.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED {
		w.t.Fatalf("attempt %d after %d failures and %d losses, wish %v", run.GetAttempt(), failures, losses, old.GetWish())
	}
}

func (w *world) checkKeys(run *recordv1.Run) {
	_, live := w.store.keys[w.keys.Live(testID)]
	if live == records.Terminal(run.GetStatus()) {
		w.t.Fatalf("live key %t at %s", live, run.GetStatus())
	}
	for _, n := range w.nodes {
		_, assigned := w.store.keys[w.keys.Assignment(n.name, testID)]
		if assigned != (run.GetPlacement().GetNode() == n.name) {
			w.t.Fatalf("assignment on %s %t, placement %v, %s", n.name, assigned, run.GetPlacement(), run.GetStatus())
		}
	}
	finished := len(w.store.matching(w.keys.Root+"history/", true))
	if finished != 0 != records.Terminal(run.GetStatus()) || finished > 1 {
		w.t.Fatalf("%d history keys at %s", finished, run.GetStatus())
	}
}

func (w *world) node(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return &node{}
}

// pass moves the clocks and fires what is due.
func (w *world) pass(d time.Duration) {
	w.now.Mono += d
	w.now.Boot += d
	w.now.Wall = w.now.Wall.Add(d)
	for _, n := range w.nodes {
		n.stopLate(false)
	}
	for i := range w.actors {
		for _, name := range []string{timerReserve, timerLoad, timerIdle, timerLoss, timerAttend} {
			a := w.actors[i]
			if due, ok := a.timers[name]; ok && due <= w.now.Mono {
				delete(a.timers, name)
				w.step(i, actors.TimerFired{Name: name})
			}
		}
	}
}

func (w *world) Alive() []string { return nil }
