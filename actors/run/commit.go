package run

import (
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// loadBackoffMin and loadBackoffMax bound the wait before the store is asked
	// again.
	loadBackoffMin = 200 * time.Millisecond
	loadBackoffMax = 5 * time.Second
	// failuresMax is how often in a row the store may fail before the activation
	// gives up: about twenty seconds.
	failuresMax = 8
)

// flight is a transaction under way.
type flight struct {
	tag uint64
	// decision is that of a write; a load has none.
	decision decision
	writer   string
	// load is set for a read; node, when the assignment there was read as well.
	load bool
	node string
	// fresh: the first pending request had arrived before this was sent, so what
	// it answers is no older than what the request speaks of.
	fresh bool
}

func (m *Machine) load() { m.loadWith(false) }

// loadWith reads the record, and if it is asked for the assignment of its placement
// and what there is of the session that holds it.
func (m *Machine) loadWith(assignment bool) {
	f := &flight{load: true}
	ops := []records.Op{records.Get(m.cfg.Keys.Run(m.id))}
	if assignment {
		f.node = m.snapshot.run.GetPlacement().GetNode()
		ops = append(ops, records.Get(m.cfg.Keys.Assignment(f.node, m.id)))
		if m.cfg.Loss != (Loss{}) {
			ops = append(ops, records.Get(m.cfg.Keys.Node(f.node)), records.Get(m.cfg.Keys.NodeInfo(f.node)))
		}
	}
	m.loaded, m.loading = false, true
	m.send(f, records.Read(ops...))
}

func (m *Machine) send(f *flight, txn records.Txn) {
	m.tag++
	f.tag = m.tag
	f.fresh = len(m.pending) > 0
	m.flight = f
	m.emit(actors.Commit{Tag: f.tag, Txn: txn})
}

// commit sends the transaction of a decision for the first pending request.
func (m *Machine) commit(d decision) {
	m.sequence++
	f := &flight{decision: d, writer: fmt.Sprintf("%s/%d", m.writer, m.sequence)}
	d.run.Writer = f.writer
	keys, mod := m.cfg.Keys, m.snapshot.mod
	var txn records.Txn
	switch d.change {
	case changePlace:
		txn = keys.Place(d.run, mod, d.nextWake, d.assignment)
	case changeUnplace:
		txn = keys.Unplace(d.run, mod, d.nextWake, d.node)
	case changeWish:
		txn = keys.Wish(d.run, mod, d.nextWake, d.node, d.assignment)
	case changeEnd:
		txn = keys.End(d.run, mod, d.node)
	case changeLose:
		txn = keys.Lose(d.run, mod, d.nextWake, d.node, d.session)
	case changeNote:
		txn = keys.Note(d.run, mod)
	default:
		txn = keys.Update(d.run, mod, d.nextWake)
	}
	m.send(f, txn)
}

func (m *Machine) committed(now actors.Instant, in actors.Committed) {
	f := m.flight
	if f == nil || f.tag != in.Tag {
		return
	}
	m.flight = nil
	switch {
	case f.load:
		m.loading = false
		m.wasLoaded(now, f, in.Result)
	case in.Result.Err != nil:
		m.writeFailed(f, in.Result.Err)
	case in.Result.Succeeded:
		m.landed(now, f, in.Result.Revision)
	default:
		m.compareFailed(now, f, in.Result)
	}
}

// landed follows a write of ours that is known to be in the store.
func (m *Machine) landed(now actors.Instant, f *flight, revision int64) {
	d, head := f.decision, m.pending[0]
	before := m.snapshot
	m.take(d.run, revision, before.created)
	switch d.change {
	case changePlace:
		m.snapshot.assignment, m.snapshot.assignmentKnown, m.snapshot.committed = d.assignment, true, revision
	case changeWish, changeUpdate:
		// The placement did not change, and only this actor writes its assignment. What
		// was unknown before, after a reload, stays so.
		m.snapshot.assignment, m.snapshot.assignmentKnown, m.snapshot.committed = before.assignment, before.assignmentKnown, before.committed
		if d.change == changeWish && before.assignmentKnown {
			m.snapshot.assignment = d.assignment
		}
	default:
	}
	m.perform(d, revision)
	m.judge(now.Mono, before.run, head, d)
	m.endRoundOf(now, head, d)
	m.report(d, revision)
	m.done()
}

// report writes the lines that an operator follows a run by.
func (m *Machine) report(d decision, revision int64) {
	switch run := d.run; d.change {
	case changePlace:
		m.log(actors.LogInfo, "run placed", "node", d.node, "attempt", run.GetAttempt(), "placement", run.GetPlacements(), "revision", revision)
	case changeUnplace, changeLose:
		m.reportLeft(d)
	case changeWish:
		m.log(actors.LogInfo, "run is to end", "reason", records.Word(run.GetWish().GetReason()), "by", run.GetWish().GetBy(), "force", run.GetWish().GetForce())
	case changeEnd:
		m.log(actors.LogInfo, "run ended", endFields(run)...)
	case changeNote:
		m.log(actors.LogWarn, d.says, "status", records.Word(run.GetStatus()))
	default:
	}
}

