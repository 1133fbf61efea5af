package run

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// pendingMax bounds the requests that wait while a transaction is in flight.
	// Beyond it a Cancel is answered "unknown, repeat"; everything else is repeated
	// by its sender anyway.
	pendingMax = 64
	// idleAfter is how long an activation stays without anything to do.
	idleAfter = 5 * time.Second
	// awakeMin is the least that a deadline actor is asked to wait.
	awakeMin = 100 * time.Millisecond
	// busyLook is when a wake is due again while a node is being asked.
	busyLook = time.Second
)

// The machine's timers.
const (
	timerReserve = "reserve"
	timerLoad    = "load"
	timerIdle    = "idle"
	timerLoss    = "loss"
	timerAttend  = "attend"
)

// Config is what all run actors of a node share.
type Config struct {
	// Node is the one that they are on: what concerns only the activation that asked
	// is answered there.
	Node string
	Keys records.Keys
	// Writer names the node's session in what it writes. Each activation adds a
	// random part and a sequence, so that it knows its own writes again.
	Writer string
	Nodes  actors.Nodes
	Rand   actors.Rand
	Loss   Loss
	// Scores are those of the nodes; with nil none are kept.
	Scores Scores
}

// Machine is one activation of a run actor. It implements actors.Machine.
type Machine struct {
	id     string
	cfg    Config
	writer string
	// sequence numbers the writes, tag the commits of this activation.
	sequence uint64
	tag      uint64

	snapshot snapshot
	// begun: the first message has come.
	begun   bool
	loaded  bool
	loading bool
	// retryingLoad: the load timer runs.
	retryingLoad bool
	failures     int

	pending []request
	flight  *flight
	// doubts are writes for the first pending request whose outcome is unknown.
	doubts []*flight

	round *round
	// rounds counts those that this activation has begun.
	rounds int
	// refusedBy said no in the last round, which ended at refusedAt on the monotonic
	// clock. It is kept for those who ask why the run waits.
	refusedBy []refusal
	refusedAt time.Duration
	// askAgain is when, on the monotonic clock, nodes may be asked again.
	askAgain time.Duration
	// absence is set while the run waits for a node whose session is over.
	absence    *absence
	attendance attendance

	idleTimer bool
	lastWork  time.Duration

	out []actors.Effect
}

// New returns the actor of a run, not yet activated.
func New(id string, cfg Config) *Machine { return &Machine{id: id, cfg: cfg} }

// Step takes one input and returns what it asks for.
func (m *Machine) Step(now actors.Instant, in actors.Input) []actors.Effect {
	m.out = nil
	idleFired := false
	switch in := in.(type) {
	case actors.Activated:
		m.activate()
	case actors.Received:
		m.receive(now, in)
	case actors.Committed:
		m.committed(now, in)
	case actors.TimerFired:
		idleFired = in.Name == timerIdle
		m.timerFired(now, in.Name)
	}
	if !idleFired {
		m.lastWork = now.Mono
	}
	m.proceed(now)
	m.settle(now)
	return m.out
}

func (m *Machine) emit(effects ...actors.Effect) { m.out = append(m.out, effects...) }

func (m *Machine) log(level actors.LogLevel, text string, fields ...any) {
	m.emit(actors.Log{Level: level, Text: text, Fields: append([]any{"run", m.id}, fields...)})
}

// activate forgets everything: what matters is in the store, and is read at the first
// message.
func (m *Machine) activate() {
	// Tags go on, so that no result of before is taken for one of now.
	*m = Machine{id: m.id, cfg: m.cfg, tag: m.tag}
	m.writer = fmt.Sprintf("%s/%016x", m.cfg.Writer, m.cfg.Rand.Uint64())
}

// begin gets an activation its record, at its first message: from the message, if that
// brings the news of the run's creation, so that the first steps of a run read nothing;
// else from the store. What a message brought may be old by now: what is decided by it
// is compared as always, and a request that is ahead of it has the record read first.
func (m *Machine) begin(message proto.Message) {
	if m.begun {
		return
	}
	m.begun = true
	if created, ok := message.(*actorv1.Wake); ok && m.know(created) {
		return
	}
	m.load()
}

