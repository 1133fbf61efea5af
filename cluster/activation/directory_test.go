package activation_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
)

// subject does what it is told: "idle" offers its end, "panic" panics, "end" stops
// itself, "ask" answers. All else it only notes.
type subject struct {
	identity   string
	journal    *journal
	changed    func()
	deliveries *uint64
}

func subjects(w *world, j *journal) func(string) actor.Producer {
	return func(identity string) actor.Producer {
		deliveries := new(uint64)
		return func() actor.Actor {
			return &subject{identity: identity, journal: j, changed: w.changed, deliveries: deliveries}
		}
	}
}

func (s *subject) Receive(ctx actor.Context) {
	defer s.changed()
	switch m := ctx.Message().(type) {
	case *actor.Started:
		s.journal.add(s.identity + " started")
	case *actor.Stopped:
		s.journal.add(s.identity + " stopped")
	case *wrapperspb.StringValue:
		*s.deliveries++
		s.journal.add(s.identity + " " + m.GetValue())
		switch m.GetValue() {
		case "idle":
			ctx.Request(ctx.Parent(), &activation.Passivate{Deliveries: *s.deliveries})
		case "panic":
			panic("as told")
		case "end":
			ctx.Stop(ctx.Self())
		case "ask":
			ctx.Respond(word("answer of " + s.identity))
		}
	}
}

func word(s string) proto.Message { return wrapperspb.String(s) }

func TestDirectoryActivatesAtTheFirstMessageAndKeepsOrder(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		must(t, d.Register("thing", subjects(w, j)))
		want := []string{"a started"}
		for i := range 20 {
			d.Tell("thing", "a", word(strconv.Itoa(i)))
			want = append(want, "a "+strconv.Itoa(i))
		}
		w.until(t, "all messages taken", func() bool { return len(j.all()) == len(want) })
		if got := j.all(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got := d.Activations()["thing"]; got != 1 {
			t.Errorf("%d activations, want 1", got)
		}
	})
}

func TestDirectoryLosesNoMessageToPassivation(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		must(t, d.Register("thing", subjects(w, j)))
		const rounds = 300
		for i := range rounds {
			d.Tell("thing", "a", word("idle"))
			w.breathe(i % 8) // the next message comes at every stage of the end
			d.Tell("thing", "a", word(strconv.Itoa(i)))
			d.Tell("thing", "a", word("idle"))
			if i%7 == 0 {
				w.until(t, "a passivation", func() bool { return d.Activations()["thing"] == 0 })
			}
		}
		w.until(t, "all messages taken", func() bool { return j.count("a idle") == 2*rounds })
		for i := range rounds {
			if n := j.count("a " + strconv.Itoa(i)); n != 1 {
				t.Fatalf("message %d was taken %d times", i, n)
			}
		}
		w.until(t, "the last passivation", func() bool { return d.Activations()["thing"] == 0 })
		alive := 0
		for _, line := range j.all() {
			switch line {
			case "a started":
				alive++
			case "a stopped":
				alive--
			}
			if alive > 1 {
				t.Fatal("two activations at a time")
			}
		}
	})
}

func TestDirectoryRefusesPassivationWithAMessageOnItsWay(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		must(t, d.Register("thing", func(identity string) actor.Producer {
			return func() actor.Actor {
				return actor.ReceiveFunc(func(ctx actor.Context) {
					defer w.changed()
					switch m := ctx.Message().(type) {
					case *actor.Stopped:
						j.add("stopped")
					case *wrapperspb.StringValue:
						// The second message was forwarded before this offer can arrive.
						d.Tell("thing", identity, word("second"))
						j.add(m.GetValue())
						if m.GetValue() == "first" {
							ctx.Request(ctx.Parent(), &activation.Passivate{Deliveries: 1})
						}
					}
				})
			}
		}))
		d.Tell("thing", "a", word("first"))
		w.until(t, "the second message", func() bool { return j.count("second") > 0 })
		w.stop(t, d)
		if got := j.all(); got[1] != "second" || got[len(got)-1] != "stopped" || j.count("stopped") != 1 {
			t.Errorf("got %v", got[:min(len(got), 5)])
		}
	})
}

