// Package stepping runs actors one message at a time, in one goroutine, in an
// order drawn from a seed, on a clock that stands still until it is moved.
//
// It is the other half of what a host can be made of: the same actors, behind the
// same factory, run here with the same trace for the same seed. protoactor's own
// mailbox can not do that, for it drains in one turn whatever is in it; the
// mailbox here takes one message in a turn and keeps the rest of the contract.
package stepping

import (
	"math/rand/v2"

	"github.com/asynkron/protoactor-go/actor"
)

// Scheduler is an actor.Dispatcher whose turns wait until they are stepped. It
// belongs to one goroutine, together with all that sends to its actors.
type Scheduler struct {
	runnable []func()
	random   *rand.Rand
	steps    uint64
}

var _ actor.Dispatcher = (*Scheduler)(nil)

// NewScheduler makes a scheduler that picks by the seed.
func NewScheduler(seed uint64) *Scheduler {
	return &Scheduler{random: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))} //nolint:gosec // reproducible on purpose
}

// Schedule keeps a turn until it is picked.
func (s *Scheduler) Schedule(turn func()) { s.runnable = append(s.runnable, turn) }

// Throughput is of no use to the mailbox of this package.
func (s *Scheduler) Throughput() int { return 1 }

// Step runs one of the turns that wait. It reports false when there is none.
func (s *Scheduler) Step() bool {
	if len(s.runnable) == 0 {
		return false
	}
	i := s.random.IntN(len(s.runnable))
	turn := s.runnable[i]
	s.runnable = append(s.runnable[:i], s.runnable[i+1:]...)
	s.steps++
	turn()
	return true
}

// Settle steps until no turn waits or limit steps were made, and reports whether
// none waits.
func (s *Scheduler) Settle(limit int) bool {
	for range limit {
		if !s.Step() {
			return true
		}
	}
	return len(s.runnable) == 0
}

// Steps is how many turns have run.
func (s *Scheduler) Steps() uint64 { return s.steps }

// Mailbox makes mailboxes that take one message in a turn. Posting is for the
// scheduler's goroutine only.
func Mailbox() actor.Mailbox { return &mailbox{} }

// mailbox keeps the contract of protoactor's default one: system messages first, a
// suspended actor takes only those, each kind in the order it was posted, a panic
// escalates, a batch is posted message by message and then as itself.
type mailbox struct {
	system, user queue
	suspended    bool
	// scheduled is set while a turn waits or runs.
	scheduled  bool
	invoker    actor.MessageInvoker
	dispatcher actor.Dispatcher
}

func (m *mailbox) PostUserMessage(message any) {
	if batch, ok := actor.UnwrapEnvelopeMessage(message).(actor.MessageBatch); ok {
		for _, part := range batch.GetMessages() {
			m.PostUserMessage(part)
		}
	}
	m.user.push(message)
	m.schedule()
}

func (m *mailbox) PostSystemMessage(message any) {
	m.system.push(message)
	m.schedule()
}

func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.invoker, m.dispatcher = invoker, dispatcher
}

func (m *mailbox) Start() {}

func (m *mailbox) UserMessageCount() int { return m.user.len() }

func (m *mailbox) schedule() {
	if m.scheduled || m.system.len() == 0 && (m.suspended || m.user.len() == 0) {
		return
	}
	m.scheduled = true
	m.dispatcher.Schedule(m.turn)
}

func (m *mailbox) turn() {
	m.take()
	m.scheduled = false
	m.schedule()
}

// take takes one message.
func (m *mailbox) take() {
	var message any
	defer func() {
		if r := recover(); r != nil {
			m.invoker.EscalateFailure(r, message)
		}
	}()
	if m.system.len() > 0 {
		message = m.system.pop()
		switch message.(type) {
		case *actor.SuspendMailbox:
			m.suspended = true
		case *actor.ResumeMailbox:
			m.suspended = false
		default:
			m.invoker.InvokeSystemMessage(message)
		}
		return
	}
	if !m.suspended && m.user.len() > 0 {
		message = m.user.pop()
		m.invoker.InvokeUserMessage(message)
	}
}

// queue is first in, first out.
type queue struct {
	items []any
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(item any) { q.items = append(q.items, item) }

func (q *queue) pop() any {
	item := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return item
}
