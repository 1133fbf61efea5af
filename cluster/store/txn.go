package store

import (
	"context"
	"sync/atomic"
	"time"

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
	// taken is set once, by whoever will answer: the worker that sends it, or a
	// caller that gave up before.
	taken atomic.Bool
}

func (p *pending) take() bool { return p.taken.CompareAndSwap(false, true) }

// expired tells whether the caller has gone.
func (p *pending) expired() bool { return p.caller != nil && p.caller.Err() != nil }

// Txn carries a transaction out and delivers its result exactly once, within
// OpTimeout. It never blocks. A write is sent once; a transaction that only reads
// is repeated until the time is up. After Close, or beyond QueuedMax, deliver is
// called before Txn returns.
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
	s.submit(p)
	select {
	case result := <-done:
		return result, result.Err
	case <-ctx.Done():
	}
	if p.take() {
		s.answer(p, records.Result{Err: records.Errorf(records.ClassDeadline, "transaction was not sent: %w", ctx.Err())})
	}
	result := <-done
	return result, result.Err
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
	return result
}

// submit queues a transaction or answers it.
func (s *Store) submit(p *pending) {
	if err := check(p.txn); err != nil {
		s.refuse(p, err)
		return
	}
	s.mu.Lock()
	var refusal error
	switch {
	case s.closed:
		refusal = errClosed
	case s.queue.len() >= QueuedMax:
		refusal = records.Errorf(records.ClassUnavailable, "%d transactions wait already", QueuedMax)
	default:
		s.queue.push(p)
		if s.working < InFlightMax {
			s.working++
			s.workers.Go(s.work)
		}
	}
	s.mu.Unlock()
	if refusal != nil {
		s.refuse(p, refusal)
	}
}

func (s *Store) refuse(p *pending, err error) {
	if p.take() {
		s.answer(p, records.Result{Err: err})
	}
}

// work carries transactions until none waits. What leaves together is decided
// here and in carry alone: callers see one result per transaction whatever
// travels with it.
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
		if p.take() {
			s.answer(p, s.carry(p))
		}
	}
}

func (s *Store) answer(p *pending, result records.Result) {
	s.metrics.observe(result, time.Since(p.queued))
	p.deliver(result)
}

// carry sends one transaction and waits for its answer.
func (s *Store) carry(p *pending) records.Result {
	if p.expired() {
		return records.Result{Err: records.Errorf(records.ClassDeadline, "transaction was not sent: %w", p.caller.Err())}
	}
	if time.Until(p.deadline) < sendMin {
		return records.Result{Err: records.Errorf(records.ClassUnavailable, "transaction was not sent within %v", OpTimeout)}
	}
	parent := p.caller
	if parent == nil {
		parent = s.base
	}
	ctx, cancel := context.WithDeadline(parent, p.deadline)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()
	if p.txn.ReadOnly() {
		return s.repeat(ctx, p)
	}
	if err := s.space.refusal(); err != nil {
		return records.Result{Err: err}
	}
	result, _ := s.send(ctx, p, true)
	return result
}

// repeat sends a read until it is answered, refused for good, or its time is up.
func (s *Store) repeat(ctx context.Context, p *pending) records.Result {
	var backoff retries
	for {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		result, class := s.send(attempt, p, false)
		cancel()
		if result.Err == nil || class != records.ClassUnavailable || !backoff.wait(ctx) {
			return result
		}
	}
}

// send makes one attempt and gives its failure a class.
func (s *Store) send(ctx context.Context, p *pending, write bool) (records.Result, records.Class) {
	response, sent, err := s.conn.Load().txn(ctx, p.txn)
	if err == nil {
		return resultOf(response), records.ClassInternal
	}
	class := classify(err, outcome{sent: sent, write: write, expired: p.expired()})
	what := "read"
	if write {
		what = "transaction"
	}
	return records.Result{Err: records.Errorf(class, "%s (%s): %w", what, class, err)}, class
}

// fifo is a queue that gives its memory back as it drains.
type fifo struct {
	items []*pending
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

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

// takeAll empties the queue and returns what nobody has taken.
func (q *fifo) takeAll() []*pending {
	var waiting []*pending
	for p := q.pop(); p != nil; p = q.pop() {
		if p.take() {
			waiting = append(waiting, p)
		}
	}
	return waiting
}
