package members

import (
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/simulation/virtual"
)

const second = time.Second

func newMembers() (*virtual.Timeline, *Members) {
	line := &virtual.Timeline{}
	return line, New(line, virtual.Streams{Seed: 1}.Of("members"), "n3", "n1", "n2")
}

// pass lets time go by.
func pass(line *virtual.Timeline, d time.Duration) {
	end := line.Now() + d
	line.After(d, func() {})
	for at, ok := line.NextAt(); ok && at <= end; at, ok = line.NextAt() {
		line.Next()
	}
}

func expect(t *testing.T, v *View, want ...string) {
	t.Helper()
	if got := v.Alive(); !slices.Equal(got, want) {
		t.Errorf("%s sees %v, want %v", v.name, got, want)
	}
}

func TestViewFollowsTheTruthWithItsLag(t *testing.T) {
	line, m := newMembers()
	v := m.Of("n1")
	v.Lag = virtual.Span{Min: 3 * second, Max: 3 * second}
	expect(t, v, "n1")
	m.Up("n2", true)
	m.Up("n3", true)
	pass(line, 2*second)
	expect(t, v, "n1")
	pass(line, 2*second)
	expect(t, v, "n1", "n2", "n3")
	v.Alive()[0] = "changed" // it is the caller's
	expect(t, v, "n1", "n2", "n3")
	m.Up("n2", false)
	pass(line, second)
	m.Up("n2", true) // back before anybody has missed it
	pass(line, 10*second)
	expect(t, v, "n1", "n2", "n3")
	m.Up("n3", false)
	expect(t, v, "n1", "n2", "n3")
	pass(line, 3*second)
	expect(t, v, "n1", "n2")
}

func TestLaterNewsIsNotOvertakenByEarlier(t *testing.T) {
	line, m := newMembers()
	v := m.Of("n1")
	v.Lag = virtual.Span{Min: 10 * second, Max: 10 * second}
	m.Up("n2", true)
	v.Lag = virtual.Span{Min: second, Max: second}
	m.Up("n2", false)
	pass(line, time.Minute)
	expect(t, v, "n1")
}

func TestViewContainsItselfWhateverHappens(t *testing.T) {
	line, m := newMembers()
	v := m.Of("n2")
	v.Force("n2", false)
	v.Flap("n2", virtual.Span{Min: second, Max: second})
	m.Up("n2", false)
	for range 5 {
		pass(line, 700*time.Millisecond)
		expect(t, v, "n2")
	}
}

func TestViewIsWrongUntilItFollows(t *testing.T) {
	line, m := newMembers()
	v := m.Of("n1")
	expect(t, v, "n1")
	m.Up("n2", true)
	m.Settle()
	expect(t, v, "n1", "n2")
	v.Force("n2", false)
	expect(t, v, "n1")
	v.Force("n3", true)
	m.Settle()
	pass(line, time.Hour)
	expect(t, v, "n1", "n3")
	expect(t, m.Of("n3"), "n2", "n3")
	v.Follow("n2")
	expect(t, v, "n1", "n2", "n3")
	v.Follow()
	expect(t, v, "n1", "n2")
}

func TestFrozenViewIsStaleUntilItThaws(t *testing.T) {
	line, m := newMembers()
	v := m.Of("n1")
	m.Up("n2", true)
	v.Frozen = true // with the news under way
	pass(line, time.Minute)
	expect(t, v, "n1")
	m.Settle()
	expect(t, v, "n1")
	v.Frozen = false
	m.Update()
	pass(line, 2*second)
	expect(t, v, "n1", "n2")
}

func TestFlappingNodeComesAndGoes(t *testing.T) {
	line, m := newMembers()
	m.Up("n2", true)
	m.Settle()
	v := m.Of("n1")
	v.Flap("n2", virtual.Span{Min: second, Max: second})
	expect(t, v, "n1")
	pass(line, 1500*time.Millisecond)
	expect(t, v, "n1", "n2")
	pass(line, second)
	expect(t, v, "n1")
	v.Follow()
	expect(t, v, "n1", "n2")
	if line.Next() {
		t.Error("it goes on")
	}
}

func TestUnreachableNodeIsNotSeenThoughItIsUp(t *testing.T) {
	line, m := newMembers()
	cut := true
	m.Reaches = func(from, to string) bool { return !cut || from != "n2" || to != "n1" }
	m.Up("n2", true)
	m.Up("n3", true)
	pass(line, 2*second)
	expect(t, m.Of("n1"), "n1", "n3")
	expect(t, m.Of("n3"), "n2", "n3")
	cut = false
	m.Update()
	pass(line, 2*second)
	expect(t, m.Of("n1"), "n1", "n2", "n3")
}

func TestCandidatesGoByScoreAndTakeTurns(t *testing.T) {
	_, m := newMembers()
	m.Up("n2", true)
	m.Up("n3", true)
	m.Settle()
	m.Score("n2", 5)
	v := m.Of("n1")
	firsts := map[string]bool{}
	for range 4 {
		c := v.Candidates()
		if len(c) != 3 || c[0].Node != "n2" || c[0].Score != 5 {
			t.Fatalf("candidates %v", c)
		}
		firsts[c[1].Node] = true
	}
	if !firsts["n1"] || !firsts["n3"] {
		t.Errorf("only %v came second", firsts)
	}
}

func TestViewComparesClocksWithItsLag(t *testing.T) {
	line, m := newMembers()
	for _, name := range []string{"n1", "n2", "n3"} {
		m.Up(name, true)
	}
	m.Settle()
	leads := func(node string, want time.Duration) {
		t.Helper()
		if got := m.Of(node).Lead(actors.Instant{}); got != want {
			t.Errorf("%s is ahead by %v, want %v", node, got, want)
		}
	}
	m.Clock("n1", time.Hour) // which it knows itself at once
	leads("n1", time.Hour)
	leads("n2", 0)
	pass(line, 3*second)
	leads("n1", time.Hour)
	leads("n2", 0)
	m.Clock("n2", time.Hour)
	pass(line, 3*second)
	leads("n1", 0)
	leads("n3", -time.Hour)
	m.Of("n3").Frozen = true
	m.Clock("n1", 0)
	m.Clock("n2", 0)
	pass(line, 3*second)
	leads("n1", 0)
	leads("n3", -time.Hour) // what it has not heard
	m.Of("n3").Frozen = false
	m.Update()
	pass(line, 3*second)
	leads("n3", 0)
}
