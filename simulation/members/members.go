// Package members is what each simulated node takes for the truth about which nodes
// are there. Every node has a View of its own. It follows the truth with a lag, and
// may be made to stand still, to flap, and to be wrong about a node for good; itself
// it always contains.
//
// The truth is told by Up; who can be reached from where by a function that Update
// reads anew. Fields may be changed at any time. Everything belongs to the one
// goroutine of the world.
package members

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes/pace"
	"github.com/errand-run/errand/simulation/virtual"
)

// Members holds the truth and everybody's view of it.
type Members struct {
	// Reaches tells whether one node can reach another; nil means that all can. It is
	// read by Up and Update.
	Reaches func(from, to string) bool

	timeline *virtual.Timeline
	random   *rand.Rand
	names    []string
	up       map[string]bool
	scores   map[string]int64
	// walls are by how much the wall clocks are ahead of the true time.
	walls map[string]time.Duration
	views map[string]*View
}

// New makes the members of a world by their names; none is up.
func New(timeline *virtual.Timeline, random *rand.Rand, names ...string) *Members {
	m := &Members{
		timeline: timeline, random: random, names: slices.Sorted(slices.Values(names)),
		up: map[string]bool{}, scores: map[string]int64{}, walls: map[string]time.Duration{}, views: map[string]*View{},
	}
	for _, name := range m.names {
		m.views[name] = &View{
			members: m, name: name, Lag: virtual.Span{Min: 100 * time.Millisecond, Max: 2 * time.Second},
			shows: map[string]bool{}, forced: map[string]bool{}, news: map[string]func(){}, told: map[string]bool{}, walls: map[string]time.Duration{},
		}
	}
	return m
}

// View is how one node sees the others. It implements actors.Nodes and actors.Peers.
type View struct {
	// Lag is how long a change takes to be seen.
	Lag virtual.Span `json:"lag"`
	// Frozen views see no change any more until they are thawed by Update.
	Frozen bool `json:"frozen"`

	members *Members
	name    string
	// shows is what it sees, told the last it was told of, which may be on its way.
	shows, told map[string]bool
	news        map[string]func()
	// forced overrides what it sees.
	forced map[string]bool
	// alive is what it sees as a list, nil when that has to be made anew.
	alive []string
	// walls are what it knows of the clocks of the others, lead what follows for its own
	// while alive stands.
	walls  map[string]time.Duration
	lead   time.Duration
	turn   int
	unflap func()
}

var (
	_ actors.Nodes = (*View)(nil)
	_ actors.Peers = (*View)(nil)
)

// Of returns a node's view, nil for a name that is none of the members'.
func (m *Members) Of(node string) *View { return m.views[node] }

// Up says whether a node's daemon is there. Everybody hears of it in time.
func (m *Members) Up(node string, up bool) {
	m.up[node] = up
	m.Update()
}

// Score sets what every view shows as a node's score, 1 by default.
func (m *Members) Score(node string, score int64) { m.scores[node] = score }

// Clock says by how much a node's wall clock is ahead of the true time. Whoever hears of
// the node learns that in time, and the node itself at once.
func (m *Members) Clock(node string, ahead time.Duration) {
	m.walls[node] = ahead
	m.views[node].alive = nil
	m.Update()
}

// Update lets the views follow what has changed: who is up, who reaches whom, which
// views are frozen.
func (m *Members) Update() {
	for _, viewer := range m.names {
		v := m.views[viewer]
		for _, node := range m.names {
			if node != viewer {
				there := m.hears(viewer, node)
				v.follow(node, there)
				if there && v.walls[node] != m.walls[node] {
					m.timeline.After(v.Lag.Draw(m.random), func() { v.compare(node) })
				}
			}
		}
	}
}

// hears tells whether two nodes are there for each other.
func (m *Members) hears(viewer, node string) bool {
	return m.up[node] && (m.Reaches == nil || m.Reaches(viewer, node) && m.Reaches(node, viewer))
}

