package activation_test

import (
	"errors"
	"maps"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

func TestMessageReaches(t *testing.T) {
	for _, c := range []struct {
		name string
		from string
		// cut prepares the network.
		cut func(c *cluster)
		// after is by when it must be there, and before when not yet.
		before, after time.Duration
		want          map[string]int
	}{
		{
			name: "the first in rank", from: "n4",
			after: 20 * time.Millisecond, want: map[string]int{"n1": 1},
		},
		{
			name: "its own node at once when that is the first in rank", from: "n1",
			cut: func(c *cluster) { c.silence("n1", true, "n2", "n3", "n4") }, want: map[string]int{"n1": 1},
		},
		{
			name: "the second in rank when the first does not hear", from: "n4",
			cut:    func(c *cluster) { c.silence("n4", false, "n1") },
			before: 990 * time.Millisecond, after: 1020 * time.Millisecond, want: map[string]int{"n2": 1},
		},
		{
			name: "both when the first hears and is not heard", from: "n4",
			cut:    func(c *cluster) { c.silence("n1", false, "n4") },
			before: 0, after: 1020 * time.Millisecond, want: map[string]int{"n1": 1, "n2": 1},
		},
		{
			name: "its own node when neither hears", from: "n4",
			cut:    func(c *cluster) { c.silence("n4", false, "n1", "n2", "n3") },
			before: 1990 * time.Millisecond, after: 2 * time.Second, want: map[string]int{"n4": 1},
		},
		{
			name: "its own node after the first when that is the second in rank", from: "n2",
			cut:    func(c *cluster) { c.silence("n2", true, "n1") },
			before: 990 * time.Millisecond, after: time.Second, want: map[string]int{"n2": 1},
		},
		{
			name: "at most one more when the third alone is heard", from: "n4",
			cut:   func(c *cluster) { c.silence("n4", true, "n1"); c.silence("n2", false, "n4") },
			after: 2010 * time.Millisecond, want: map[string]int{"n2": 1, "n4": 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachSeed(t, func(t *testing.T, seed uint64) {
				w := newCluster(t, seed, "n1", "n2", "n3", "n4")
				if c.cut != nil {
					c.cut(w)
				}
				w.node(c.from).directory.Tell("thing", "a", word("hello"))
				if c.before > 0 {
					w.pass(c.before)
					if got := w.told("a hello"); len(got) > 0 {
						t.Fatalf("too early at %v", got)
					}
				}
				w.pass(c.after - c.before)
				if got := w.told("a hello"); !maps.Equal(got, c.want) {
					t.Fatalf("told at %v, want %v", got, c.want)
				}
				w.pass(time.Minute)
				if got := w.told("a hello"); !maps.Equal(got, c.want) {
					t.Errorf("told at %v in the end, want %v", got, c.want)
				}
				w.settled()
			})
		})
	}
}

func TestMessageIsTakenWhateverTheReceiversViewSays(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.overruled["n1"] = []string{"n3", "n2", "n1"}
	w.node("n2").directory.Tell("thing", "a", word("hello"))
	w.pass(3 * time.Second)
	if got := w.told("a hello"); !maps.Equal(got, map[string]int{"n1": 1}) {
		t.Errorf("told at %v", got)
	}
	w.settled()
}

func TestMessageGoesOnAtOnceWhenItIsRefused(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	stop(t, w, "n1")
	w.node("n3").directory.Tell("thing", "a", word("hello"))
	w.pass(100 * time.Millisecond)
	if got := w.told("a hello"); !maps.Equal(got, map[string]int{"n2": 1}) {
		t.Errorf("told at %v", got)
	}
	w.settled()
}

func TestMessagePassesOverANodeThatIsNotAble(t *testing.T) {
	for _, from := range []string{"n1", "n3"} {
		w := newCluster(t, 1, "n1", "n2", "n3")
		w.node("n1").unable = errors.New("no store")
		w.node(from).directory.Tell("thing", "a", word("hello"))
		w.node("n3").directory.Tell("node", "n1", word("hello"))
		w.pass(100 * time.Millisecond)
		if got := w.told("a hello"); !maps.Equal(got, map[string]int{"n2": 1}) {
			t.Errorf("from %s told at %v", from, got)
		}
		if got := w.told("n1 hello"); !maps.Equal(got, map[string]int{"n1": 1}) {
			t.Errorf("the pinned one told at %v", got)
		}
		w.settled()
	}
}

// stop asks a directory to stop and lets it.
func stop(t *testing.T, w *cluster, name string) {
	t.Helper()
	_ = w.node(name).directory.Stop(ended(t))
	w.settle()
	must(t, w.node(name).directory.Stop(t.Context()))
}

func TestTellAtReachesThatNodeAlone(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newCluster(t, seed, "n1", "n2", "n3")
		w.node("n1").directory.TellAt("n3", "thing", "a", word("there"))
		w.node("n2").directory.TellAt("n2", "thing", "a", word("here"))
		w.silence("n1", false, "n2")
		w.node("n1").directory.TellAt("n2", "thing", "a", word("lost"))
		w.pass(time.Minute)
		if there, here, lost := w.told("a there"), w.told("a here"), w.told("a lost"); !maps.Equal(there, map[string]int{"n3": 1}) ||
			!maps.Equal(here, map[string]int{"n2": 1}) || len(lost) > 0 {
			t.Errorf("told at %v, %v, %v", there, here, lost)
		}
		w.settled()
	})
}

