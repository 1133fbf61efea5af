package placement

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	// MarksMax bounds the runs that count against a node's driver at a time: with so many
	// it is still asked in its turn by one of 2^MarksMax runs, and so found to be well
	// again.
	MarksMax = 5
	// MarkLife is how long a failed start counts.
	MarkLife = 5 * time.Minute
	// seatsMax bounds the drivers of nodes of which something is remembered. One that is
	// beyond it loses no score.
	seatsMax = 4096
)

// Scores remembers which nodes could not start what they were given, so that other
// runs rather go elsewhere. It belongs to one process, is lost with it, and is agreed
// on with nobody: it only changes in which order nodes are asked, and takes none away.
//
// Each run whose start has failed there is a mark against a node's driver, once. With
// n marks the driver keeps its turn with one of 2^n runs, and comes behind all others
// for the rest. A start that succeeds there takes a mark away, and each lapses by itself
// after MarkLife. So a node that is broken soon gets a trickle, and one that is well
// again is found by that trickle and has its share back after a few starts.
//
// A run that could not be started at a second node says nothing about either, until it
// is started somewhere: whoever calls takes its marks back (Acquit), so that a run that
// can be started nowhere does not blacken the nodes for others.
//
// Times are readings of one monotonic clock. Methods may be called from any goroutine.
// Without a mark they take no lock.
type Scores struct {
	life time.Duration
	// marked is how many seats there are.
	marked atomic.Int32

	mu    sync.Mutex
	seats map[seat][]mark
}

// seat is a driver of a node: another driver may be well.
type seat struct{ node, driver string }

// mark is a run that could not be started.
type mark struct {
	run, cause string
	at         time.Duration
}

// NewScores returns scores in which a failed start counts for a while, MarkLife in
// production. With none nothing is remembered.
func NewScores(life time.Duration) *Scores {
	return &Scores{life: life, seats: map[seat][]mark{}}
}

// Empty tells whether no node has lost score. It may be false for a while after the
// last mark has lapsed.
func (s *Scores) Empty() bool { return s.marked.Load() == 0 }

// Failed marks a node's driver: it could not start a run, for a cause in words. Of
// more than MarksMax runs the latest count.
func (s *Scores) Failed(now time.Duration, run, node, driver, cause string) {
	if s.life <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := seat{node, driver}
	if len(s.seats) >= seatsMax {
		s.sweep(now)
	}
	marks := without(s.live(now, at), run)
	if len(marks) == 0 && len(s.seats) >= seatsMax {
		return
	}
	if over := len(marks) + 1 - MarksMax; over > 0 {
		marks = marks[over:]
	}
	s.put(at, append(marks, mark{run, cause, now}))
}

// Acquit takes all marks of a run away.
func (s *Scores) Acquit(run string) {
	if s.Empty() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, marks := range s.seats {
		s.put(at, without(marks, run))
	}
}

// Started tells that a node's driver has started a run. Its mark goes, or if it has
// none the oldest one.
func (s *Scores) Started(now time.Duration, run, node, driver string) {
	if s.Empty() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := seat{node, driver}
	marks := s.live(now, at)
	left := without(marks, run)
	if len(left) == len(marks) && len(left) > 0 {
		left = left[1:]
	}
	s.put(at, left)
}

// Behind tells whether a node's driver comes behind all others for a run. A run's own
// mark does not count: it knows itself where it has failed.
func (s *Scores) Behind(now time.Duration, run, node, driver string) bool {
	if s.Empty() {
		return false
	}
	s.mu.Lock()
	marks := len(without(s.live(now, seat{node, driver}), run))
	s.mu.Unlock()
	return behind(run, node, marks)
}

// behind draws, always the same for the same run and node, with a chance of 1-1/2^marks.
// Who is behind with some marks is so with more.
func behind(run, node string, marks int) bool {
	return mix(^xxhash.Sum64String(node), xxhash.Sum64String(run))&(1<<marks-1) != 0
}

// Lost says that a node's driver has lost score.
type Lost struct {
	Node, Driver string
	// Runs are those whose starts count against it: it has its turn with one of Share.
	Runs, Share int
	// Cause is in words why the latest of them could not be started, Since how long ago
	// that was. Unless it starts or fails others, all is forgotten in Until.
	Cause        string
	Since, Until time.Duration
}

// Lost returns the drivers of nodes that have lost score, sorted.
func (s *Scores) Lost(now time.Duration) []Lost {
	if s.Empty() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	lost := make([]Lost, 0, len(s.seats))
	for at, marks := range s.seats {
		last := marks[len(marks)-1]
		lost = append(lost, Lost{
			Node: at.node, Driver: at.driver, Runs: len(marks), Share: 1 << len(marks),
			Cause: last.cause, Since: now - last.at, Until: last.at + s.life - now,
		})
	}
	slices.SortFunc(lost, func(a, b Lost) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Driver, b.Driver))
	})
	return lost
}

// live returns the marks of a seat that have not lapsed, the latest last, and forgets
// the others.
func (s *Scores) live(now time.Duration, at seat) []mark {
	marks, ok := s.seats[at]
	if !ok {
		return nil
	}
	from := slices.IndexFunc(marks, func(m mark) bool { return now-m.at < s.life })
	if from < 0 {
		from = len(marks)
	}
	s.put(at, marks[from:])
	return marks[from:]
}

// sweep forgets all that has lapsed.
func (s *Scores) sweep(now time.Duration) {
	for at := range s.seats {
		s.live(now, at)
	}
}

func (s *Scores) put(at seat, marks []mark) {
	if len(marks) == 0 {
		delete(s.seats, at)
	} else {
		s.seats[at] = marks
	}
	s.marked.Store(int32(len(s.seats))) //nolint:gosec // at most seatsMax
}

// without returns the marks of all runs but one, in a slice of their own if that had any.
func without(marks []mark, run string) []mark {
	i := slices.IndexFunc(marks, func(m mark) bool { return m.run == run })
	if i < 0 {
		return marks
	}
	return slices.Concat(marks[:i], marks[i+1:])
}
