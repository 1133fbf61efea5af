package stepping

import (
	"math"
	"math/rand/v2"
)

// Policy picks the next turn of a world of several schedulers, which share an Order.
// It is as deterministic as the random numbers that it was given, and belongs to the
// schedulers' goroutine.
type Policy interface {
	// Pick names a scheduler by its place and the place of one of its turns, as StepAt
	// takes it. A world passes its schedulers in the same order each time, nil in the
	// place of one that may not run; in at least one a turn waits.
	Pick(schedulers []*Scheduler) (scheduler, turn int)
}

// Ready tells whether a turn waits in any of the schedulers; nil ones count as empty.
func Ready(schedulers []*Scheduler) bool {
	for _, s := range schedulers {
		if s != nil && len(s.waiting) > 0 {
			return true
		}
	}
	return false
}

// FirstInFirstOut picks the turn that has waited longest: for finding one's way in a
// trace.
type FirstInFirstOut struct{}

// Pick picks the oldest turn.
func (FirstInFirstOut) Pick(schedulers []*Scheduler) (scheduler, turn int) {
	oldest := uint64(math.MaxUint64)
	for i, s := range schedulers {
		if s != nil && len(s.waiting) > 0 && s.waiting[0].order < oldest {
			oldest, scheduler = s.waiting[0].order, i
		}
	}
	return scheduler, 0
}

// Uniform picks any turn with the same chance.
type Uniform struct{ Random *rand.Rand }

// Pick draws one number.
func (u Uniform) Pick(schedulers []*Scheduler) (scheduler, turn int) {
	return nth(schedulers, u.Random.IntN(waiting(schedulers, -1)), -1)
}

// Starve picks uniformly among the turns of all schedulers but one, whose turns run
// only when no other waits.
type Starve struct {
	Random *rand.Rand
	// Scheduler is the place of the one that starves.
	Scheduler int
}

// Pick draws at most one number.
func (s Starve) Pick(schedulers []*Scheduler) (scheduler, turn int) {
	if others := waiting(schedulers, s.Scheduler); others > 0 {
		return nth(schedulers, s.Random.IntN(others), s.Scheduler)
	}
	return nth(schedulers, s.Random.IntN(waiting(schedulers, -1)), -1)
}

// waiting counts the turns of all schedulers but one.
func waiting(schedulers []*Scheduler, but int) int {
	count := 0
	for i, s := range schedulers {
		if s != nil && i != but {
			count += len(s.waiting)
		}
	}
	return count
}

// nth finds a turn among those of all schedulers but one.
func nth(schedulers []*Scheduler, n, but int) (scheduler, turn int) {
	for i, s := range schedulers {
		if s == nil || i == but {
			continue
		}
		if n < len(s.waiting) {
			return i, n
		}
		n -= len(s.waiting)
	}
	panic("stepping: no such turn waits")
}

// Priorities gives every actor a priority of its own and always picks the turn of
// the highest. At a few steps, drawn in advance, the actor that would be next falls
// below all others. What needs only few actors to be overtaken at the right moments
// is found by this with a much better chance than by uniform picking.
type Priorities struct {
	seed uint64
	// changes are the steps at which the next actor falls, in order.
	changes []uint64
	steps   uint64
	fallen  map[place]uint64
}

// place names an actor of a world.
type place struct {
	scheduler int
	actor     uint64
}

// NewPriorities draws the priorities, and how many steps pass between two changes:
// every on average.
func NewPriorities(random *rand.Rand, every uint64) *Priorities {
	p := &Priorities{seed: random.Uint64(), fallen: map[place]uint64{}}
	at := uint64(0)
	for range changesMax {
		at += 1 + random.Uint64N(2*max(every, 1))
		p.changes = append(p.changes, at)
	}
	return p
}

// changesMax bounds how many actors fall in one world.
const changesMax = 64

// Pick finds the highest priority. The oldest turn of that actor is its only one.
func (p *Priorities) Pick(schedulers []*Scheduler) (scheduler, turn int) {
	p.steps++
	scheduler, turn = p.highest(schedulers)
	if len(p.changes) > 0 && p.steps >= p.changes[0] {
		p.changes = p.changes[1:]
		who := place{scheduler, schedulers[scheduler].waiting[turn].actor}
		// The later it falls, the lower.
		p.fallen[who] = uint64(len(p.changes)) + 1
		return p.highest(schedulers)
	}
	return scheduler, turn
}

func (p *Priorities) highest(schedulers []*Scheduler) (scheduler, turn int) {
	best := uint64(0)
	for i, s := range schedulers {
		if s == nil {
			continue
		}
		for j, t := range s.waiting {
			if priority := p.of(place{i, t.actor}); priority > best {
				best, scheduler, turn = priority, i, j
			}
		}
	}
	return scheduler, turn
}

// of is never 0.
func (p *Priorities) of(who place) uint64 {
	if fallen, ok := p.fallen[who]; ok {
		return fallen
	}
	drawn := rand.NewPCG(p.seed^uint64(who.scheduler), who.actor).Uint64() //nolint:gosec // a place
	return max(drawn, changesMax+1)
}