func TestDirectoryActivatesAgainAfterAnEnd(t *testing.T) {
	for _, how := range []string{"end", "panic"} {
		t.Run(how, func(t *testing.T) {
			inEachWorld(t, func(t *testing.T, w *world) {
				j := &journal{}
				d := activation.New(w.host, "n1")
				must(t, d.Register("thing", subjects(w, j)))
				times := 1
				if how == "panic" {
					times = host.RestartsMax + 1
				}
				for range times {
					d.Tell("thing", "a", word(how))
				}
				w.until(t, "the end", func() bool { return j.count("a stopped") == 1 && d.Activations()["thing"] == 0 })
				d.Tell("thing", "a", word("hello"))
				w.until(t, "the next activation", func() bool { return j.count("a hello") == 1 })
			})
		})
	}
}

func TestDirectoryRefuses(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1", activation.Options{
			ActivationsMax: 1,
		})
		must(t, d.Register("thing", subjects(w, j)))
		must(t, d.Register("node", subjects(w, j), activation.Pinned))
		must(t, d.Register("bad", func(string) actor.Producer { panic("can not") }))
		d.Tell("thing", "first", word("hello"))
		cases := []struct {
			name, kind, identity string
			class                records.Class
			is                   error
		}{
			{"a kind that is not known", "nothing", "a", records.ClassInvalid, activation.ErrUnknownKind},
			{"an empty identity", "thing", "", records.ClassInvalid, activation.ErrIdentity},
			{"an identity that is too long", "thing", strings.Repeat("a", 600), records.ClassInvalid, activation.ErrIdentity},
			{"a pinned actor of another node", "node", "n2", records.ClassUnavailable, activation.ErrElsewhere},
			{"one activation too many", "thing", "b", records.ClassUnavailable, activation.ErrBusy},
		}
		refused := uint64(0)
		for _, c := range cases {
			var got error
			done := false
			d.AskThen(c.kind, c.identity, word("ask"), func(_ proto.Message, err error) { got, done = err, true; w.changed() })
			d.Tell(c.kind, c.identity, word("hello"))
			refused++
			w.until(t, "the refusals of "+c.name, func() bool { return d.Refused() == refused })
			if !done || !errors.Is(got, c.is) || records.ClassOf(got) != c.class {
				t.Errorf("%s: answered %v, class %v", c.name, got, records.ClassOf(got))
			}
		}
		if err := d.Register("thing", subjects(w, j)); !errors.Is(err, activation.ErrRegistered) {
			t.Errorf("registered twice: %v", err)
		}
	})
}

func TestDirectorySurvivesAnActorThatCanNotBeMade(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		must(t, d.Register("thing", subjects(w, j)))
		must(t, d.Register("bad", func(string) actor.Producer { return func() actor.Actor { panic("can not") } }))
		d.Tell("thing", "a", word("before"))
		d.Tell("bad", "x", word("hello"))
		d.Tell("thing", "a", word("after"))
		w.until(t, "the good actor's message", func() bool { return j.count("a after") == 1 })
		if got := j.count("a started"); got != 1 {
			t.Errorf("the good actor started %d times", got)
		}
	})
}

func TestDirectoryBringsResidentsBack(t *testing.T) {
	for _, form := range []activation.Form{activation.Resident, activation.Pinned} {
		t.Run(strconv.Itoa(int(form)), func(t *testing.T) {
			inEachWorld(t, func(t *testing.T, w *world) {
				j := &journal{}
				d := activation.New(w.host, "n1")
				must(t, d.Register("stays", subjects(w, j), form))
				d.Tell("stays", "n1", word("idle"))
				d.Tell("stays", "n1", word("end"))
				w.until(t, "its return", func() bool { return j.count("n1 started") == 2 })
				w.stop(t, d)
				if started, stopped := j.count("n1 started"), j.count("n1 stopped"); started != 2 || stopped != 2 {
					t.Errorf("started %d, stopped %d times", started, stopped)
				}
			})
		})
	}
}