// know takes the record of a run that was just created, unless it can not be read.
func (m *Machine) know(created *actorv1.Wake) bool {
	if created.GetRevision() <= 0 {
		return false
	}
	kv := records.KV{Key: m.cfg.Keys.Run(m.id), Value: created.GetRecord(), Mod: created.GetRevision()}
	run, err := records.DecodeRun(kv)
	if err != nil || run.GetId() != m.id || run.GetMinWriter() > records.Writer {
		return false
	}
	m.take(run, kv.Mod, kv.Mod)
	return true
}

func (m *Machine) receive(now actors.Instant, in actors.Received) {
	if about, ok := in.Message.(interface{ GetRun() string }); ok && about.GetRun() != "" && about.GetRun() != m.id {
		m.log(actors.LogWarn, "dropped a message about another run", "message", nameOf(in.Message), "about", about.GetRun())
		return
	}
	if _, ok := in.Message.(*actorv1.Explain); ok {
		m.explain(now, in.From)
		return
	}
	m.begin(in.Message)
	switch message := in.Message.(type) {
	case *actorv1.Wake:
		m.enqueue(wake{shard: message.Shard, node: message.GetNode()})
	case *actorv1.Reserved:
		m.reserved(message)
	case *actorv1.Voided:
		m.enqueue(voided{message})
	case *actorv1.Started:
		m.enqueue(started{message})
	case *actorv1.Exited:
		m.enqueue(exited{message})
	case *actorv1.Cancel:
		m.enqueue(cancel{message, in.From})
	case *actorv1.Quarantined:
		m.enqueue(quarantined{message})
	case *actorv1.Attended:
		m.hear(now)
	case *actorv1.Activate:
	default:
		m.log(actors.LogWarn, "dropped a message that a run does not know", "message", nameOf(in.Message))
	}
}

func nameOf(message proto.Message) string {
	if message == nil {
		return "nil"
	}
	return string(message.ProtoReflect().Descriptor().FullName())
}

func (m *Machine) enqueue(r request) {
	for _, have := range m.pending {
		if same(have, r) {
			return
		}
	}
	if len(m.pending) < pendingMax {
		m.pending = append(m.pending, r)
		return
	}
	if c, ok := r.(cancel); ok {
		m.answerUnknown(c)
	}
	m.log(actors.LogWarn, "dropped a request: too many are pending", "request", r.column().String())
}

// same tells whether a request asks for nothing that another does not. Every
// Cancel has its own caller.
func same(a, b request) bool {
	switch a := a.(type) {
	case wake:
		b, ok := b.(wake)
		return ok && (a.shard == nil) == (b.shard == nil) && a.node == b.node
	case voided:
		b, ok := b.(voided)
		return ok && a.GetAttempt() == b.GetAttempt() && a.GetPlacement() == b.GetPlacement() && a.GetNode() == b.GetNode()
	case started:
		b, ok := b.(started)
		return ok && a.GetAttempt() == b.GetAttempt() && a.GetPlacement() == b.GetPlacement()
	case exited:
		b, ok := b.(exited)
		return ok && a.GetAttempt() == b.GetAttempt() && a.GetPlacement() == b.GetPlacement() && a.GetNode() == b.GetNode()
	case quarantined:
		b, ok := b.(quarantined)
		return ok && sameQuarantine(a.Quarantined, b.GetAttempt(), b.GetPlacement(), b.GetNode(), b.GetSince())
	case unattended:
		_, ok := b.(unattended)
		return ok
	default:
		return false
	}
}

func (m *Machine) answerUnknown(c cancel) {
	m.emit(actors.Answer{To: c.from, Message: &actorv1.Canceled{Outcome: actorv1.Canceled_OUTCOME_UNKNOWN}})
}

// proceed takes pending requests in order until one needs the store.
func (m *Machine) proceed(now actors.Instant) {
	for len(m.pending) > 0 && m.flight == nil {
		if !m.loaded {
			if !m.loading && !m.retryingLoad {
				m.load()
			}
			return
		}
		head := m.pending[0]
		if m.overtaken(now, head) {
			m.done()
			continue
		}
		d := decide(now, m.snapshot, head)
		switch d.change {
		case changeNothing:
			m.perform(d, m.snapshot.mod)
			m.look(now, head, d)
			m.done()
		case changeReload, changeAssignment:
			m.loaded = false
			m.loadWith(d.change == changeAssignment)
			return
		default:
			m.commit(d)
			return
		}
	}
}