// compare lets the view know how a node's clock is now.
func (v *View) compare(node string) {
	if !v.Frozen && v.members.hears(v.name, node) {
		v.walls[node], v.alive = v.members.walls[node], nil
	}
}

// Settle makes all views right at once, but for what they are forced to see.
func (m *Members) Settle() {
	m.Update()
	for _, viewer := range m.names {
		v := m.views[viewer]
		for _, node := range m.names {
			if stop := v.news[node]; stop != nil {
				stop()
				delete(v.news, node)
			}
			if !v.Frozen {
				v.shows[node], v.alive = v.told[node], nil
			}
		}
	}
}

// follow lets the view see a node as it is, later.
func (v *View) follow(node string, there bool) {
	if v.Frozen || v.told[node] == there {
		return
	}
	v.told[node] = there
	if stop := v.news[node]; stop != nil {
		stop()
	}
	v.news[node] = v.members.timeline.After(v.Lag.Draw(v.members.random), func() {
		delete(v.news, node)
		if v.Frozen {
			v.told[node] = v.shows[node] // it is told again when it thaws
			return
		}
		v.shows[node], v.alive = there, nil
	})
}

// Force makes the view see a node as there or not, whatever is true, until Follow.
func (v *View) Force(node string, there bool) { v.forced[node], v.alive = there, nil }

// Follow ends Force and Flap for a node, or for all without any name.
func (v *View) Follow(nodes ...string) {
	v.alive = nil
	if len(nodes) == 0 {
		clear(v.forced)
		if v.unflap != nil {
			v.unflap()
			v.unflap = nil
		}
		return
	}
	for _, node := range nodes {
		delete(v.forced, node)
	}
}

// Flap makes the view see a node come and go: each state lasts for one draw of every.
// One node of a view flaps at a time, until Follow.
func (v *View) Flap(node string, every virtual.Span) {
	if v.unflap != nil {
		v.unflap()
	}
	v.forced[node], v.alive = !v.sees(node), nil
	v.unflap = v.members.timeline.After(max(every.Draw(v.members.random), time.Millisecond), func() { v.Flap(node, every) })
}

func (v *View) sees(node string) bool {
	if node == v.name {
		return true
	}
	if there, ok := v.forced[node]; ok {
		return there
	}
	return v.shows[node]
}

// Alive returns the names of the nodes that seem to be there, sorted.
func (v *View) Alive() []string { return slices.Clone(v.seen()) }

// seen is Alive, of which nothing may be changed.
func (v *View) seen() []string {
	if v.alive == nil {
		for _, node := range v.members.names {
			if v.sees(node) {
				v.alive = append(v.alive, node)
			}
		}
		v.lead = v.compared()
	}
	return v.alive
}

// compared holds the node's own clock against those of the nodes that it sees.
func (v *View) compared() time.Duration {
	others := make([]time.Duration, 0, len(v.alive))
	for _, node := range v.alive {
		if node != v.name {
			others = append(others, v.walls[node])
		}
	}
	return pace.Lead(v.members.walls[v.name], others)
}

// Lead is by how much the node's wall clock is ahead of the middle of those that it
// knows of. What clocks drift apart is not told: it stays below what counts.
func (v *View) Lead(actors.Instant) time.Duration {
	v.seen()
	return v.lead
}

// Candidates returns the nodes to ask by score, and takes turns among those of one
// score.
func (v *View) Candidates() []actors.Candidate {
	alive := v.seen()
	v.turn++
	first := v.turn % len(alive)
	candidates := make([]actors.Candidate, 0, len(alive))
	for i := range alive {
		node := alive[(first+i)%len(alive)]
		candidates = append(candidates, actors.Candidate{Node: node, Score: v.members.score(node)})
	}
	slices.SortStableFunc(candidates, func(a, b actors.Candidate) int { return cmp.Compare(b.Score, a.Score) })
	return candidates
}

func (m *Members) score(node string) int64 {
	if score, ok := m.scores[node]; ok {
		return score
	}
	return 1
}
