package shell_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
)

// script is a machine that does what it is told, word by word, and notes each
// input.
type script struct {
	w        *world
	identity string
	// inputs counts since this machine was made.
	inputs int
}

// echo is an effect of the test's own.
type echo struct{ times int }

// echoed is its result.
type echoed struct{}

func (m *script) Step(_ actors.Instant, in actors.Input) []actors.Effect {
	defer m.w.changed()
	m.inputs++
	switch in := in.(type) {
	case actors.Activated:
		m.note("activated at input %d", m.inputs)
		return []actors.Effect{actors.Log{Level: actors.LogInfo, Text: "activated", Fields: []any{"identity", m.identity}}}
	case actors.Committed:
		m.note("committed %d", in.Tag)
	case actors.Followed:
		m.note("followed %s reset %v", in.Prefix, in.Batch.Reset)
	case actors.TimerFired:
		m.note("fired %s", in.Name)
	case echoed:
		m.note("echoed")
	case actors.Received:
		return m.told(in)
	}
	return nil
}

func (m *script) note(format string, args ...any) {
	m.w.journal.add(m.identity + " " + fmt.Sprintf(format, args...))
}

func (m *script) told(in actors.Received) []actors.Effect {
	text := in.Message.(*wrapperspb.StringValue).GetValue()
	verb, rest, _ := strings.Cut(text, " ")
	m.note("%s", text)
	switch verb {
	case "commit":
		return []actors.Effect{actors.Commit{Tag: 7, Txn: records.Read(records.Get(rest))}}
	case "follow":
		return []actors.Effect{actors.Follow{Prefix: rest}, actors.Follow{Prefix: rest}}
	case "timer":
		name, delay, _ := strings.Cut(rest, " ")
		after, err := time.ParseDuration(delay)
		if err != nil {
			panic(err)
		}
		return []actors.Effect{actors.SetTimer{Name: name, After: after}}
	case "tell":
		to, what, _ := strings.Cut(rest, " ")
		return []actors.Effect{actors.Tell{Kind: "script", Identity: to, Message: word(what)}}
	case "ask":
		return []actors.Effect{actors.Answer{To: in.From, Message: word("answer")}, actors.Answer{To: in.From, Message: word("again")}}
	case "echo":
		return []actors.Effect{echo{times: 2}}
	case "unknown":
		return []actors.Effect{struct{ odd bool }{}}
	case "idle":
		return []actors.Effect{actors.Passivate{}}
	case "panic":
		panic("as told")
	}
	return nil
}

func word(s string) proto.Message { return wrapperspb.String(s) }

func TestShellTurnsMessagesIntoInputs(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a", "hello", "tell b how are you", "hello again")
		w.until(t, "all told", func() bool { return w.journal.has("b how are you") && w.journal.has("a hello again") })
		want := []string{"a activated at input 1", "a hello", "a tell b how are you", "a hello again"}
		if got := w.journal.of("a"); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestShellAnswersWhoAsks(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		answers := &journal{}
		w.directory.AskThen("script", "a", word("ask"), func(answer proto.Message, err error) {
			answers.add(fmt.Sprint(answer.(*wrapperspb.StringValue).GetValue(), err))
			w.changed()
		})
		w.until(t, "the answer", func() bool { return len(answers.all()) > 0 })
		w.tell("a", "ask") // nobody waits: the answer goes nowhere
		w.tell("a", "done")
		w.until(t, "the rest", func() bool { return w.journal.has("a done") })
		if got := answers.all(); len(got) != 1 || got[0] != "answer<nil>" {
			t.Errorf("got %v", got)
		}
	})
}

func TestShellCarriesEffectsOut(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a", "commit x", "follow y/", "echo")
		w.until(t, "the results", func() bool {
			return w.journal.has("a committed 7") && w.journal.has("a followed y/ reset true") && w.journal.count("a echoed") == 2
		})
		if n := w.store.followers(); n != 1 {
			t.Errorf("followed %d times, want once", n)
		}
		w.store.change("y/")
		w.until(t, "the change", func() bool { return w.journal.has("a followed y/ reset false") })
	})
}

func TestShellTimers(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a",
			"timer once 1ms",
			"timer replaced 1h", "timer replaced 40ms",
			"timer stopped 1h", "timer stopped -1ms", "timer unset -1ms",
			"timer last 100ms")
		// Timers that a busy machine is late for fire together, in any order.
		w.until(t, "the timers that are to fire", func() bool {
			return w.journal.has("a fired once") && w.journal.has("a fired replaced") && w.journal.has("a fired last")
		})
		for name, want := range map[string]int{"once": 1, "replaced": 1, "stopped": 0, "unset": 0, "last": 1} {
			if got := w.journal.count("a fired " + name); got != want {
				t.Errorf("timer %s fired %d times, want %d", name, got, want)
			}
		}
		if n := w.timers(); n != 0 {
			t.Errorf("%d timers are left", n)
		}
	})
}