// overtaken tells whether a request need not be carried out because of another
// that has come meanwhile: a Started whose exit has arrived too, a placement of what
// is to be canceled, the end of a grace in which there was a sign after all.
func (m *Machine) overtaken(now actors.Instant, head request) bool {
	if _, ok := head.(unattended); ok {
		return !m.unheard(now)
	}
	for _, r := range m.pending[1:] {
		switch head := head.(type) {
		case started:
			e, ok := r.(exited)
			if ok && e.GetAttempt() == head.GetAttempt() && e.GetPlacement() == head.GetPlacement() {
				return true
			}
		case granted:
			if _, ok := r.(cancel); ok {
				return true
			}
		default:
			return false
		}
	}
	return false
}

// done takes the first request off: it has its decision.
func (m *Machine) done() {
	m.pending[0] = nil
	m.pending = m.pending[1:]
	if len(m.pending) == 0 {
		m.pending = nil
	}
	m.doubts = nil
	m.failures = 0
	m.snapshot.fresh, m.snapshot.presence = false, nil
}

func (m *Machine) perform(d decision, revision int64) {
	for _, f := range d.after {
		m.emit(f(revision))
	}
}

// look follows a decision that changed nothing: a node may be asked, and a
// deadline actor wants to know when to come again.
func (m *Machine) look(now actors.Instant, r request, d decision) {
	again := d.lookAgain
	if d.seek {
		again = m.seek(now)
	}
	if seen := m.snapshot.presence; seen != nil && seen.away {
		// Nobody need tell it that its node was said to be dead.
		again = min(again, awayLook)
	}
	m.endRoundOf(now, r, d)
	if w, ok := r.(wake); ok && w.shard != nil {
		m.awake(*w.shard, w.node, beforeStartDeadline(now, m.snapshot.run, again))
	}
}

func (m *Machine) awake(shard int32, node string, again time.Duration) {
	answer := &actorv1.Awake{Run: m.id}
	if again > 0 {
		answer.InMs = max(again, awakeMin).Milliseconds()
	}
	m.emit(actors.Tell{Kind: actors.KindDeadline, Identity: strconv.Itoa(int(shard)), Node: node, Message: answer})
}

// settle ends a turn: a round that the record has overtaken ends, and an
// activation with nothing to do offers to go.
func (m *Machine) settle(now actors.Instant) {
	if m.round != nil && m.loaded && !m.round.fits(m.snapshot.run) {
		m.endRound()
	}
	if len(m.pending) > 0 || m.flight != nil || m.loading || m.retryingLoad || m.round != nil {
		return
	}
	if attends := m.attends(now); m.waitsForLoss(now) || attends {
		return
	}
	switch p := phaseOf(m.snapshot.run); {
	case m.begun && !m.loaded:
		// Gave up; the next message tries again.
		m.emit(actors.Passivate{})
	case m.begun && p == absent:
		// What is absent may be created: that is never remembered.
		m.loaded = false
		m.emit(actors.Passivate{})
	case m.begun && p == terminal:
		m.emit(actors.Passivate{})
	case now.Mono-m.lastWork >= idleAfter:
		m.emit(actors.Passivate{})
	case !m.idleTimer:
		m.idleTimer = true
		m.emit(actors.SetTimer{Name: timerIdle, After: idleAfter - (now.Mono - m.lastWork)})
	}
}

func (m *Machine) timerFired(now actors.Instant, name string) {
	switch name {
	case timerIdle:
		m.idleTimer = false
	case timerLoad:
		if m.retryingLoad {
			m.retryingLoad = false
			m.load()
		}
	case timerReserve:
		m.reserveTimedOut()
	case timerLoss:
		if m.absence != nil {
			m.absence.armed = false
			m.enqueue(wake{})
		}
	case timerAttend:
		m.attendTimer(now)
	}
}

// take replaces what is known of the run.
func (m *Machine) take(run *recordv1.Run, mod, created int64) {
	m.snapshot = snapshot{run: run, mod: mod, created: created, leased: m.cfg.Loss != Loss{}}
	m.loaded = true
}
