package placement_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/placement"
)

const containerd, process = "containerd", "process"

// behindOf counts the runs, of many, for which a node's driver comes behind all others.
func behindOf(s *placement.Scores, now time.Duration, node, driver string, runs int) (n int) {
	for i := range runs {
		if s.Behind(now, fmt.Sprintf("r.default.other%d", i), node, driver) {
			n++
		}
	}
	return n
}

func fail(s *placement.Scores, now time.Duration, node, driver string, runs ...string) {
	for _, run := range runs {
		s.Failed(now, run, node, driver, "the disk is full")
	}
}

// The number of runs that keep a node's turn is binomial; five standard deviations are
// never passed by a fair draw.
func TestScoresLeaveANodeATurnWithOneOfTwoToTheRunsThatFailed(t *testing.T) {
	s := placement.NewScores(placement.MarkLife)
	const runs = 20000
	for marks := range placement.MarksMax + 3 {
		counts := min(marks, placement.MarksMax)
		share := math.Pow(0.5, float64(counts))
		kept := float64(runs - behindOf(s, 0, "n1", containerd, runs))
		if off := kept - runs*share; off*off > 25*runs*share*(1-share) {
			t.Errorf("after %d failed runs %.0f of %d keep the turn, a fair share is %.0f", marks, kept, runs, runs*share)
		}
		if n := behindOf(s, 0, "n2", containerd, 100) + behindOf(s, 0, "n1", process, 100); n != 0 {
			t.Errorf("%d runs put another node or driver behind", n)
		}
		fail(s, 0, "n1", containerd, fmt.Sprintf("r.default.%d", marks))
	}
}

func TestScoresCountARunOnceHoweverOftenItFails(t *testing.T) {
	s := placement.NewScores(placement.MarkLife)
	fail(s, 0, "n1", containerd, slices.Repeat([]string{"r.default.a"}, 20)...)
	if lost := s.Lost(0); len(lost) != 1 || lost[0].Runs != 1 || lost[0].Share != 2 {
		t.Errorf("lost %+v", lost)
	}
	if s.Behind(0, "r.default.a", "n1", containerd) {
		t.Error("a run's own mark puts the node behind for itself")
	}
}

func TestScoresComeBackByStartsAndByTime(t *testing.T) {
	s := placement.NewScores(time.Minute)
	fail(s, 0, "n1", containerd, "a", "b", "c")
	runs := func(now time.Duration) int {
		for _, lost := range s.Lost(now) {
			return lost.Runs
		}
		return 0
	}
	s.Started(0, "x", "n1", process)
	s.Started(0, "x", "n2", containerd)
	if n := runs(0); n != 3 {
		t.Errorf("%d runs count after starts elsewhere", n)
	}
	s.Started(0, "b", "n1", containerd)
	s.Started(0, "x", "n1", containerd)
	if lost := s.Lost(0); len(lost) != 1 || lost[0].Runs != 1 {
		t.Errorf("after two starts there: %+v", lost)
	}
	fail(s, 30*time.Second, "n1", containerd, "d")
	lost := s.Lost(40 * time.Second)
	if len(lost) != 1 || lost[0].Runs != 2 || lost[0].Since != 10*time.Second || lost[0].Until != 50*time.Second {
		t.Errorf("after another failure: %+v", lost)
	}
	if n := runs(time.Minute); n != 1 {
		t.Errorf("%d runs count when the first has lapsed", n)
	}
	if n := behindOf(s, 90*time.Second, "n1", containerd, 200); n != 0 || !s.Empty() {
		t.Errorf("%d runs put it behind when all has lapsed; forgotten: %t", n, s.Empty())
	}
}

func TestScoresOfARunThatFailsEverywhereAreTakenBack(t *testing.T) {
	s := placement.NewScores(placement.MarkLife)
	fail(s, 0, "n1", containerd, "good", "poison")
	fail(s, 0, "n2", containerd, "poison")
	s.Acquit("poison")
	if lost := s.Lost(0); len(lost) != 1 || lost[0].Node != "n1" || lost[0].Runs != 1 {
		t.Errorf("lost %+v", lost)
	}
}

// Whatever has happened, no node is taken away, more marks put no run back to its turn,
// and what is shown is what counts.
func TestScoresChangeTheOrderAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := placement.NewScores(time.Minute)
		var now time.Duration
		name := rapid.StringMatching(`[a-e]`)
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			now += time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second
			run, node := name.Draw(t, "run"), name.Draw(t, "node")
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				s.Started(now, run, node, process)
				if slices.ContainsFunc(s.Lost(now), func(l placement.Lost) bool { return l.Node == node && l.Runs >= placement.MarksMax }) {
					t.Fatalf("a start gives nothing back: %+v", s.Lost(now))
				}
			case 1:
				s.Acquit(run)
			default:
				before := s.Behind(now, "other", node, process)
				s.Failed(now, run, node, process, "no reason")
				if before && !s.Behind(now, "other", node, process) {
					t.Fatalf("a failed start gives %s its turn back", node)
				}
			}
		}
		lost := s.Lost(now)
		for _, l := range lost {
			if l.Runs < 1 || l.Runs > placement.MarksMax || l.Until <= 0 || l.Until > time.Minute || l.Since < 0 {
				t.Fatalf("lost %+v at %s", l, now)
			}
		}
		for _, node := range []string{"a", "b", "c", "d", "e"} {
			shown := slices.ContainsFunc(lost, func(l placement.Lost) bool { return l.Node == node })
			if !shown && behindOf(s, now, node, process, 20) != 0 {
				t.Fatalf("%s is behind and not among %+v", node, lost)
			}
		}
		if late := now + time.Minute; len(s.Lost(late)) != 0 || !s.Empty() {
			t.Fatalf("a minute later: %+v", s.Lost(late))
		}
	})
}

func TestScoresThatRememberNothingStayEmpty(t *testing.T) {
	s := placement.NewScores(0)
	fail(s, 0, "n1", containerd, "a", "b")
	if !s.Empty() || len(s.Lost(0)) != 0 {
		t.Errorf("lost %+v", s.Lost(0))
	}
}

func TestScoresAreBounded(t *testing.T) {
	s := placement.NewScores(time.Minute)
	for i := range 4096 + 10 {
		fail(s, 0, fmt.Sprintf("n%d", i), containerd, "a")
	}
	if n := len(s.Lost(0)); n != 4096 {
		t.Errorf("%d are remembered", n)
	}
	fail(s, time.Minute, "late", containerd, "a")
	if lost := s.Lost(time.Minute); len(lost) != 1 || lost[0].Node != "late" {
		t.Errorf("lapsed ones hold the place of %+v", lost)
	}
}

// The race detector is what judges here.
func TestScoresServeManyGoroutines(t *testing.T) {
	s := placement.NewScores(time.Minute)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			run := fmt.Sprintf("r%d", i)
			for k := range 200 {
				now := time.Duration(k) * time.Second
				fail(s, now, "n1", containerd, run)
				s.Behind(now, run, "n1", containerd)
				s.Lost(now)
				s.Started(now, run, "n1", containerd)
				s.Acquit(run)
			}
		})
	}
	all.Wait()
	if !s.Empty() {
		t.Errorf("left %+v", s.Lost(0))
	}
}
