package nodes

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// modelRun is the run's actor as far as a node can tell.
type modelRun struct {
	id                 string
	attempt, placement int32
	placed, over       bool
	// waits: it asks to go on when its node's session ends.
	waits      bool
	commit     int64
	assignment *recordv1.Assignment
}

// chaos drives a lab by drawn choices and holds what must be true.
type chaos struct {
	*lab
	t    *rapid.T
	runs []*modelRun
	mail []proto.Message
	// sent are all Starts ever sent: any may come again at any time.
	sent  []*actorv1.Start
	voids map[string]bool
	// acked are the placements whose outcome a run has recorded, by revision.
	acked map[PlacementKey]int64
	// seen is how far the node's watch has come in this life.
	seen   int64
	starts map[string]int
	codes  map[string]int32
	// told are the ends that any life of the node has told.
	told map[string]*recordv1.Exit
	// sentSignals are those that any life of the node has sent, delivered those whose
	// arrival it was told.
	sentSignals, delivered map[sentSignal]bool
	tenant                 tenant
}

type sentSignal struct {
	id     string
	signal int32
	at     int64
}

func newChaos(t *rapid.T) *chaos { return newChaosOf(t, newLab()) }

func newChaosOf(t *rapid.T, l *lab) *chaos {
	c := &chaos{
		lab: l, t: t, voids: map[string]bool{}, acked: map[PlacementKey]int64{}, starts: map[string]int{}, codes: map[string]int32{},
		told:        map[string]*recordv1.Exit{},
		sentSignals: map[sentSignal]bool{}, delivered: map[sentSignal]bool{},
	}
	c.tenant.goneAt, c.tenant.windowAt, c.tenant.fenceKilled = map[int64]time.Duration{}, map[int64]time.Duration{}, map[string]bool{}
	c.killing, c.committed = c.onKill, c.onCommit
	c.deaf = rapid.Bool().Draw(t, "deaf")
	c.started = c.onStart
	c.stepped = c.onStep
	c.ended = c.onEnd
	c.startErr = func(string) error {
		switch rapid.IntRange(0, 9).Draw(t, "start") {
		case 0:
			return records.Errorf(records.ClassOutcomeUnknown, "cut")
		case 1:
			return sandbox.Permanentf(recordv1.Reason_REASON_NOT_FOUND, "no such command")
		default:
			return nil
		}
	}
	c.launch()
	return c
}

func (c *chaos) onStart(id string) {
	c.starts[id]++
	if c.starts[id] > 1 {
		c.t.Fatalf("sandbox %s was started twice", id)
	}
	if c.told[id] != nil {
		c.t.Fatalf("sandbox %s was started after its end was told", id)
	}
	if c.voids[id] {
		c.t.Fatalf("sandbox %s was started after its void was told", id)
	}
	for other, b := range c.boxes {
		if other != id && b.run == c.boxes[id].run && b.state == sandbox.StateRunning {
			c.t.Fatalf("run %s has two sandboxes that run", b.run)
		}
	}
	if e := c.entries[PlacementKey{c.boxes[id].run, c.boxes[id].attempt, c.boxes[id].placement}]; e.GetState() != recordv1.JournalState_JOURNAL_STATE_STARTING && !e.GetExit().GetFenced() {
		c.t.Fatalf("sandbox %s was started while the disk says %s", id, e.GetState())
	}
}

// onEnd draws what the driver knows of an end beside its code.
func (c *chaos) onEnd(id string, code int32) {
	c.codes[id] = code
	b := c.boxes[id]
	b.exit.Durable = rapid.Bool().Draw(c.t, "end on the disk")
	if b.exit.Settled = rapid.Bool().Draw(c.t, "end settled"); b.exit.Settled {
		b.alive, b.exit.LogComplete = false, true
	}
}

func (c *chaos) onStep(in actors.Input, effects []actors.Effect) {
	if f, ok := in.(actors.Followed); ok && f.Prefix == c.keys.AssignmentsOf("n1") {
		c.seen = max(c.seen, f.Batch.Revision)
	}
	if done, ok := in.(SandboxDone); ok && done.Op.Verb == VerbSignal && done.Result.Delivered {
		c.delivered[sentSignal{id: done.Op.ID, signal: int32(done.Op.Signal)}] = true
	}
	for _, effect := range effects {
		c.onLeased(effect)
		switch e := effect.(type) {
		case actors.Tell:
			c.onTell(e.Message)
		case DoSandbox:
			if e.Op.Verb == VerbSignal {
				c.sentSignals[sentSignal{e.Op.ID, int32(e.Op.Signal), c.now.Milli()}] = true
			}
		case WriteJournal:
			for _, key := range e.Change.Deletes {
				c.onForget(key)
			}
		}
	}
}