func TestDirectoryComesBackAfterAPanicOfItsOwn(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1", activation.Options{Transport: nowhere{}, Ranks: func(_, identity string) []string {
			if identity == "bad" {
				panic("no ranks")
			}
			return []string{"n1"}
		}})
		must(t, d.Register("thing", subjects(w, j)))
		must(t, d.Register("stays", subjects(w, j), activation.Resident))
		d.Tell("thing", "a", word("before"))
		d.Tell("stays", "r", word("before"))
		d.Tell("thing", "bad", word("hello"))
		d.Tell("thing", "a", word("after"))
		w.until(t, "all are back", func() bool { return j.count("a after") == 1 && j.count("r started") == 2 })
		w.stop(t, d)
		for _, name := range []string{"a", "r"} {
			if started, stopped := j.count(name+" started"), j.count(name+" stopped"); started != 2 || stopped != 2 {
				t.Errorf("%s: started %d, stopped %d times", name, started, stopped)
			}
		}
		if counts := d.Activations(); counts["thing"] != 0 || counts["stays"] != 0 {
			t.Errorf("%v are active", counts)
		}
	})
}

func TestDirectoryHoldsNothingOfActorsThatEnded(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		var collected atomic.Int64
		must(t, d.Register("thing", func(identity string) actor.Producer {
			deliveries := new(uint64)
			return func() actor.Actor {
				s := &subject{identity: identity, journal: j, changed: w.changed, deliveries: deliveries}
				runtime.AddCleanup(s, func(int) { collected.Add(1) }, 0)
				return s
			}
		}))
		const actors = 200
		for i := range actors {
			d.Tell("thing", strconv.Itoa(i), word("hello"))
		}
		w.until(t, "all are active", func() bool { return d.Activations()["thing"] == actors })
		for i := range actors {
			d.Tell("thing", strconv.Itoa(i), word("idle"))
		}
		w.until(t, "all have passivated", func() bool { return d.Activations()["thing"] == 0 })
		// A goroutine or two may still hold the last ones.
		newChanges().until(t, "the garbage to be collected", func() bool { runtime.GC(); return collected.Load() >= actors-5 })
	})
}

func TestDirectoryStopEndsAllActivations(t *testing.T) {
	inEachWorld(t, func(t *testing.T, w *world) {
		j := &journal{}
		d := activation.New(w.host, "n1")
		must(t, d.Register("thing", subjects(w, j)))
		for i := range 10 {
			d.Tell("thing", strconv.Itoa(i), word("hello"))
		}
		w.until(t, "ten activations", func() bool { return d.Activations()["thing"] == 10 })
		w.stop(t, d)
		if got := d.Activations()["thing"]; got != 0 {
			t.Errorf("%d activations are left", got)
		}
		for i := range 10 {
			if j.count(strconv.Itoa(i)+" stopped") != 1 {
				t.Errorf("actor %d has not stopped", i)
			}
		}
		d.Tell("thing", "late", word("hello"))
		_, err := d.Ask(t.Context(), "thing", "late", word("ask"))
		if records.ClassOf(err) != records.ClassUnavailable || !errors.Is(err, activation.ErrStopped) {
			t.Errorf("asked after the stop: %v", err)
		}
	})
}

func TestDirectoryAsk(t *testing.T) {
	w := &world{changed: func() {}}
	w.host = host.New(host.Options{Clock: realClock{start: time.Now()}})
	defer func() { must(t, w.host.Close(t.Context())) }()
	d := activation.New(w.host, "n1")
	must(t, d.Register("thing", subjects(w, &journal{})))

	t.Run("answered", func(t *testing.T) {
		answer, err := d.Ask(t.Context(), "thing", "a", word("ask"))
		if err != nil || answer.(*wrapperspb.StringValue).GetValue() != "answer of a" {
			t.Errorf("got %v, %v", answer, err)
		}
	})
	t.Run("not answered in time", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := d.Ask(ctx, "thing", "a", word("silence"))
		if records.ClassOf(err) != records.ClassOutcomeUnknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, class %v", err, records.ClassOf(err))
		}
	})
	t.Run("too late to be sent", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Ask(ctx, "thing", "a", word("ask")); records.ClassOf(err) != records.ClassDeadline {
			t.Errorf("got %v, class %v", err, records.ClassOf(err))
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
