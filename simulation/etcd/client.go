package etcd

import (
	"errors"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// The bounds of the production adapter.
const (
	inFlightMax        = 64
	queuedMax          = 1 << 16
	opTimeout          = 5 * time.Second
	leaseTimeout       = 4 * time.Second
	sendMin            = 100 * time.Millisecond
	readAttemptTimeout = 2 * time.Second
	backoffMin         = 25 * time.Millisecond
	backoffMax         = time.Second
	probeInterval      = 5 * time.Second
	probeTimeout       = 2 * time.Second
)

// Client is the store as one incarnation of a daemon has it. It implements
// actors.Store and actors.Leases with the promises and bounds of the production
// adapter; everything is delivered from the timeline, never within a call.
type Client struct {
	// Deliver is handed each delivery, and may keep it, as a machine does that stands
	// still. Nil delivers at once.
	Deliver func(deliver func())
	// Flaw is what is wrong with how flights are handled; 0 is nothing.
	Flaw Flaw

	cluster *Cluster
	link    *Link
	// member is the one that the next request goes to.
	member   int
	closed   bool
	inFlight int
	queue    []*call
	// machine decides which writes are sent together; nil sends each by itself.
	// submitted counts what it was given.
	machine   *flight.Machine[*call]
	submitted uint64
	follows   []*follow
	// probing says that the next look at the follows is set.
	probing bool
}

var (
	_ actors.Store  = (*Client)(nil)
	_ actors.Leases = (*Client)(nil)
)

// Client makes the client of a new incarnation of a daemon; the Link of that name is
// its way to the members.
func (c *Cluster) Client(name string) *Client {
	client := &Client{cluster: c, link: c.Link(name), member: c.rand.IntN(len(c.members))}
	if n := c.options.Flights; n > 0 {
		client.machine = flight.New[*call](flight.Options{Flights: n, Alone: aloneMax, Members: flight.Limit})
	}
	c.clients = append(c.clients, client)
	return client
}

// Close makes every later delivery vanish, as the end of the daemon's process does.
// What was sent may still be carried out.
func (c *Client) Close() {
	c.closed = true
	c.queue = nil
	for _, f := range c.follows {
		f.stopped = true
		f.drop()
	}
	c.follows = nil
	for i, other := range c.cluster.clients {
		if other == c {
			c.cluster.clients = append(c.cluster.clients[:i], c.cluster.clients[i+1:]...)
			return
		}
	}
}

// Member is the member that the next request goes to.
func (c *Client) Member() int { return c.member }

// UseMember lets the next requests go to a member.
func (c *Client) UseMember(member int) { c.member = member }

// move turns to the next member, unless that has happened already.
func (c *Client) move(from int) {
	if c.member == from {
		c.member = (from + 1) % len(c.cluster.members)
	}
}

// Txn implements actors.Store.
func (c *Client) Txn(txn records.Txn, deliver func(records.Result)) {
	k := &call{client: c, verb: verbWrite, txn: txn, deliver: deliver, deadline: c.cluster.timeline.Now() + opTimeout}
	if txn.ReadOnly() {
		k.verb = verbRead
	}
	err := known(&txn)
	shared := c.machine != nil && k.verb == verbWrite
	waiting := len(c.queue)
	if c.machine != nil {
		waiting += c.machine.Waiting()
	}
	if err == nil && waiting >= queuedMax {
		err = records.Errorf(records.ClassUnavailable, "%d transactions wait already", queuedMax)
	}
	switch {
	case c.closed:
	case err != nil:
		c.cluster.timeline.After(0, func() { c.finish(k, answer{err: err}) })
	case shared:
		c.submit(k)
	case c.inFlight >= inFlightMax:
		c.queue = append(c.queue, k)
	default:
		c.start(k)
	}
}

func (c *Client) start(k *call) {
	k.queued = true
	c.inFlight++
	c.cluster.sendCall(k)
}

// ReadLocal reads what the member has, however old that is: a serializable read.
// Of the operations only Key and Prefix count. It is answered within two seconds.
func (c *Client) ReadLocal(txn records.Txn, deliver func(records.Result)) {
	c.single(&call{verb: verbLocal, txn: txn, deliver: deliver}, readAttemptTimeout)
}

// Grant implements actors.Leases.
func (c *Client) Grant(ttl time.Duration, deliver func(actors.LeaseResult)) {
	c.single(&call{verb: verbGrant, ttl: ttl, deliverLease: deliver}, leaseTimeout)
}

// KeepAlive implements actors.Leases.
func (c *Client) KeepAlive(lease int64, deliver func(actors.LeaseResult)) {
	c.single(&call{verb: verbKeepAlive, lease: lease, deliverLease: deliver}, leaseTimeout)
}

// Revoke implements actors.Leases.
func (c *Client) Revoke(lease int64, deliver func(actors.LeaseResult)) {
	c.single(&call{verb: verbRevoke, lease: lease, deliverLease: deliver}, leaseTimeout)
}

// single sends a call that does not wait behind others.
func (c *Client) single(k *call, timeout time.Duration) {
	if c.closed {
		return
	}
	k.client, k.deadline = c, c.cluster.timeline.Now()+timeout
	c.cluster.sendCall(k)
}

// receive takes an answer.
func (c *Client) receive(k *call, attempt int, a answer) {
	if c.closed || k.done || k.attempt != attempt {
		return
	}
	if lost(a.err) {
		c.move(k.member)
	}
	if a.err == nil || !k.verb.repeated() || records.ClassOf(a.err) != records.ClassUnavailable {
		c.finish(k, a)
		return
	}
	c.again(k, a)
}

// lost tells whether an answer says that the member is of no use for now.
func lost(err error) bool {
	return errors.Is(err, ErrNoLeader) || errors.Is(err, errReset) || errors.Is(err, errRefused)
}

// expired is an attempt that was not answered.
func (c *Client) expired(k *call) {
	if c.closed || k.done {
		return
	}
	c.move(k.member)
	if k.verb.repeated() {
		c.again(k, answer{err: errTimeout})
		return
	}
	c.finish(k, answer{err: errTimeout})
}

// again repeats a read after a while. a is its answer if the time is up by then.
func (c *Client) again(k *call, a answer) {
	now := c.cluster.timeline.Now()
	wait := min(k.backoff.next(), k.deadline-now)
	k.attempt++ // whatever still comes of the last one is too late
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
	c.cluster.timeline.After(wait, func() {
		switch {
		case c.closed || k.done:
		case c.cluster.timeline.Now() >= k.deadline:
			c.finish(k, a)
		default:
			c.cluster.sendCall(k)
		}
	})
}

// finish ends a call and lets the next one go.
func (c *Client) finish(k *call, a answer) {
	if k.done || c.closed {
		return
	}
	k.done = true
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
	if k.queued {
		c.inFlight--
		c.next()
	}
	var err error
	if a.err != nil && k.flight == nil {
		err = k.errorOf(a.err)
	}
	switch {
	case k.flight != nil:
		c.land(k, a)
	case k.follow != nil:
		k.follow.again()
	case k.deliverLease != nil:
		if err != nil {
			a.lease = actors.LeaseResult{Err: err}
		}
		c.hand(func() { k.deliverLease(a.lease) })
	default:
		if err != nil {
			a.result = records.Result{Err: err}
		}
		c.hand(func() { k.deliver(a.result) })
	}
}

// next sends what waits.
func (c *Client) next() {
	for len(c.queue) > 0 && c.inFlight < inFlightMax {
		k := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		if k.deadline-c.cluster.timeline.Now() < sendMin {
			c.finish(k, answer{err: errNotSent})
			continue
		}
		c.start(k)
	}
}

var errNotSent = records.Errorf(records.ClassUnavailable, "not sent within %v", opTimeout)

// hand delivers to the daemon, if there still is one.
func (c *Client) hand(deliver func()) {
	switch {
	case c.closed:
	case c.Deliver == nil:
		deliver()
	default:
		c.Deliver(func() {
			if !c.closed {
				deliver()
			}
		})
	}
}

// backoff is the time before the next try: doubling, up to backoffMax.
type backoff struct{ last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, backoffMin), backoffMax)
	return b.last
}

func (b *backoff) reset() { b.last = 0 }
