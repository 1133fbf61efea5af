package etcd

import (
	"fmt"
	"slices"
	"time"
)

// member is one server. What it has applied is the true state, unless it is cut off
// from it.
type member struct {
	isolated, paused, stopped bool
	// deposed says that it believes to lead and does not.
	deposed bool
	term    uint64
	// applied is the revision at which it stands while it does not serve.
	applied int64
	// unserving and leaderless are what observe found last.
	unserving, leaderless bool
	// silence changes each time it loses its leader, or has it back.
	silence int
	// leases are those that a deposed leader believes in.
	leases map[int64]*belief
	// held is what has come in while it was paused.
	held []func()
}

// belief is when a deposed leader thinks that a lease ends.
type belief struct {
	ttl time.Duration
	at  time.Duration
}

// stuck is a request that waits for a leader.
type stuck struct {
	// member is where it waits, or anyMember.
	member int
	since  time.Duration
	// lossy says that it may be lost, unless the leader of its term comes back.
	lossy bool
	term  uint64
	serve func()
}

// anyMember stands for a request that is certain to be carried out, wherever.
const anyMember = -1

// reachable tells whether a member runs and hears the others.
func (c *Cluster) reachable(m int) bool {
	s := &c.members[m]
	return !s.paused && !s.stopped && (!s.isolated || len(c.members) == 1)
}

// serves tells whether a member can have something committed.
func (c *Cluster) serves(m int) bool {
	return c.healthy && c.reachable(m) && !c.members[m].deposed
}

func (c *Cluster) quorum() bool {
	up := 0
	for m := range c.members {
		if c.reachable(m) {
			up++
		}
	}
	return up > len(c.members)/2
}

// Isolate cuts a member from the others; clients still reach it.
func (c *Cluster) Isolate(m int) { c.change(m, "isolated", func(s *member) { s.isolated = true }) }

// Rejoin ends an isolation.
func (c *Cluster) Rejoin(m int) { c.change(m, "rejoined", func(s *member) { s.isolated = false }) }

// Pause stops a member's process; what is sent to it waits.
func (c *Cluster) Pause(m int) { c.change(m, "paused", func(s *member) { s.paused = true }) }

// Resume ends a pause. If another leader was elected meanwhile, a paused leader
// takes a moment to learn that, and first answers what has waited.
func (c *Cluster) Resume(m int) {
	if !c.members[m].paused {
		return
	}
	c.change(m, "resumed", func(s *member) { s.paused = false })
	held := c.members[m].held
	c.members[m].held = nil
	for _, arrive := range held {
		arrive()
	}
}

// Stop ends a member's process: connections to it break, what it held is lost.
func (c *Cluster) Stop(m int) {
	if c.members[m].stopped {
		return
	}
	c.change(m, "stopped", func(s *member) {
		s.stopped, s.paused, s.deposed, s.held = true, false, false, nil
		if c.leader == m {
			c.leader = -1
		}
	})
	c.stuck = slices.DeleteFunc(c.stuck, func(s *stuck) bool { return s.member == m })
	c.breakConnections(m)
}

// Start begins a stopped member again.
func (c *Cluster) Start(m int) {
	if !c.members[m].stopped {
		return
	}
	c.change(m, "started", func(s *member) { s.stopped = false })
}

// Restart stops all members and starts them again: connections break, a leader is
// elected, every lease has its full TTL again.
func (c *Cluster) Restart() {
	for m := range c.members {
		c.Stop(m)
	}
	for m := range c.members {
		c.Start(m)
	}
}

// MoveLeader lets another member lead, if there is one that can: every lease has its
// full TTL again.
func (c *Cluster) MoveLeader() {
	if c.healthy {
		c.lead(c.choose(c.leader))
	}
}

// change alters a member and draws the consequences.
func (c *Cluster) change(m int, what string, alter func(*member)) {
	if s := &c.members[m]; m == c.leader && !s.deposed && c.reachable(m) {
		// If others elect a leader meanwhile, this is what it will still believe.
		s.leases = c.beliefs()
	}
	alter(&c.members[m])
	c.note(fmt.Sprintf("member %d %s", m, what))
	c.update()
	c.stepDownLater(m, c.options.Deposed)
}

// update finds out who can do what after something has changed.
func (c *Cluster) update() {
	c.healthy = c.leader >= 0 && c.reachable(c.leader) && !c.members[c.leader].deposed && c.quorum()
	if !c.healthy && !c.electing {
		c.electing = true
		c.timeline.After(c.options.Election.draw(c.rand), c.elect)
	}
	for m := range c.members {
		c.observe(m)
	}
	c.refresh()
	if c.healthy {
		c.expireOverdue()
		c.unstick()
	}
}

