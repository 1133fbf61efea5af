package etcd

import (
	"context"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// verb is what a call asks for.
type verb uint8

const (
	verbWrite verb = iota + 1
	verbRead
	verbLocal
	verbLoad
	verbGrant
	verbKeepAlive
	verbRevoke
)

// repeated tells whether a call is sent again when no answer comes.
func (v verb) repeated() bool { return v == verbRead }

// unsure tells whether a call may have done something that must not be done twice.
func (v verb) unsure() bool { return v == verbWrite || v == verbGrant || v == verbRevoke }

var verbNames = [...]string{"", "transaction", "read", "read", "read", "grant lease", "keep lease alive", "revoke lease"}

// call is one request of a client on its way.
type call struct {
	client *Client
	verb   verb
	txn    records.Txn
	lease  int64
	ttl    time.Duration
	follow *follow
	// flight is set for what carries others; ticket is what the machine knows of one that
	// is carried, aboard says that it has left.
	flight *flight.Flight[*call]
	ticket *flight.Member[*call]
	aboard bool
	// One of the two is called once.
	deliver      func(records.Result)
	deliverLease func(actors.LeaseResult)
	// queued says that it counts among those in flight.
	queued   bool
	done     bool
	deadline time.Duration
	// Of the newest attempt.
	attempt    int
	member     int
	until      time.Duration
	stopTimer  func()
	backoff    backoff
	generation int
}

// answer is what a member says to a call.
type answer struct {
	err    error
	result records.Result
	// children are the results of those on a flight.
	children []records.Result
	lease    actors.LeaseResult
}

// send makes an attempt. A connection that is refused moves on to the next member.
func (c *Cluster) sendCall(k *call) {
	client, now := k.client, c.timeline.Now()
	k.attempt++
	k.until = k.deadline
	if k.verb == verbRead || k.verb == verbLocal || k.verb == verbLoad {
		k.until = min(k.deadline, now+readAttemptTimeout)
	}
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
	for range c.members {
		if !c.members[client.member].stopped || client.link.cut[client.member] {
			break
		}
		client.move(client.member)
	}
	k.member, k.generation = client.member, c.generation
	attempt := k.attempt
	wait := c.latency(client.link)
	switch {
	case client.link.cut[k.member]:
		c.await(k)
		return
	case c.members[k.member].stopped:
		c.timeline.After(wait, func() { client.receive(k, attempt, answer{err: errRefused}) })
		return
	case k.verb == verbWrite || k.verb == verbGrant || k.verb == verbRevoke:
		wait += c.options.Commit.draw(c.rand)
	}
	c.timeline.After(wait, func() { c.arrive(k, attempt) })
	if now+wait >= k.until {
		c.await(k)
	}
}

// await makes sure that a call ends when no answer comes. While all is well it
// needs no timer: its answer is on the way.
func (c *Cluster) await(k *call) {
	if k.done || k.stopTimer != nil {
		return
	}
	k.stopTimer = c.timeline.After(k.until-c.timeline.Now(), func() {
		k.stopTimer = nil
		k.client.expired(k)
	})
}

// moot tells whether nothing is to be done for an attempt any more. What writes is
// carried out whether or not somebody still waits.
func (k *call) moot(attempt int) bool {
	return !k.verb.unsure() && (k.done || k.attempt != attempt)
}

// arrive is a request at its member.
func (c *Cluster) arrive(k *call, attempt int) {
	if k.moot(attempt) {
		return
	}
	if k.generation != c.generation {
		c.reply(k, attempt, answer{err: errReset})
		return
	}
	switch s := &c.members[k.member]; {
	case s.stopped:
		c.reply(k, attempt, answer{err: errReset})
	case s.paused:
		s.held = append(s.held, func() { c.arrive(k, attempt) })
		c.await(k)
	case k.verb == verbLocal:
		c.reply(k, attempt, c.readLocal(k))
	case k.verb == verbKeepAlive && (s.deposed || k.member == c.leader && !c.reachable(k.member)):
		c.reply(k, attempt, c.keepDeposed(k))
	case !c.serves(k.member):
		if k.verb == verbLoad {
			// The watch comes first, and requires a leader.
			c.reply(k, attempt, answer{err: ErrNoLeader})
			return
		}
		c.stuck = append(c.stuck, &stuck{
			member: k.member, since: c.timeline.Now(), lossy: k.verb.unsure(), term: c.term,
			serve: func() { c.serve(k, attempt) },
		})
		c.await(k)
	default:
		c.serve(k, attempt)
	}
}

// serve carries a request out.
func (c *Cluster) serve(k *call, attempt int) {
	if k.moot(attempt) {
		return
	}
	switch k.verb {
	case verbRead:
		c.reply(k, attempt, c.transact(k))
	case verbLoad:
		c.load(k)
	case verbKeepAlive:
		c.reply(k, attempt, c.keep(k))
	default:
		c.write(k, attempt)
	}
}

// write carries out what changes the store, with the faults of writes.
func (c *Cluster) write(k *call, attempt int) {
	if c.Faults.Overload > 0 && c.rand.Float64() < c.Faults.Overload {
		c.reply(k, attempt, answer{err: ErrTooManyRequests})
		return
	}
	link := k.client.link
	if link.Unknown <= 0 || c.rand.Float64() >= link.Unknown {
		c.reply(k, attempt, c.carryOut(k))
		return
	}
	c.await(k)
	switch c.rand.IntN(3) {
	case 0:
		c.carryOut(k)
	case 1:
		// Short delays are drawn more often, so that they are met among the long ones.
		u := c.rand.Float64()
		c.timeline.After(time.Duration(u*u*u*float64(link.Late)), func() { c.commitLate(k) })
	}
}

// commitLate carries out a write that nobody waits for, as soon as that is possible.
func (c *Cluster) commitLate(k *call) {
	switch {
	case k.generation != c.generation:
	case !c.healthy:
		c.stuck = append(c.stuck, &stuck{member: anyMember, serve: func() { c.commitLate(k) }})
	default:
		c.note("late " + verbNames[k.verb] + " of " + k.client.link.name)
		c.carryOut(k)
	}
}

func (c *Cluster) carryOut(k *call) answer {
	switch k.verb {
	case verbGrant:
		if c.Faults.Full {
			return answer{err: ErrNoSpace}
		}
		id, ttl := c.grant(k.ttl)
		return answer{lease: actors.LeaseResult{Lease: id, TTL: ttl, Term: c.members[k.member].term}}
	case verbRevoke:
		return answer{err: c.revoke(k.lease), lease: actors.LeaseResult{Lease: k.lease, Term: c.members[k.member].term}}
	default:
		return c.transact(k)
	}
}

// transact carries out a transaction or a read.
func (c *Cluster) transact(k *call) answer {
	if k.flight != nil && len(k.flight.Members) > 1 {
		return c.fly(k)
	}
	response, err := c.admit(c.translator.translate(&k.txn), c.translator.ops[:0])
	if err != nil {
		return answer{err: err}
	}
	c.translator.ops = response.Ops
	return answer{result: result(response, c.members[k.member].term)}
}

// admit carries a client's transaction out, or refuses it.
func (c *Cluster) admit(txn *Txn, into []OpResponse) (Response, error) {
	if err := c.check(txn); err != nil {
		return Response{}, err
	}
	if c.Faults.Full && txn.grows() {
		return Response{}, ErrNoSpace
	}
	return c.apply(txn, into)
}

// readLocal answers from what the member has applied, however old.
func (c *Cluster) readLocal(k *call) answer {
	s := &c.members[k.member]
	r := records.Result{Succeeded: true, Revision: c.state.revision, Term: s.term}
	if s.unserving {
		r.Revision = s.applied
	}
	for i := range k.txn.Then {
		span := Span{Key: k.txn.Then[i].Key, Prefix: k.txn.Then[i].Prefix}
		kvs := c.state.at(&span, r.Revision)
		r.Responses = append(r.Responses, records.OpResult{KVs: kvs, Count: int64(len(kvs))})
	}
	return answer{result: r}
}

func (c *Cluster) keep(k *call) answer {
	ttl, ok := c.renew(k.lease)
	return c.kept(k, ttl, ok)
}

func (c *Cluster) keepDeposed(k *call) answer {
	ttl, ok := c.renewDeposed(k.member, k.lease)
	return c.kept(k, ttl, ok)
}

func (c *Cluster) kept(k *call, ttl time.Duration, ok bool) answer {
	if !ok {
		return answer{err: errLeaseGone}
	}
	return answer{lease: actors.LeaseResult{Lease: k.lease, TTL: ttl, Term: c.members[k.member].term}}
}

// reply sends an answer back.
func (c *Cluster) reply(k *call, attempt int, a answer) {
	client := k.client
	if !client.link.answers(k.member) {
		c.await(k)
		return
	}
	wait := c.latency(client.link)
	if c.timeline.Now()+wait >= k.until {
		c.await(k)
	}
	c.timeline.After(wait, func() { client.receive(k, attempt, a) })
}

// errorOf gives a failure its class, as the production adapter does.
func (k *call) errorOf(err error) error {
	class := records.ClassOf(err)
	if k.verb.unsure() && (err == errReset || err == errTimeout) { //nolint:errorlint // ours, never wrapped
		class = records.ClassOutcomeUnknown
	}
	return records.Errorf(class, "%s (%s): %w", verbNames[k.verb], class, err)
}

var (
	errReset   = records.Errorf(records.ClassUnavailable, "connection reset")
	errRefused = records.Errorf(records.ClassUnavailable, "connection refused")
	errTimeout = records.Errorf(records.ClassUnavailable, "no answer: %w", context.DeadlineExceeded)
)