func (c *chaos) onTell(message proto.Message) {
	switch m := message.(type) {
	case *actorv1.Voided:
		id := records.SandboxID(m.GetRun(), m.GetAttempt(), m.GetPlacement())
		if c.starts[id] > 0 {
			c.t.Fatalf("%s is told as void and was started", id)
		}
		c.durable(PlacementKey{m.GetRun(), m.GetAttempt(), m.GetPlacement()}, recordv1.JournalState_JOURNAL_STATE_VOID)
		c.voids[id] = true
	case *actorv1.Exited:
		id := records.SandboxID(m.GetRun(), m.GetAttempt(), m.GetPlacement())
		c.keptSomewhere(m, id)
		if m.GetExit().Code != nil {
			if c.tenant.fenceKilled[id] {
				c.t.Fatalf("%s was killed because of the fence and is told with code %d", id, m.GetExit().GetCode())
			}
			if code, ok := c.codes[id]; !ok || code != m.GetExit().GetCode() {
				c.t.Fatalf("%s is told with code %d, which nobody observed (%v, %v)", id, m.GetExit().GetCode(), code, ok)
			}
		}
		b := c.boxes[id]
		if b != nil && b.alive {
			c.t.Fatalf("%s is told as exited and a process of it is alive", id)
		}
		if b != nil && b.unfenced && m.GetExit().GetFenced() {
			c.t.Fatalf("%s goes on when its session ends and is told as %v", id, m.GetExit())
		}
		c.checkSignals(id, m.GetExit())
		before := c.told[id]
		if before == nil {
			c.told[id] = proto.CloneOf(m.GetExit())
			return
		}
		if (before.Code == nil) != (m.GetExit().Code == nil) || before.GetCode() != m.GetExit().GetCode() || before.GetStopDelivered() != m.GetExit().GetStopDelivered() {
			c.t.Fatalf("%s is told as %v and later as %v", id, before, m.GetExit())
		}
	}
}

// keptSomewhere holds that an end that is told outlives a loss of power.
func (c *chaos) keptSomewhere(m *actorv1.Exited, id string) {
	b := c.boxes[id]
	if b != nil && b.state == sandbox.StateExited && b.exit.Durable && m.GetExit().Code != nil {
		return
	}
	c.durable(PlacementKey{m.GetRun(), m.GetAttempt(), m.GetPlacement()}, recordv1.JournalState_JOURNAL_STATE_EXITED)
}

// checkSignals holds that none of the signals that an exit tells is made up.
func (c *chaos) checkSignals(id string, exit *recordv1.Exit) {
	if len(exit.GetSignals()) > records.SentSignalsMax {
		c.t.Fatalf("%s is told with %d signals", id, len(exit.GetSignals()))
	}
	last := int64(0)
	for _, sent := range exit.GetSignals() {
		switch {
		case !c.sentSignals[sentSignal{id, sent.GetSignal(), sent.GetAt()}]:
			c.t.Fatalf("%s is told with signal %v, which was not sent", id, sent)
		case sent.GetDelivered() && !c.delivered[sentSignal{id: id, signal: sent.GetSignal()}]:
			c.t.Fatalf("%s is told with signal %v, of whose arrival nobody has told", id, sent)
		case sent.GetDelivered() && !exit.GetStopDelivered():
			c.t.Fatalf("%s is told with signal %v, and as not stopped", id, sent)
		case sent.GetCause() != exit.GetStopCause() || sent.GetAt() < last:
			c.t.Fatalf("%s is told with the signals %v", id, exit.GetSignals())
		}
		last = sent.GetAt()
	}
}

func (c *chaos) durable(key PlacementKey, state recordv1.JournalState) {
	if got := c.entries[key].GetState(); got != state {
		c.t.Fatalf("%v is told as %s while the disk says %s", key, state, got)
	}
}

func (c *chaos) onForget(key PlacementKey) {
	revision, ok := c.acked[key]
	switch {
	case !ok:
		c.t.Fatalf("%v is forgotten before its outcome is known", key)
	case c.seen < revision:
		c.t.Fatalf("%v is forgotten at %d, acknowledged at %d", key, c.seen, revision)
	case c.boxes[records.SandboxID(key.Run, key.Attempt, key.Placement)] != nil:
		c.t.Fatalf("%v is forgotten and its sandbox is there", key)
	}
}

