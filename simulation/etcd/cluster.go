package etcd

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// What a default cluster takes its time for.
const (
	// electionMin is how long a leader may be silent before the others look for another.
	electionMin = time.Second
	// requireLeaderMin and requireLeaderMax bound how long a member without a leader
	// keeps the watches that require one.
	requireLeaderMin = 3 * time.Second
	requireLeaderMax = 4 * time.Second
	// markEvery is how often the revision is noted for compaction.
	markEvery = 30 * time.Second
	// firstTerm is that of a cluster's first leader.
	firstTerm = 2
)

// Within is a duration that is drawn anew each time, evenly between two bounds.
type Within struct{ Min, Max time.Duration }

func (w Within) draw(r *rand.Rand) time.Duration {
	if w.Max <= w.Min {
		return w.Min
	}
	return w.Min + time.Duration(r.Int64N(int64(w.Max-w.Min)+1))
}

// Options say what a cluster is like while nothing goes wrong. The zero value is a
// cluster of one with the defaults below.
type Options struct {
	// Members is how many there are; 0 means 1.
	Members int
	// Latency is the way between a client and a member, one direction.
	Latency Within
	// Commit is what a write takes beside that.
	Commit Within
	// Election is how long the others wait for a leader that is silent before they
	// elect another one.
	Election Within
	// Expiry is how late the end of a lease is processed.
	Expiry Within
	// Deposed is how long a leader that wakes up believes to be one still.
	Deposed Within
	// Flights is how many flights of transactions a client may have under way; 0 means
	// that it sends each transaction by itself.
	Flights int
	// OpsMax bounds the operations of a transaction; 0 means OpsMax.
	OpsMax int
	// Retention is how long old revisions are kept; negative means for ever.
	Retention time.Duration
}

// DefaultOptions are those of a healthy cluster in one data center.
func DefaultOptions(members int) Options {
	return Options{
		Members:  members,
		Latency:  Within{100 * time.Microsecond, 500 * time.Microsecond},
		Commit:   Within{300 * time.Microsecond, 3 * time.Millisecond},
		Election: Within{electionMin, 2 * electionMin},
		Expiry:   Within{time.Millisecond, 500 * time.Millisecond},
		Deposed:  Within{10 * time.Millisecond, time.Second},
		OpsMax:   OpsMax, Retention: 5 * time.Minute,
	}
}

func (o Options) withDefaults() Options {
	d := DefaultOptions(1)
	if o.Members <= 0 {
		o.Members = d.Members
	}
	for _, w := range []struct{ given, otherwise *Within }{
		{&o.Latency, &d.Latency}, {&o.Commit, &d.Commit}, {&o.Election, &d.Election}, {&o.Expiry, &d.Expiry}, {&o.Deposed, &d.Deposed},
	} {
		if *w.given == (Within{}) {
			*w.given = *w.otherwise
		}
	}
	if o.OpsMax == 0 {
		o.OpsMax = d.OpsMax
	}
	if o.Retention == 0 {
		o.Retention = d.Retention
	}
	return o
}

// Faults are what may be switched on and off at any time; the zero value is none.
type Faults struct {
	// Full refuses whatever would make the database grow.
	Full bool
	// Overload is the share of writes that are refused because there are too many.
	Overload float64
	// Slow is added to each way between a client and a member.
	Slow time.Duration
}

// Cluster is a simulated etcd cluster.
type Cluster struct {
	// Faults befall everybody; those of one client are in its Link.
	Faults Faults

	options  Options
	timeline *virtual.Timeline
	rand     *rand.Rand
	history  *history.History

	state   *State
	members []member
	// leader is the index of the member that leads, which may be silent.
	leader int
	term   uint64
	// healthy says that the leader can commit.
	healthy bool
	// electing says that an election is on its way.
	electing bool
	// generation changes when the store is replaced; what was under way is lost then.
	generation int
	// stuck are requests that wait for a leader, in order.
	stuck []*stuck
	// lessor knows when each lease ends, as the leader does.
	lessor    map[int64]*expiry
	nextLease int64

	watches watches
	clients []*Client
	links   map[string]*Link
	marks   []mark

	translator translator
	text       []byte
}

// mark is what the revision was at a time.
type mark struct {
	at       time.Duration
	revision int64
}

// New makes a cluster with a leader and an empty store.
func New(timeline *virtual.Timeline, r *rand.Rand, h *history.History, options Options) *Cluster {
	options = options.withDefaults()
	c := &Cluster{
		options: options, timeline: timeline, rand: r, history: h,
		state: newState(), members: make([]member, options.Members), term: firstTerm, healthy: true,
		lessor: map[int64]*expiry{}, links: map[string]*Link{}, watches: newWatches(),
	}
	for i := range c.members {
		c.members[i].term = c.term
	}
	c.leader = r.IntN(options.Members)
	return c
}

// State is what the cluster has agreed on. A Restore replaces it.
func (c *Cluster) State() *State { return c.state }