func TestPinnedActorIsReachedOnItsNodeOrNotAtAll(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.node("n1").directory.Tell("node", "n3", word("hello"))
	answered := w.ask("n1", "node", "n3", "ask")
	w.node("n2").directory.TellAt("n1", "node", "n3", word("astray"))
	w.pass(time.Minute)
	if got := w.told("n3 hello"); !maps.Equal(got, map[string]int{"n3": 1}) || answered.by() != "n3" {
		t.Errorf("told at %v, answered by %q", got, answered.by())
	}
	if got := w.told("n3 astray"); !maps.Equal(got, map[string]int{"n3": 1}) {
		t.Errorf("the stray one told at %v", got)
	}
	w.silence("n1", false, "n3")
	w.node("n1").directory.Tell("node", "n3", word("lost"))
	unanswered := w.ask("n1", "node", "n3", "ask")
	w.pass(activation.AnswerWaitMax + time.Minute)
	if got := w.told("n3 lost"); len(got) > 0 || unanswered.calls != 0 {
		t.Errorf("told at %v, answered %d times", got, unanswered.calls)
	}
	w.settled()
	// A directory does not make another node's actor, whoever asks for it.
	w.node("n2").directory.Receive("n1", deliver(1, 1, "node", "n3", word("forged")))
	w.pass(time.Second)
	if got := w.told("n3 forged"); len(got) > 0 {
		t.Errorf("told at %v", got)
	}
	if last := w.sent[len(w.sent)-1]; last.GetTaken().GetRefusal() == "" {
		t.Errorf("answered %v", last)
	}
}

func TestAnswerFindsItsAsker(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newCluster(t, seed, "n1", "n2", "n3")
		at := w.ask("n3", "thing", "a", "ask")
		local := w.ask("n1", "thing", "a", "ask")
		w.silence("n2", true, "n1")
		second := w.ask("n2", "thing", "b", "ask")
		w.pass(2 * time.Second)
		for what, c := range map[string]struct {
			got  *asking
			want string
		}{"over the network": {at, "n1"}, "here": {local, "n1"}, "after a silence": {second, "n2"}} {
			if c.got.calls != 1 || c.got.err != nil || c.got.by() != c.want {
				t.Errorf("%s: answered %d times by %q, %v", what, c.got.calls, c.got.by(), c.got.err)
			}
		}
		w.settled()
	})
}

func TestAnswerMayTakeAsLongAsTheAskerWaits(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	a := w.ask("n2", "thing", "a", "later")
	w.pass(activation.AnswerWaitMax - time.Second)
	w.node("n1").directory.Tell("thing", "a", word("now"))
	w.pass(time.Second / 2)
	if a.calls != 1 || a.by() != "n1" || w.node("n2").journal.count("a later") != 0 {
		t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
	}
	// Longer than that nobody keeps a place for it.
	b := w.ask("n2", "thing", "b", "later")
	w.pass(activation.AnswerWaitMax + time.Second)
	w.settled()
	w.node("n1").directory.Tell("thing", "b", word("now"))
	w.pass(time.Second)
	if b.calls != 0 {
		t.Errorf("answered %v, %v", b.answer, b.err)
	}
}