// place commits a run to the node's session, as the run's actor does.
func (c *chaos) place(r *modelRun) {
	session, ok := c.store.keys[c.keys.Node("n1")]
	if !ok || r.over || r.placed {
		return
	}
	r.placement++
	r.assignment = &recordv1.Assignment{
		Run: r.id, Attempt: r.attempt, Placement: r.placement, Session: session.Create, Desired: recordv1.Desired_DESIRED_RUN,
		StartToken: []byte{1}, App: records.DefaultApp,
		Spec: &recordv1.Spec{Driver: "null", Command: []string{"true"}, TimeoutMs: 60_000, StopGraceMs: 1000, StartDeadlineMs: 60_000},
	}
	if r.waits {
		r.assignment.Spec.Retry = waitsForNode()
	}
	r.placed = true
	r.commit = c.putAssignment(r)
	start := &actorv1.Start{Assignment: proto.CloneOf(r.assignment), Commit: r.commit}
	c.mail, c.sent = append(c.mail, start), append(c.sent, start)
}

func (c *chaos) putAssignment(r *modelRun) int64 {
	put := records.Op{Kind: records.OpPut, Key: c.keys.Assignment("n1", r.id), Value: records.Encode(r.assignment)}
	return c.commit(records.Txn{Then: []records.Op{put}}).Revision
}

func (c *chaos) wish(r *modelRun, desired recordv1.Desired, force bool) {
	if !r.placed || r.assignment.GetDesired() == recordv1.Desired_DESIRED_STOP {
		return
	}
	reason := recordv1.Reason_REASON_CANCELED
	if desired == recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED {
		reason = recordv1.Reason_REASON_START_DEADLINE
	}
	r.assignment = proto.CloneOf(r.assignment)
	r.assignment.Desired, r.assignment.StopReason, r.assignment.StopForce = desired, reason, force
	c.putAssignment(r)
	c.mail = append(c.mail, &actorv1.Stop{
		Run: r.id, Attempt: r.attempt, Placement: r.placement, Desired: desired, Reason: reason, Force: force,
	})
}

// hear is the run's actor taking what the node tells.
func (c *chaos) hear(message proto.Message) {
	var run string
	var attempt, placement int32
	var void bool
	switch m := message.(type) {
	case *actorv1.Voided:
		run, attempt, placement, void = m.GetRun(), m.GetAttempt(), m.GetPlacement(), true
	case *actorv1.Exited:
		run, attempt, placement = m.GetRun(), m.GetAttempt(), m.GetPlacement()
	default:
		return
	}
	r := c.runs[slices.IndexFunc(c.runs, func(r *modelRun) bool { return r.id == run })]
	key := PlacementKey{run, attempt, placement}
	if _, known := c.acked[key]; !known {
		if r.placed && r.attempt == attempt && r.placement == placement {
			r.placed = false
			c.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: c.keys.Assignment("n1", run)}}})
			switch {
			case r.assignment.GetDesired() == recordv1.Desired_DESIRED_STOP, !void && rapid.Bool().Draw(c.t, "final"):
				r.over = true
			case !void:
				r.attempt, r.placement = r.attempt+1, 0
			}
		}
		c.acked[key] = c.store.revision
	}
	c.mail = append(c.mail, &actorv1.Ack{Run: run, Attempt: attempt, Placement: placement, Commit: c.acked[key]})
}