func (m *Machine) reportLeft(d decision) {
	run := d.run
	switch i := slices.IndexFunc(run.GetAttempts(), func(a *recordv1.Attempt) bool { return a.GetNumber() == run.GetAttempt()-1 }); {
	case phaseOf(run) == terminal:
		m.log(actors.LogInfo, "run ended", endFields(run)...)
	case run.GetPlacements() == 0 && i >= 0:
		m.log(actors.LogInfo, "attempt ended, another follows", "node", d.node, "attempt", run.GetAttempt()-1,
			"reason", records.Word(run.GetAttempts()[i].GetReason()), "message", run.GetAttempts()[i].GetMessage())
	default:
		m.log(actors.LogInfo, "run left its node", "node", d.node, "placement", run.GetPlacements(), "cause", run.GetHoldMessage())
	}
}

// endFields leaves out what an outcome does not have: a success has no reason.
func endFields(run *recordv1.Run) []any {
	fields := []any{"status", records.Word(run.GetStatus())}
	if run.ExitCode != nil {
		fields = append(fields, "code", run.GetExitCode())
	}
	if run.GetReason() != recordv1.Reason_REASON_UNSPECIFIED {
		fields = append(fields, "reason", records.Word(run.GetReason()))
	}
	if run.GetMessage() != "" {
		fields = append(fields, "message", run.GetMessage())
	}
	return fields
}

// compareFailed decides again on the record as the store answered it.
func (m *Machine) compareFailed(now actors.Instant, f *flight, result records.Result) {
	mod := m.snapshot.mod
	m.snapshot = snapshot{}
	if !m.read(now, f, result) {
		return
	}
	if f.decision.change != changePlace || m.snapshot.mod != mod {
		return
	}
	// The record is as it was: the node is what changed.
	m.done()
	m.refuse(refusal{node: f.decision.node, message: placeRefusedText(result, f.decision.assignment.GetSession())})
}

func (m *Machine) wasLoaded(now actors.Instant, f *flight, result records.Result) {
	if result.Err != nil {
		m.storeFailed("load", result.Err)
		return
	}
	var found snapshot
	if f.node != "" {
		found.assignmentKnown = true
		if kv, ok := result.First(1); ok {
			found.assignment, found.committed = &recordv1.Assignment{}, kv.Create
			if err := records.Decode(kv, found.assignment); err != nil {
				m.giveUp(err)
				return
			}
		}
	}
	if m.read(now, f, result) && found.assignmentKnown && m.snapshot.run.GetPlacement().GetNode() == f.node {
		m.snapshot.assignment, m.snapshot.assignmentKnown, m.snapshot.committed = found.assignment, true, found.committed
		if m.snapshot.leased {
			node, _ := result.First(2)
			info, _ := result.First(3)
			m.sawNode(now, node, info)
		}
	}
}

// read takes over the record that is the first response. It is false when the
// activation can not go on with it.
func (m *Machine) read(now actors.Instant, of *flight, result records.Result) bool {
	if len(m.pending) == 0 {
		m.failures = 0
	}
	kv, ok := result.First(0)
	if !ok {
		m.take(nil, 0, 0)
		return true
	}
	run, err := records.DecodeRun(kv)
	if err == nil && run.GetMinWriter() > records.Writer {
		err = records.Errorf(records.ClassInvalid, "run %s needs a writer of version %d, this one is %d", m.id, run.GetMinWriter(), records.Writer)
	}
	if err != nil {
		m.giveUp(err)
		return false
	}
	m.take(run, kv.Mod, kv.Create)
	m.snapshot.fresh = of.fresh
	for _, f := range m.doubts {
		if f.writer == run.GetWriter() {
			// It had landed. Nothing has changed the record since.
			m.landed(now, f, kv.Mod)
			break
		}
	}
	return true
}

// writeFailed: whatever the class, the record is read before anything is decided
// again. Only an unknown outcome may show there as our own.
func (m *Machine) writeFailed(f *flight, err error) {
	if records.ClassOf(err) == records.ClassOutcomeUnknown {
		m.doubts = append(m.doubts, f)
	}
	m.storeFailed("commit", err)
}

func (m *Machine) storeFailed(what string, err error) {
	m.loaded = false
	m.failures++
	if m.failures >= failuresMax {
		m.giveUp(err)
		return
	}
	wait := loadBackoffMin
	for i := 1; i < m.failures && wait < loadBackoffMax; i++ {
		wait *= 2
	}
	wait = min(wait, loadBackoffMax)
	m.retryingLoad = true
	m.emit(actors.SetTimer{Name: timerLoad, After: wait})
	m.log(actors.LogWarn, "the store failed, trying again", "doing", what, "class", records.ClassOf(err).String(), "error", err.Error(), "in", wait.String())
}

// giveUp drops what is pending: a Cancel is answered, everything else is repeated
// by its sender.
func (m *Machine) giveUp(err error) {
	m.log(actors.LogError, "gave up on a run until the next message", "error", err.Error(), "pending", len(m.pending))
	for _, r := range m.pending {
		if c, ok := r.(cancel); ok {
			m.answerUnknown(c)
		}
	}
	m.endRound()
	m.pending, m.doubts, m.failures = nil, nil, 0
	m.loaded, m.retryingLoad, m.snapshot = false, false, snapshot{}
}
