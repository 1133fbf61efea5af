package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// pending is a transaction on its way.
type pending struct {
	txn records.Txn
	// caller ends when nobody waits any more; nil for a caller that always does.
	caller   context.Context
	deadline time.Time
	queued   time.Time
	deliver  func(records.Result)
	// answered is set once, by whoever answers: the flight that comes back, or the time
	// that is up before.
	answered atomic.Bool
	// charge is what it takes of the room that is held on a full disk.
	charge charge
	// member is what the machine knows of a write, sole whether it left by itself. Both
	// belong to the store's lock.
	member *flight.Member[*pending]
	sole   bool
}

// expired tells whether the caller has gone.
func (p *pending) expired() bool { return p.caller != nil && p.caller.Err() != nil }

// Txn carries a transaction out and delivers its result exactly once, within
// OpTimeout. It never blocks. A write is sent once, in one flight with others; a
// transaction that only reads is repeated until the time is up, and is ordered with
// nothing: it sees what was answered before it was handed over. After Close, or beyond
// QueuedMax, deliver is called before Txn returns.
func (s *Store) Txn(txn records.Txn, deliver func(records.Result)) {
	now := time.Now()
	s.submit(&pending{txn: txn, deadline: now.Add(OpTimeout), queued: now, deliver: deliver})
}

// Do carries a transaction out. A read is repeated until the context ends and
// does not wait behind others' writes; a write is sent once and takes at most
// OpTimeout. The result's Err is the error that Do returns.
func (s *Store) Do(ctx context.Context, txn records.Txn) (records.Result, error) {
	if txn.ReadOnly() {
		result := s.read(ctx, txn)
		return result, result.Err
	}
	now := time.Now()
	done := make(chan records.Result, 1)
	p := &pending{
		txn: txn, caller: ctx, deadline: now.Add(OpTimeout), queued: now,
		deliver: func(result records.Result) { done <- result },
	}
	if p.expired() {
		s.answer(p, records.Result{Err: notSent(ctx)})
	} else {
		s.submit(p)
	}
	select {
	case result := <-done:
		return result, result.Err
	case <-ctx.Done():
	}
	s.abandon(p)
	result := <-done
	return result, result.Err
}

func notSent(ctx context.Context) error {
	return records.Errorf(records.ClassDeadline, "transaction was not sent: %w", ctx.Err())
}

// abandon answers a write whose caller has gone. One that left by itself ends with its
// caller and is answered by what it came to.
func (s *Store) abandon(p *pending) {
	s.mu.Lock()
	waited := p.member != nil && s.machine.Withdraw(p.member)
	shared := p.member != nil && !waited && !p.sole
	s.mu.Unlock()
	switch {
	case waited:
		s.answer(p, records.Result{Err: notSent(p.caller)})
	case shared:
		s.answer(p, records.Result{Err: records.Errorf(records.ClassOutcomeUnknown, "transaction is under way: %w", p.caller.Err())})
	}
}

// read is Do for what only reads.
func (s *Store) read(ctx context.Context, txn records.Txn) records.Result {
	p := &pending{txn: txn, caller: ctx, queued: time.Now()}
	result := func() records.Result {
		if err := check(txn); err != nil {
			return records.Result{Err: err}
		}
		select {
		case s.reads <- struct{}{}:
			defer func() { <-s.reads }()
		case <-ctx.Done():
			return records.Result{Err: records.Errorf(records.ClassDeadline, "read was not sent: %w", ctx.Err())}
		case <-s.running.Done():
			return records.Result{Err: errClosed}
		}
		reading, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.running, cancel)()
		return s.repeat(reading, p)
	}()
	s.metrics.observe(result, time.Since(p.queued))
	s.metrics.count(txn, result)
	return result
}

// submit hands a transaction on or answers it.
func (s *Store) submit(p *pending) {
	if err := check(p.txn); err != nil {
		s.answer(p, records.Result{Err: err})
		return
	}
	var refusal error
	if !p.txn.ReadOnly() {
		p.charge, refusal = s.space.admit(&p.txn)
	}
	s.mu.Lock()
	switch {
	case refusal != nil:
	case s.closed:
		refusal = errClosed
	case s.queue.len()+s.machine.Waiting() >= QueuedMax:
		refusal = records.Errorf(records.ClassUnavailable, "%d transactions wait already", QueuedMax)
	case p.txn.ReadOnly():
		s.queue.push(p)
		if s.working < ReadsMax {
			s.working++
			s.workers.Go(s.work)
		}
	default:
		s.handOver(p)
	}
	s.mu.Unlock()
	if refusal != nil {
		s.answer(p, records.Result{Err: refusal})
	}
}

// work carries reads out until none waits.
func (s *Store) work() {
	for {
		s.mu.Lock()
		p := s.queue.pop()
		if p == nil {
			s.working--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		result := s.carryRead(p)
		if result.Err == nil {
			s.readAnswered.Store(time.Now().UnixNano())
		}
		s.answer(p, result)
	}
}

// answer delivers a result, unless there was one before.
func (s *Store) answer(p *pending, result records.Result) {
	if p.answered.CompareAndSwap(false, true) {
		s.metrics.observe(result, time.Since(p.queued))
		s.metrics.count(p.txn, result)
		s.space.settle(p.charge)
		p.deliver(result)
	}
}

// carryRead carries a read out whose turn has come. One that has waited behind very many
// others gets the time of one try even so while the store answers those: to refuse it
// would only have it queue again.
func (s *Store) carryRead(p *pending) records.Result {
	now, deadline := time.Now(), p.deadline
	if turn := now.Add(readAttemptTimeout); deadline.Before(turn) && now.Sub(time.Unix(0, s.readAnswered.Load())) < readAttemptTimeout {
		deadline = turn
	}
	if deadline.Sub(now) < sendMin {
		return records.Result{Err: errNotInTime}
	}
	ctx, cancel := context.WithDeadline(s.base, deadline)
	defer cancel()
	return s.repeat(ctx, p)
}

var errNotInTime = records.Errorf(records.ClassUnavailable, "transaction was not sent within %v", OpTimeout)

// repeat sends a read until it is answered, refused for good, or its time is up.
func (s *Store) repeat(ctx context.Context, p *pending) records.Result {
	var backoff retries
	for {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		response, sent, err := s.conn.Load().txn(attempt, p.txn)
		cancel()
		if err == nil {
			return resultOf(response)
		}
		class := classify(err, outcome{sent: sent, expired: p.expired()})
		if class != records.ClassUnavailable || !backoff.wait(ctx) {
			return records.Result{Err: records.Errorf(class, "read (%s): %w", class, err)}
		}
	}
}

// fifo is a queue that gives its memory back as it drains.
type fifo struct {
	items []*pending
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

// all are those in the queue, the oldest first.
func (q *fifo) all() []*pending { return q.items[q.head:] }

func (q *fifo) push(p *pending) { q.items = append(q.items, p) }

// pop returns nil when nothing waits.
func (q *fifo) pop() *pending {
	if q.len() == 0 {
		return nil
	}
	p := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = nil, 0
	case q.head >= 1024 && q.head*2 >= len(q.items):
		q.items, q.head = append([]*pending(nil), q.items[q.head:]...), 0
	}
	return p
}

// takeAll empties the queue.
func (q *fifo) takeAll() []*pending {
	all := q.all()
	q.items, q.head = nil, 0
	return all
}