// Members is how many members there are.
func (c *Cluster) Members() int { return len(c.members) }

// Leader returns the member that leads; ok is false while nothing can be committed.
func (c *Cluster) Leader() (member int, ok bool) { return c.leader, c.healthy }

// Term is the Raft term of the newest leader.
func (c *Cluster) Term() uint64 { return c.term }

// Link is the way of a client of a name to the members. It outlives clients.
func (c *Cluster) Link(name string) *Link {
	l := c.links[name]
	if l == nil {
		l = &Link{cluster: c, name: name, cut: make([]bool, len(c.members))}
		c.links[name] = l
	}
	return l
}

// Admin carries a transaction out at once, as somebody with other means would,
// whatever goes wrong.
func (c *Cluster) Admin(txn *Txn) (Response, error) {
	if err := c.check(txn); err != nil {
		return Response{}, err
	}
	return c.apply(txn, nil)
}

// Delete removes a key at once, as an administrator would.
func (c *Cluster) Delete(key string) {
	_, _ = c.Admin(&Txn{Then: []Op{{Kind: Delete, Span: Span{Key: key}}}})
}

// Unlease puts a key again without a lease, as an administrator might. It reports
// whether the key was there.
func (c *Cluster) Unlease(key string) bool {
	kv, ok := c.state.Get(key)
	if ok {
		_, _ = c.Admin(&Txn{Then: []Op{{Kind: Put, Span: Span{Key: key}, Value: kv.Value}}})
	}
	return ok
}

// DropLease ends a lease at once and deletes what it holds. It reports whether the
// lease was there.
func (c *Cluster) DropLease(id int64) bool { return c.revoke(id) == nil }

// Compact makes what lies before a revision unreadable; 0 stands for the newest.
func (c *Cluster) Compact(revision int64) error {
	if revision == 0 {
		revision = c.state.revision
	}
	return c.state.compact(revision, c.needed())
}

// needed is the oldest revision that a member stands at.
func (c *Cluster) needed() int64 {
	needed := c.state.revision
	for i := range c.members {
		if c.members[i].unserving {
			needed = min(needed, c.members[i].applied)
		}
	}
	return needed
}

// check looks at a transaction as a member does when it comes in.
func (c *Cluster) check(txn *Txn) error {
	return check(txn, c.options.OpsMax)
}

// apply carries out what was agreed on and tells the history and the watches.
func (c *Cluster) apply(txn *Txn, into []OpResponse) (Response, error) {
	before := c.state.revision
	response, err := c.state.apply(txn, into)
	if err == nil && response.Revision != before {
		c.committed()
	}
	return response, err
}

// revoke ends a lease.
func (c *Cluster) revoke(id int64) error {
	before := c.state.revision
	if err := c.state.revoke(id); err != nil {
		return err
	}
	if e := c.lessor[id]; e != nil {
		e.stop()
		delete(c.lessor, id)
	}
	if c.state.revision != before {
		c.committed()
	}
	return nil
}

// committed follows a change of the state.
func (c *Cluster) committed() {
	commit := &c.state.past[len(c.state.past)-1]
	c.history.Add(history.Event{At: c.timeline.Now(), Kind: history.KindCommit, Text: c.describe(commit), Detail: *commit})
	c.notify(commit)
	c.probeLater()
	c.compactByTime()
}

// describe says in one line what a commit changed, values by their hash.
func (c *Cluster) describe(commit *history.Commit) string {
	b := strconv.AppendInt(c.text[:0], commit.Revision, 10)
	for i := range commit.Changes {
		change := &commit.Changes[i]
		if change.After == nil {
			b = append(append(b, " -"...), change.Key...)
			continue
		}
		b = append(append(b, " +"...), change.Key...)
		b = strconv.AppendUint(append(b, '='), xxhash.Sum64(change.After.Value), 16)
		if change.After.Lease != 0 {
			b = strconv.AppendInt(append(b, '@'), change.After.Lease, 16)
		}
	}
	c.text = b
	return string(b)
}

// note adds an event of the store itself to the history.
func (c *Cluster) note(text string) {
	c.history.Add(history.Event{At: c.timeline.Now(), Kind: history.KindStore, Text: text})
}

// compactByTime is the server's own compaction. It rides on commits, so that an
// idle cluster has nothing to do.
func (c *Cluster) compactByTime() {
	now := c.timeline.Now()
	if n := len(c.marks); c.options.Retention < 0 || n > 0 && now-c.marks[n-1].at < markEvery {
		return
	}
	c.marks = append(c.marks, mark{now, c.state.revision})
	old := 0
	for old < len(c.marks) && now-c.marks[old].at >= c.options.Retention {
		old++
	}
	if old > 0 {
		_ = c.Compact(c.marks[old-1].revision) // somebody may have compacted further
		c.marks = append(c.marks[:0], c.marks[old:]...)
	}
}