// A timer that has run down but whose message is still in the mailbox when it is set
// again does not fire.
func TestShellDropsTheFiringOfAReplacedTimer(t *testing.T) {
	w := newStepped(t, 1)
	w.tell("a", "timer t 1ms")
	w.settle()
	w.tell("a", "timer t 1h", "done")
	w.settleDirectoryOnly()
	w.clock.Next() // the first setting: its message is behind the new setting
	w.settle()
	if w.journal.has("a fired t") {
		t.Error("the replaced timer fired")
	}
	if !w.journal.has("a done") || w.clock.Waiting() != 1 {
		t.Errorf("got %v, %d timers wait", w.journal.all(), w.clock.Waiting())
	}
}

func TestShellRestartsWithAFreshMachine(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.store.hold()
		w.tell("a", "follow y/", "commit x", "timer t 20ms", "panic", "after")
		w.until(t, "the message after the panic", func() bool { return w.journal.has("a after") })
		if n := w.journal.count("a activated at input 1"); n != 2 {
			t.Errorf("activated %d times, want 2", n)
		}
		if n := w.journal.count("a panic"); n != 1 {
			t.Errorf("the message that panicked was taken %d times", n)
		}
		if n := w.store.followers(); n != 0 {
			t.Errorf("%d follows of the first incarnation are left", n)
		}
		w.store.release()
		w.tell("a", "last", "timer later 60ms")
		w.until(t, "the last timer", func() bool { return w.journal.has("a fired later") })
		for _, late := range []string{"a committed 7", "a fired t", "a followed y/ reset true"} {
			if w.journal.has(late) {
				t.Errorf("a result of the first incarnation came: %s", late)
			}
		}
	})
}

func TestShellPanicsAtAnEffectThatNobodyKnows(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a", "unknown", "after")
		w.until(t, "the message after", func() bool { return w.journal.has("a after") })
		if n := w.journal.count("a activated at input 1"); n != 2 {
			t.Errorf("activated %d times, want 2", n)
		}
	})
}

func TestShellPassivatesAlsoAfterARestart(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a", "follow y/", "timer t 1h", "panic", "idle")
		w.until(t, "the passivation", func() bool { return w.journal.has("a idle") && w.directory.Activations()["script"] == 0 })
		w.tell("a", "back")
		w.until(t, "the next activation", func() bool { return w.journal.has("a back") })
		if n := w.journal.count("a activated at input 1"); n != 3 {
			t.Errorf("activated %d times, want 3", n)
		}
	})
}

func TestShellStopsWhatDeliversWhenItEnds(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		w.tell("a", "timer t 1h", "follow y/", "idle")
		w.until(t, "the passivation", func() bool { return w.journal.has("a idle") && w.directory.Activations()["script"] == 0 })
		if n := w.store.followers(); n != 0 {
			t.Errorf("%d follows are left", n)
		}
		if n := w.timers(); n != 0 {
			t.Errorf("%d timers are left", n)
		}
	})
}

func TestShellGivesUpAMachineThatAlwaysPanics(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		for range host.RestartsMax + 1 {
			w.tell("a", "panic")
		}
		w.tell("b", "hello")
		w.until(t, "the end of one", func() bool {
			return w.journal.count("a panic") == host.RestartsMax+1 && w.directory.Activations()["script"] == 1
		})
		w.tell("a", "hello")
		w.until(t, "its next activation", func() bool { return w.journal.has("a hello") })
	})
}

func TestShellRunsTheSameForTheSameSeed(t *testing.T) {
	run := func(seed uint64) []string {
		w := newStepped(t, seed)
		for i := range 5 {
			for j := range 4 {
				name := string(rune('a' + (i+j)%5))
				w.tell(name, "tell b one", fmt.Sprintf("timer t %dms", 1+i*j), "commit x", "follow y/", "echo", "idle", "tell c two")
				if j == 2 {
					w.tell(name, "panic")
				}
			}
		}
		for range 100_000 {
			if !w.scheduler.Step() && !w.clock.Next() {
				break
			}
		}
		return append(w.journal.all(), fmt.Sprint(w.scheduler.Steps(), w.clock.Now()))
	}
	traces := map[string]bool{}
	for seed := range uint64(20) {
		first := run(seed)
		if again := run(seed); !slices.Equal(first, again) {
			t.Fatalf("seed %d ran in two ways", seed)
		}
		if len(first) < 100 {
			t.Fatalf("seed %d did %d things only", seed, len(first))
		}
		traces[strings.Join(first, "\n")] = true
	}
	if len(traces) < 15 {
		t.Errorf("20 seeds gave %d traces: the seed decides nothing", len(traces))
	}
}
