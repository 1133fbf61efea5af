package activation_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
)

func TestMessageThatPassesOverRanks(t *testing.T) {
	for _, c := range []struct {
		name string
		from string
		past int
		// cut names the nodes that do not hear the sender.
		cut   []string
		after time.Duration
		want  map[string]int
	}{
		{name: "reaches the second past the first", from: "n5", past: 1, want: map[string]int{"n2": 1}},
		{name: "reaches the third past two", from: "n5", past: 2, want: map[string]int{"n3": 1}},
		{name: "stays past all that are tried", from: "n5", past: 3, want: map[string]int{"n5": 1}},
		{name: "stays far past all", from: "n5", past: 99, want: map[string]int{"n5": 1}},
		{name: "leaves the first", from: "n1", past: 1, want: map[string]int{"n2": 1}},
		{name: "stays when its node is next", from: "n2", past: 1, want: map[string]int{"n2": 1}},
		{name: "is as any other past none", from: "n5", past: -1, want: map[string]int{"n1": 1}},
		{name: "falls back to the next rank", from: "n5", past: 1, cut: []string{"n2"}, after: time.Second, want: map[string]int{"n3": 1}},
		{name: "falls back to its node", from: "n5", past: 1, cut: []string{"n2", "n3"}, after: 2 * time.Second, want: map[string]int{"n5": 1}},
		{name: "falls back from the first to others", from: "n1", past: 2, cut: []string{"n3"}, after: time.Second, want: map[string]int{"n4": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachSeed(t, func(t *testing.T, seed uint64) {
				w := newCluster(t, seed, "n1", "n2", "n3", "n4", "n5")
				w.silence(c.from, false, c.cut...)
				w.node(c.from).directory.TellPast(c.past, "thing", "a", word("hello"))
				w.node(c.from).directory.TellPast(c.past, "node", "n4", word("hello"))
				w.pass(c.after + 20*time.Millisecond)
				if got := w.told("a hello"); !maps.Equal(got, c.want) {
					t.Errorf("told at %v, want %v", got, c.want)
				}
				if got := w.told("n4 hello"); !maps.Equal(got, map[string]int{"n4": 1}) {
					t.Errorf("the pinned one told at %v", got)
				}
				w.pass(time.Minute)
				w.settled()
			})
		})
	}
}

func TestMessageThatPassesOverMoreRanksThanThereAreStays(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	w.node("n1").directory.TellPast(2, "thing", "a", word("hello"))
	w.pass(time.Second)
	if got := w.told("a hello"); !maps.Equal(got, map[string]int{"n1": 1}) {
		t.Errorf("told at %v", got)
	}
	w.settled()
}

// askRepeatedly asks what any owner answers but n1, and returns what to end it with.
func (c *cluster) askRepeatedly(from, what string, wait time.Duration) (*asking, func()) {
	a := &asking{}
	drop := c.node(from).directory.AskRepeatedlyThen("thing", "a", word(what), wait, func(answer proto.Message, err error) {
		a.answer, a.err = answer, err
		a.calls++
	})
	return a, drop
}

func TestAskRepeatedlyPassesOverAnOwnerThatDoesNotAnswer(t *testing.T) {
	const wait = 15 * time.Second
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newCluster(t, seed, "n1", "n2", "n3", "n4")
		w.node("n1").mute = true
		a, _ := w.askRepeatedly("n4", "ask", wait)
		w.pass(wait/3 - time.Millisecond)
		if got := w.told("a ask"); !maps.Equal(got, map[string]int{"n1": 1}) {
			t.Fatalf("asked at %v before a third of the time", got)
		}
		w.pass(100 * time.Millisecond)
		if a.calls != 1 || a.err != nil || a.by() != "n2" {
			t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
		}
		w.pass(wait)
		if got := w.told("a ask"); !maps.Equal(got, map[string]int{"n1": 1, "n2": 1}) || a.calls != 1 {
			t.Errorf("asked at %v, answered %d times", got, a.calls)
		}
		w.settled()
	})
}

func TestAskRepeatedlyComesToItsOwnNodeAtLast(t *testing.T) {
	const wait = 15 * time.Second
	w := newCluster(t, 1, "n1", "n2", "n3", "n4")
	w.node("n1").mute, w.node("n2").mute = true, true
	a, _ := w.askRepeatedly("n4", "ask", wait)
	w.pass(wait*2/3 + 100*time.Millisecond)
	if a.calls != 1 || a.err != nil || a.by() != "n4" {
		t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
	}
	w.pass(wait)
	w.settled()
}

func TestAskRepeatedlyTakesTheFirstAnswer(t *testing.T) {
	const wait = 15 * time.Second
	w := newCluster(t, 1, "n1", "n2", "n3")
	a, _ := w.askRepeatedly("n3", "later", wait)
	w.pass(wait/3 + time.Second) // n1 and n2 have it
	w.node("n1").directory.Tell("thing", "a", word("now"))
	w.node("n2").directory.TellAt("n2", "thing", "a", word("now"))
	w.pass(time.Minute)
	if a.calls != 1 || a.err != nil || a.by() == "" {
		t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
	}
	w.settled()
}

func TestAskRepeatedlyThatIsDroppedIsOver(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.node("n1").mute = true
	a, drop := w.askRepeatedly("n3", "ask", 15*time.Second)
	w.pass(time.Second)
	drop()
	drop()
	w.pass(time.Minute)
	if got := w.told("a ask"); a.calls != 0 || !maps.Equal(got, map[string]int{"n1": 1}) {
		t.Errorf("asked at %v, answered %d times", got, a.calls)
	}
	w.settled()
}

func TestAskRepeatedlyEndsWithItsContext(t *testing.T) {
	w := newCluster(t, 1, "n1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.node("n1").directory.AskRepeatedly(ctx, "thing", "a", word("ask")); records.ClassOf(err) != records.ClassOutcomeUnknown {
		t.Errorf("%v", err)
	}
	if _, err := w.node("n1").directory.AskRepeatedly(ctx, "thing", "a", word("ask")); records.ClassOf(err) != records.ClassDeadline {
		t.Errorf("%v", err)
	}
	w.pass(time.Minute)
	w.settled()
}