// act draws one thing that happens.
func (c *chaos) act() {
	pick := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(c.t, what) }
	switch k := pick(20, "act"); {
	case k == 0 && len(c.runs) < 4:
		c.runs = append(c.runs, &modelRun{id: fmt.Sprintf("r.default.run%d", len(c.runs)), attempt: 1, waits: c.session.Lease > 0 && pick(2, "waits") == 0})
	case k == 1 && len(c.runs) > 0:
		c.place(c.runs[pick(len(c.runs), "run")])
	case k == 2 && len(c.runs) > 0:
		desired := recordv1.Desired(2 + pick(2, "desired"))
		c.wish(c.runs[pick(len(c.runs), "run")], desired, pick(2, "force") == 0)
	case k <= 5 && len(c.mail) > 0:
		i := pick(len(c.mail), "mail")
		message := c.mail[i]
		switch pick(4, "fate") {
		case 0: // lost
			c.mail = slices.Delete(c.mail, i, i+1)
		case 1: // doubled: it stays on its way, for as long as it likes
			c.step(actors.Received{Message: message})
		default:
			c.mail = slices.Delete(c.mail, i, i+1)
			c.step(actors.Received{Message: message})
		}
	case k <= 8 && len(c.writes) > 0:
		if pick(15, "disk") == 0 {
			c.step(JournalWritten{Tag: c.writes[0].Tag, Err: fmt.Errorf("disk full")})
			c.writes = c.writes[1:]
			return
		}
		c.step(JournalWritten{Tag: c.writeNext().Tag})
	case k <= 11 && len(c.ops) > 0:
		i := pick(len(c.ops), "op")
		if pick(10, "driver") == 0 && c.ops[i].Op.Verb != VerbStart && c.ops[i].Op.Verb != VerbCreate {
			done := SandboxDone{Tag: c.ops[i].Tag, Op: c.ops[i].Op, Result: SandboxResult{Err: records.Errorf(records.ClassUnavailable, "away")}}
			c.ops = slices.Delete(c.ops, i, i+1)
			c.step(done)
			return
		}
		if done, ok := c.perform(i); ok {
			c.step(done)
		}
	case k == 12 && len(c.tells) > 0:
		i := pick(len(c.tells), "tell")
		message := c.tells[i].Message
		c.tells = slices.Delete(c.tells, i, i+1)
		if pick(4, "fate") > 0 {
			c.hear(message)
		}
	case k == 13 && len(c.watched) > 0:
		f := c.watched[0]
		c.watched = c.watched[1:]
		c.step(f)
	case k == 14 && len(c.follows) > 0:
		c.resync(c.follows[0])
	case k == 15:
		c.pass(time.Duration(pick(3000, "ms")) * time.Millisecond)
	case k == 16 && len(c.boxes) > 0:
		ids := slices.Sorted(maps.Keys(c.boxes))
		if id := ids[pick(len(ids), "box")]; c.boxes[id].state == sandbox.StateRunning {
			c.end(id, int32(pick(3, "code")), 0)
		}
	case k == 18 && len(c.sent) > 0:
		c.step(actors.Received{Message: c.sent[pick(len(c.sent), "sent")]})
	case k == 17 && pick(4, "crash") == 0:
		c.crash(pick(len(c.writes)+1, "durable"), pick(2, "ops") == 0, pick(3, "reboot") == 0)
	default:
		c.flow()
	}
}

// flow moves what has no choice in it.
func (c *chaos) flow() {
	switch {
	case len(c.inputs) > 0:
		in := c.inputs[0]
		c.inputs = c.inputs[1:]
		c.step(in)
	case len(c.commits) > 0:
		commit := c.commits[0]
		c.commits = c.commits[1:]
		result := c.commit(commit.Txn)
		if rapid.IntRange(0, 9).Draw(c.t, "store") == 0 {
			result = records.Result{Err: records.Errorf(records.ClassOutcomeUnknown, "timeout")}
		}
		c.step(actors.Committed{Tag: commit.Tag, Result: result})
	case len(c.calls) > 0:
		call := c.calls[0]
		c.calls = c.calls[1:]
		c.step(c.answer(call))
	}
}

// crash ends the process: some of what was under way happened all the same.
func (c *chaos) crash(durable int, ops, reboot bool) {
	for range durable {
		c.writeNext()
	}
	if ops {
		for i := 0; i < len(c.ops); {
			if _, ok := c.perform(i); !ok {
				i++
			}
		}
	}
	if reboot {
		c.boot, c.fence = fmt.Sprintf("boot-%d", c.lives+1), labFence{}
		for id, b := range c.boxes {
			b.alive = false
			if b.state == sandbox.StateRunning || b.state == sandbox.StateExited && !b.exit.Durable {
				delete(c.boxes, id)
			}
		}
	}
	c.seen = 0
	for _, commit := range c.commits {
		if c.session.Lease > 0 && rapid.Bool().Draw(c.t, "late") {
			c.tenant.late = append(c.tenant.late, commit.Txn)
		}
	}
	c.launch()
}

// heal ends the faults: everything must come to an end and leave nothing.
func (c *chaos) heal() {
	c.startErr = nil
	for round := 0; round < 400; round++ {
		c.settle()
		tells := c.tells
		c.tells = nil
		for _, tell := range tells {
			c.hear(tell.Message)
		}
		mail := c.mail
		c.mail = nil
		for _, message := range mail {
			c.step(actors.Received{Message: message})
		}
		for _, id := range slices.Sorted(maps.Keys(c.boxes)) {
			if c.boxes[id].state == sandbox.StateRunning {
				c.end(id, 0, 0)
			}
		}
		// A replaced placement has nobody who waits for it, but every run that is placed
		// must become unplaced.
		for _, r := range c.runs {
			if !r.placed {
				r.over = true
			}
		}
		c.pass(time.Second)
		c.expire()
		if c.idle() {
			c.haunt()
			return
		}
	}
	c.t.Fatalf("not at rest: phase %s, failure %v, %d entries %v, %d boxes, runs %+v, known %d", c.reached, c.failure, len(c.entries), c.entries, len(c.boxes), c.runs, len(c.machine.placements))
}

func TestMachineKeepsItsPromisesThroughFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChaos(t)
		for range rapid.IntRange(50, 800).Draw(t, "acts") {
			c.act()
		}
		c.heal()
	})
}
