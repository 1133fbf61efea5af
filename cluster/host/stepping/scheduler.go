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
	"slices"

	"github.com/asynkron/protoactor-go/actor"
)

// Scheduler is an actor.Dispatcher whose turns wait until they are stepped. It
// belongs to one goroutine, together with all that sends to its actors.
type Scheduler struct {
	waiting []turn
	random  *rand.Rand
	order   *Order
	actors  uint64
	steps   uint64
}

// turn is one that waits.
type turn struct {
	run func()
	// actor numbers the mailboxes of a scheduler, from 1; 0 is for turns that are not
	// a mailbox's of this package.
	actor uint64
	// order is when it began to wait.
	order uint64
}

var _ actor.Dispatcher = (*Scheduler)(nil)

// Order tells in which order the turns of several schedulers began to wait. The
// zero Order is ready for use.
type Order struct{ last uint64 }

// NewScheduler makes a scheduler that picks by the seed.
func NewScheduler(seed uint64) *Scheduler {
	return &Scheduler{order: &Order{}, random: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))} //nolint:gosec // reproducible on purpose
}

// Among makes one of several schedulers that share an order and a Policy, which
// picks for them. Its own Step runs the turn that has waited longest.
func Among(order *Order) *Scheduler { return &Scheduler{order: order} }

// Schedule keeps a turn until it is picked.
func (s *Scheduler) Schedule(run func()) { s.schedule(run, 0) }

func (s *Scheduler) schedule(run func(), actor uint64) {
	s.order.last++
	s.waiting = append(s.waiting, turn{run: run, actor: actor, order: s.order.last})
}

// Throughput is of no use to the mailbox of this package.
func (s *Scheduler) Throughput() int { return 1 }

// Waiting is how many turns wait.
func (s *Scheduler) Waiting() int { return len(s.waiting) }

// Step runs one of the turns that wait. It reports false when there is none.
func (s *Scheduler) Step() bool {
	if len(s.waiting) == 0 {
		return false
	}
	i := 0
	if s.random != nil {
		i = s.random.IntN(len(s.waiting))
	}
	s.StepAt(i)
	return true
}

// StepAt runs the turn at a place among those that wait, which are in the order in
// which they began to.
func (s *Scheduler) StepAt(i int) {
	run := s.waiting[i].run
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.steps++
	run()
}

// Settle steps until no turn waits or limit steps were made, and reports whether
// none waits.
func (s *Scheduler) Settle(limit int) bool {
	for range limit {
		if !s.Step() {
			return true
		}
	}
	return len(s.waiting) == 0
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
	// number is the mailbox's in its scheduler.
	number uint64
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
	if s, ok := dispatcher.(*Scheduler); ok {
		s.actors++
		m.number = s.actors
	}
}

func (m *mailbox) Start() {}

func (m *mailbox) UserMessageCount() int { return m.user.len() }

func (m *mailbox) schedule() {
	if m.scheduled || m.system.len() == 0 && (m.suspended || m.user.len() == 0) {
		return
	}
	m.scheduled = true
	if s, ok := m.dispatcher.(*Scheduler); ok {
		s.schedule(m.turn, m.number)
		return
	}
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
