package store

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// flightOptions are the bounds of what is sent together.
func (c *Config) flightOptions() flight.Options {
	options := flight.Options{Flights: FlightsMax, Alone: AloneMax, Members: flight.Limit}
	if len(c.Endpoints) == 0 {
		options.Flights = FlightsEmbeddedMax
	}
	return options
}

// landing is what became of a flight.
type landing struct {
	revision int64
	term     uint64
	results  []records.Result
	// err says that it was not answered, refused that it was for certain not carried
	// out, for a reason that may lie in one member alone.
	err     error
	refused bool
}

// handOver gives a write to the machine. The lock is held.
func (s *Store) handOver(p *pending) {
	p.member = s.machine.Submit(p.txn, p)
	s.order.push(p)
	if !s.sweeping {
		s.sweeping = true
		s.sweep.Reset(time.Until(p.deadline) - sendMin)
	}
	s.launch(s.departures())
}

// departures are the flights that leave now. The lock is held.
func (s *Store) departures() (leaving []*flight.Flight[*pending]) {
	for f := s.machine.Depart(); f != nil; f = s.machine.Depart() {
		for _, member := range f.Members {
			member.Owner.sole = len(f.Members) == 1
		}
		leaving = append(leaving, f)
	}
	return leaving
}

func (s *Store) launch(leaving []*flight.Flight[*pending]) {
	for _, f := range leaving {
		s.workers.Go(func() { s.fly(f) })
	}
}

// fly carries a flight out, and then others, until none waits.
func (s *Store) fly(f *flight.Flight[*pending]) {
	for f != nil {
		l := s.carry(f)
		s.mu.Lock()
		answers := s.land(f, l)
		leaving := s.departures()
		if len(leaving) > 1 {
			s.launch(leaving[1:])
		}
		s.trim()
		s.mu.Unlock()
		s.metrics.landed(len(f.Members), l)
		for _, a := range answers {
			s.answer(a.Member.Owner, a.Result)
		}
		if f = nil; len(leaving) > 0 {
			f = leaving[0]
		}
	}
}

// land tells the machine what became of a flight. The lock is held.
func (s *Store) land(f *flight.Flight[*pending], l landing) []flight.Answer[*pending] {
	switch {
	case l.err == nil:
		return s.machine.Answered(f, l.revision, l.term, l.results)
	case l.refused && s.closed && len(f.Members) > 1:
		// What would go again, alone, is answered as all that waits.
		return s.machine.Unanswered(f, errClosed)
	case l.refused:
		return s.machine.Refused(f, l.err, textOf(l.err) == textOf(rpctypes.ErrTooManyOps))
	default:
		return s.machine.Unanswered(f, l.err)
	}
}

// carry sends a flight, once, and waits for its answer.
func (s *Store) carry(f *flight.Flight[*pending]) landing {
	parent, deadline := s.base, time.Time{}
	for _, member := range f.Members {
		if p := member.Owner; p.deadline.After(deadline) {
			deadline = p.deadline
		}
	}
	var sole *pending
	if len(f.Members) == 1 {
		sole = f.Members[0].Owner
		if sole.expired() {
			return landing{err: notSent(sole.caller)}
		}
		if sole.caller != nil {
			parent = sole.caller
		}
	}
	ctx, cancel := context.WithDeadline(parent, deadline)
	defer cancel()
	if parent != s.base {
		defer context.AfterFunc(s.base, cancel)()
	}
	capped := s.capped()
	l, sent, err := s.conn.Load().flight(ctx, f)
	if err == nil {
		s.noteRoom(f)
		return l
	}
	class := classify(err, outcome{sent: sent, write: true, expired: sole != nil && sole.expired()})
	_, refused := refusalOf(err)
	if isNoSpace(err) {
		err = s.noteNoSpace(err)
		if !capped {
			// The first one beyond the quota: a server that finds that out when it carries
			// the write out has carried it out all the same.
			class, refused = records.ClassOutcomeUnknown, false
		}
	}
	return landing{err: records.Errorf(class, "transaction (%s): %w", class, err), refused: refused}
}

// expire answers what has had its time: what waits could not be sent in time any more,
// and of what is under way in a flight that has longer nobody knows.
func (s *Store) expire() {
	s.mu.Lock()
	now := time.Now()
	var waited, flying []*pending
	var next time.Time
	for _, p := range s.order.all() {
		if due := p.deadline.Add(-sendMin); due.After(now) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			break
		}
		late := p.deadline.Add(sendMin)
		switch {
		case p.answered.Load():
		case s.machine.Withdraw(p.member):
			waited = append(waited, p)
		case !late.After(now):
			flying = append(flying, p)
		case next.IsZero():
			next = late
		}
	}
	if s.sweeping = !next.IsZero(); s.sweeping {
		s.sweep.Reset(next.Sub(now))
	}
	s.trim()
	s.mu.Unlock()
	for _, p := range waited {
		s.answer(p, records.Result{Err: errNotInTime})
	}
	for _, p := range flying {
		s.answer(p, records.Result{Err: errNoAnswer})
	}
}

var errNoAnswer = records.Errorf(records.ClassOutcomeUnknown, "transaction: no answer within %v: %w", OpTimeout, context.DeadlineExceeded)

// sweepLate lets what has waited too long be answered, until the store closes.
func (s *Store) sweepLate() {
	for {
		select {
		case <-s.sweep.C:
			s.expire()
		case <-s.running.Done():
			return
		}
	}
}

// trim forgets the oldest writes as far as they were answered. The lock is held.
func (s *Store) trim() {
	for s.order.len() > 0 && s.order.all()[0].answered.Load() {
		s.order.pop()
	}
}
