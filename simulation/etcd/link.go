package etcd

import "time"

// Link is the way between the clients of one name and the members, and what goes
// wrong on it. Its fields may be changed at any time.
type Link struct {
	// Slow is added to each way.
	Slow time.Duration
	// WatchLag is how much later watches bring what happened, while all else is fast.
	WatchLag time.Duration
	// Unknown is the share of writes that are never answered. Of these a third is
	// committed at once, a third up to Late later, and a third never.
	Unknown float64
	Late    time.Duration

	cluster *Cluster
	name    string
	cut     []bool
	// mute says that requests arrive and answers do not.
	mute bool
}

// Cut loses all that is sent between the client and a member, in silence.
func (l *Link) Cut(member int) { l.set(func() { l.cut[member] = true }) }

// Heal ends a Cut.
func (l *Link) Heal(member int) { l.set(func() { l.cut[member] = false }) }

// CutAll cuts every member.
func (l *Link) CutAll() { l.setAll(true) }

// HealAll ends every cut.
func (l *Link) HealAll() { l.setAll(false) }

// LoseAnswers lets requests arrive and loses whatever the members send.
func (l *Link) LoseAnswers(lose bool) { l.set(func() { l.mute = lose }) }

func (l *Link) setAll(cut bool) {
	l.set(func() {
		for m := range l.cut {
			l.cut[m] = cut
		}
	})
}

func (l *Link) set(alter func()) {
	alter()
	l.cluster.refresh()
}

// answers tells whether what a member sends arrives.
func (l *Link) answers(member int) bool { return !l.mute && !l.cut[member] }

// latency draws the time of one way.
func (c *Cluster) latency(l *Link) time.Duration {
	return c.options.Latency.draw(c.rand) + c.Faults.Slow + l.Slow
}
