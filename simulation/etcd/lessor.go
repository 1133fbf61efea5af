package etcd

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// minTTLSeconds is the shortest lease that a default server grants.
const minTTLSeconds = 2

// expiry is when the leader will end a lease.
type expiry struct {
	id  int64
	ttl time.Duration
	at  time.Duration
	// stop ends the timer, which was set for an earlier time if the lease was renewed
	// since.
	stop func()
	// overdue says that it has ended while nobody could process it.
	overdue bool
}

func (s *State) leaseIDs() []int64 { return slices.Sorted(maps.Keys(s.leases)) }

// grant makes a lease and returns its id and its TTL.
func (c *Cluster) grant(ttl time.Duration) (int64, time.Duration) {
	c.nextLease++
	id := c.nextLease
	seconds := max(int64((ttl+time.Second-1)/time.Second), minTTLSeconds)
	granted := time.Duration(seconds) * time.Second
	if err := c.state.grant(id, seconds); err == nil {
		c.expireLater(id, granted)
	}
	c.note("lease " + strconv.FormatInt(id, 16) + " granted")
	return id, granted
}

func (c *Cluster) expireLater(id int64, ttl time.Duration) {
	e := &expiry{id: id, ttl: ttl, at: c.timeline.Now() + ttl}
	c.lessor[id] = e
	c.watchExpiry(e)
}

func (c *Cluster) watchExpiry(e *expiry) {
	e.stop = c.timeline.After(e.at-c.timeline.Now()+c.options.Expiry.draw(c.rand), func() { c.expire(e) })
}

// expire ends a lease, unless it was renewed or nobody can.
func (c *Cluster) expire(e *expiry) {
	switch now := c.timeline.Now(); {
	case now < e.at:
		c.watchExpiry(e)
	case !c.healthy:
		e.overdue = true
	default:
		c.note("lease " + strconv.FormatInt(e.id, 16) + " expired")
		_ = c.revoke(e.id) // it may be gone already
	}
}

// expireOverdue looks again at the leases that ended while nobody led.
func (c *Cluster) expireOverdue() {
	var overdue []*expiry
	for _, e := range c.lessor { // sorted below
		if e.overdue {
			overdue = append(overdue, e)
		}
	}
	slices.SortFunc(overdue, func(a, b *expiry) int { return cmp.Compare(a.id, b.id) })
	for _, e := range overdue {
		e.overdue = false
		c.watchExpiry(e)
	}
}

// renew gives a lease its full TTL again, from now. It reports false for one that
// is gone, or that has ended and waits to be removed.
func (c *Cluster) renew(id int64) (time.Duration, bool) {
	e := c.lessor[id]
	if e == nil || e.at <= c.timeline.Now() {
		return 0, false
	}
	e.at = c.timeline.Now() + e.ttl
	return e.ttl, true
}

// promote is what a new leader does: it does not know when leases were renewed, so
// each has its full TTL again, and as long as an election may have taken.
func (c *Cluster) promote() {
	for _, e := range c.lessor { // the order does not show: the timers stay
		e.at = c.timeline.Now() + e.ttl + electionMin
	}
}

// beliefs is what the leader knows of the leases.
func (c *Cluster) beliefs() map[int64]*belief {
	beliefs := make(map[int64]*belief, len(c.lessor))
	for id, e := range c.lessor {
		beliefs[id] = &belief{ttl: e.ttl, at: e.at}
	}
	return beliefs
}

// renewDeposed is what a leader does that does not know that it is none: it
// acknowledges and renews nothing. ok is false for a lease that it does not know.
func (c *Cluster) renewDeposed(m int, id int64) (ttl time.Duration, ok bool) {
	b := c.members[m].leases[id]
	if b == nil || b.at <= c.timeline.Now() {
		return 0, false
	}
	b.at = c.timeline.Now() + b.ttl
	return b.ttl, true
}