func TestAnswerThatCanNotBeSentIsAnswered(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	large := w.ask("n2", "thing", "a", "large")
	huge := &asking{}
	w.node("n2").directory.TellAt("n1", "thing", "a", wrapperspb.Bytes(make([]byte, activation.MessageBytesMax)))
	w.pass(time.Second)
	if large.calls != 1 || records.ClassOf(large.err) != records.ClassOutcomeUnknown || !errors.Is(large.err, activation.ErrRefused) {
		t.Errorf("too large an answer: %v, %v", large.answer, large.err)
	}
	if got := w.node("n2").directory.Refused(); got != 1 || huge.calls != 0 {
		t.Errorf("refused %d, want the one that is too large", got)
	}
	w.settled()
}

func TestAskOfAStoppingNodeIsAnswered(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	a := w.ask("n2", "thing", "a", "later")
	w.pass(time.Second)
	stop(t, w, "n2")
	if a.calls != 1 || !errors.Is(a.err, activation.ErrStopped) || records.ClassOf(a.err) != records.ClassOutcomeUnknown {
		t.Errorf("answered %d times: %v", a.calls, a.err)
	}
	stop(t, w, "n1")
	w.settled()
}

// The numbers of a directory begin anew with it, so those of the one before must
// mean nothing.
func TestDirectoryIgnoresAnswersToAnEarlierOne(t *testing.T) {
	for _, c := range []struct {
		name  string
		stale func(id, incarnation uint64) *actorv1.Packet
	}{
		{"a taken", func(id, incarnation uint64) *actorv1.Packet {
			return &actorv1.Packet{Id: id, Incarnation: incarnation, Content: &actorv1.Packet_Taken{Taken: &actorv1.Taken{}}}
		}},
		{"a reply", func(id, incarnation uint64) *actorv1.Packet {
			return &actorv1.Packet{Id: id, Incarnation: incarnation, Content: &actorv1.Packet_Reply{Reply: &actorv1.Reply{Type: "google.protobuf.StringValue"}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster(t, 1, "n1", "n2", "n3")
			w.silence("n3", false, "n1", "n2")
			before := w.node("n3").incarnation
			w.ask("n3", "thing", "a", "before")
			w.settle()
			id := w.sent[0].GetId()
			stop(t, w, "n3")
			w.start(2)
			a := w.ask("n3", "thing", "a", "ask")
			w.settle()
			if got := w.sent[len(w.sent)-1]; got.GetId() != id || got.GetIncarnation() == before {
				t.Fatalf("sent %v after number %d of %d", got, id, before)
			}
			w.node("n3").directory.Receive("n1", c.stale(id, before))
			w.pass(3 * time.Second)
			if a.by() != "n3" || a.calls != 1 {
				t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
			}
			w.settled()
		})
	}
}

func TestDirectoryIgnoresWordFromANodeThatWasNotAsked(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3", "n4")
	w.silence("n4", false, "n1", "n2")
	a := w.ask("n4", "thing", "a", "ask")
	w.settle()
	sent := w.sent[0]
	reply := &actorv1.Reply{Type: "google.protobuf.StringValue"}
	w.node("n4").directory.Receive("n3", &actorv1.Packet{Id: sent.GetId(), Incarnation: sent.GetIncarnation(), Content: &actorv1.Packet_Reply{Reply: reply}})
	w.node("n4").directory.Receive("n2", &actorv1.Packet{Id: sent.GetId(), Incarnation: sent.GetIncarnation(), Content: &actorv1.Packet_Taken{}})
	w.pass(3 * time.Second)
	if a.by() != "n4" || a.calls != 1 {
		t.Errorf("answered %d times by %q, %v", a.calls, a.by(), a.err)
	}
}

func TestLateWordOfTheFirstKeepsTheMessageFromItsOwnNode(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.silence("n3", false, "n1", "n2")
	w.node("n3").directory.Tell("thing", "a", word("hello"))
	w.pass(1500 * time.Millisecond) // n2 is being tried
	sent := w.sent[0]
	w.node("n3").directory.Receive("n1", &actorv1.Packet{Id: sent.GetId(), Incarnation: sent.GetIncarnation(), Content: &actorv1.Packet_Taken{}})
	w.pass(time.Minute)
	if got := w.told("a hello"); len(got) > 0 {
		t.Errorf("told at %v", got)
	}
	w.settled()
}

func TestWordThatDoesNotSettleAMessageIsIgnored(t *testing.T) {
	for _, c := range []struct {
		name string
		from string
		word *actorv1.Packet
	}{
		{"an old refusal of the first in rank", "n1", &actorv1.Packet{Content: &actorv1.Packet_Taken{Taken: &actorv1.Taken{Refusal: "busy"}}}},
		{"an answer to what asks for none", "n2", &actorv1.Packet{Content: &actorv1.Packet_Reply{Reply: &actorv1.Reply{Type: "google.protobuf.StringValue"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster(t, 1, "n1", "n2", "n3")
			w.silence("n3", false, "n1", "n2")
			w.node("n3").directory.Tell("thing", "a", word("hello"))
			w.pass(1500 * time.Millisecond) // n2 is being tried
			c.word.Id, c.word.Incarnation = w.sent[0].GetId(), w.sent[0].GetIncarnation()
			w.node("n3").directory.Receive(c.from, c.word)
			w.pass(400 * time.Millisecond)
			if got := w.told("a hello"); len(got) > 0 {
				t.Fatalf("told at %v before n2 had its time", got)
			}
			w.pass(time.Minute)
			if got := w.told("a hello"); !maps.Equal(got, map[string]int{"n3": 1}) {
				t.Errorf("told at %v", got)
			}
			w.settled()
		})
	}
}

func TestResidentActorPassivatesForGood(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	d := w.node("n1").directory
	d.TellAt("n1", "stays", "a", word("hello"))
	d.TellAt("n1", "stays", "a", word("idle"))
	w.pass(time.Minute)
	if got := w.node("n1").journal.count("a started"); got != 1 || d.Activations()["stays"] != 0 {
		t.Fatalf("started %d times, %d are active", got, d.Activations()["stays"])
	}
	d.TellAt("n1", "stays", "a", word("again"))
	w.pass(time.Minute)
	if got := w.node("n1").journal.count("a started"); got != 2 || d.Activations()["stays"] != 1 {
		t.Errorf("started %d times, %d are active", got, d.Activations()["stays"])
	}
}

func TestDirectoryLimitsWhatIsUnderWay(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.silence("n3", false, "n1", "n2")
	const more = 5
	for range outgoingMax + more {
		w.node("n3").directory.Tell("thing", "a", word("hello"))
	}
	w.settle()
	if got := w.node("n3").directory; got.Outgoing() != outgoingMax || got.Refused() != more {
		t.Errorf("%d under way, %d refused", got.Outgoing(), got.Refused())
	}
	w.pass(3 * time.Second)
	if got := w.told("a hello")["n3"]; got != outgoingMax {
		t.Errorf("%d told", got)
	}
	w.settled()
}

func TestDirectoryLimitsTheAnswersItOwes(t *testing.T) {
	w := newCluster(t, 1, "n1", "n2")
	d := w.node("n1").directory
	for i := range uint64(owedMax + 1) {
		packet := deliver(i+1, 1, "thing", "a", word("later"))
		packet.GetDeliver().Ask, packet.GetDeliver().WaitMs = true, 60_000
		d.Receive("n2", packet)
	}
	w.pass(time.Second)
	refused := 0
	for _, p := range w.sent {
		if p.GetTaken().GetRefusal() != "" {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d refused, want 1", refused)
	}
	w.pass(2 * time.Minute)
	w.settled()
}

// A world of one goroutine must stay one.
func TestSteppedDirectoriesStartNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	w := newCluster(t, 1, "n1", "n2", "n3")
	w.silence("n3", false, "n2")
	for _, from := range []string{"n1", "n2", "n3"} {
		d := w.node(from).directory
		d.Tell("thing", "a", word("hello"))
		d.Tell("node", "n2", word("hello"))
		d.Tell("thing", "a", word("idle"))
		d.Tell("nothing", "a", word("hello"))
		d.Receive("n1", nil)
		w.ask(from, "thing", "a", "ask")
		w.ask(from, "thing", "b", "later")
	}
	w.pass(activation.AnswerWaitMax + time.Minute)
	stop(t, w, "n1")
	w.node("n1").directory.Tell("thing", "a", word("too late"))
	w.pass(time.Minute)
	// Fewer are those that the test before has left to end.
	if got := runtime.NumGoroutine(); got > before {
		t.Errorf("%d goroutines, %d before", got, before)
	}
}