// observe notes that a member has lost its leader, or has it back.
func (c *Cluster) observe(m int) {
	s := &c.members[m]
	unserving := !c.serves(m)
	if unserving && !s.unserving {
		s.applied = c.state.revision
	}
	if !unserving {
		s.term = c.term
	}
	s.unserving = unserving
	// A paused process does not notice; its time begins when it runs again.
	leaderless := unserving && !s.paused && !s.stopped
	if leaderless == s.leaderless {
		return
	}
	s.leaderless = leaderless
	s.silence++
	if !leaderless {
		return
	}
	silence := s.silence
	c.timeline.After(Within{requireLeaderMin, requireLeaderMax}.draw(c.rand), func() {
		if s.silence == silence {
			c.endLeaderless(m)
		}
	})
}

// elect chooses another leader if the one there is has not come back.
func (c *Cluster) elect() {
	c.electing = false
	if c.healthy || !c.quorum() {
		return
	}
	c.lead(c.choose(-1))
}

// choose draws a member that could lead, another than the one given if possible.
func (c *Cluster) choose(other int) int {
	var able []int
	for m := range c.members {
		if m != other && c.reachable(m) {
			able = append(able, m)
		}
	}
	if len(able) == 0 {
		return other
	}
	return able[c.rand.IntN(len(able))]
}

// lead begins a term of a leader.
func (c *Cluster) lead(m int) {
	if old := c.leader; old >= 0 && old != m && !c.reachable(old) {
		c.members[old].deposed = true
		// One that is cut off from the others gives up by itself.
		c.stepDownLater(old, Within{0, electionMin})
	}
	c.leader = m
	c.term++
	c.members[m].deposed = false
	c.promote()
	c.note(fmt.Sprintf("member %d leads in term %d", m, c.term))
	c.update()
}

// stepDownLater lets a deposed leader that runs learn of its successor.
func (c *Cluster) stepDownLater(m int, after Within) {
	s := &c.members[m]
	if !s.deposed || s.paused || s.stopped {
		return
	}
	c.timeline.After(after.draw(c.rand), func() {
		if !s.deposed || s.paused || s.stopped {
			return
		}
		s.deposed, s.leases = false, nil
		c.note(fmt.Sprintf("member %d no longer believes to lead", m))
		c.update()
	})
}

// unstick decides what becomes of the requests that waited for a leader.
func (c *Cluster) unstick() {
	waiting := c.stuck
	c.stuck = nil
	for _, s := range waiting {
		switch {
		case !c.healthy || s.member != anyMember && !c.serves(s.member):
			c.stuck = append(c.stuck, s)
		case !s.lossy || s.term == c.term:
			s.serve()
		case c.timeline.Now()-s.since <= proposalMax && c.rand.IntN(2) == 0:
			// It was sent again, or had not left; else it is lost.
			s.serve()
		}
	}
}

// Snapshot is a copy of the store.
type Snapshot struct{ state *State }

// Snapshot copies the store as it is.
func (c *Cluster) Snapshot() *Snapshot { return &Snapshot{c.state.clone()} }

// Restore replaces the store by a copy, on members that all begin anew: what was
// under way is lost, revisions are given out again, leases have their full TTL. A
// bump moves the revision on and makes what lies before unreadable, as etcd's tool
// does when it is asked to.
func (c *Cluster) Restore(snapshot *Snapshot, bump int64) {
	c.generation++
	c.stuck, c.marks = nil, nil
	for m := range c.members {
		c.breakConnections(m)
		c.members[m] = member{silence: c.members[m].silence + 1, term: firstTerm}
	}
	c.state = snapshot.state.clone()
	if bump > 0 {
		c.state.revision += bump
		c.state.compacted, c.state.past = c.state.revision, nil
		c.state.oldest = c.state.revision + 1
	}
	for _, e := range c.lessor { // the order does not show
		e.stop()
	}
	clear(c.lessor)
	c.leader = c.choose(-1)
	c.term = firstTerm
	for _, id := range c.state.leaseIDs() {
		c.expireLater(id, time.Duration(c.state.leases[id].seconds)*time.Second)
	}
	c.note("restored to revision " + fmt.Sprint(c.state.revision))
	c.update()
}

// proposalMax is how long a member waits for a leader that takes a write.
const proposalMax = 7 * time.Second
