package nodes

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const tableRun = "r.default.one"

// station is a lab whose node is up, with one run.
type station struct {
	*lab
	t      *testing.T
	commit int64
	// timeoutMs is that of the run's command; a minute when it is 0.
	timeoutMs int64
	// retry is what its run tries again.
	retry *recordv1.Retry
}

func newStation(t *testing.T) *station {
	t.Helper()
	s := &station{lab: newLab(), t: t}
	s.launch()
	s.settle()
	if s.reached != PhaseAnnounced {
		t.Fatalf("phase %s, %v", s.reached, s.failure)
	}
	return s
}

func (s *station) assignment() *recordv1.Assignment {
	return &recordv1.Assignment{
		Run: tableRun, Attempt: 1, Placement: 1, Session: s.machine.session, Desired: recordv1.Desired_DESIRED_RUN,
		StartToken: []byte{1}, App: records.DefaultApp,
		Spec: &recordv1.Spec{
			Driver: "null", Command: []string{"true"}, Env: []string{"A=1", EnvRunID + "=forged"},
			TimeoutMs: cmp.Or(s.timeoutMs, 60_000), StopGraceMs: 10_000, StartDeadlineMs: 300_000,
			Retry: s.retry,
		},
	}
}

// assign commits an assignment; the watch does not show it yet.
func (s *station) assign(a *recordv1.Assignment) {
	put := records.Op{Kind: records.OpPut, Key: s.keys.Assignment("n1", a.GetRun()), Value: records.Encode(a)}
	s.commit = s.lab.commit(records.Txn{Then: []records.Op{put}}).Revision
}

func (s *station) withdraw() {
	s.lab.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: s.keys.Assignment("n1", tableRun)}}})
}

func (s *station) watch() {
	for len(s.watched) > 0 {
		f := s.watched[0]
		s.watched = s.watched[1:]
		s.step(f)
	}
}

func (s *station) do(verb SandboxVerb) {
	s.t.Helper()
	i := slices.IndexFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == verb })
	if i < 0 {
		s.t.Fatalf("no %s is under way: %v", verb, s.ops)
	}
	done, ok := s.perform(i)
	if !ok {
		s.t.Fatalf("%s can not be answered", verb)
	}
	s.step(done)
}

func (s *station) write() {
	s.t.Helper()
	if len(s.writes) == 0 {
		s.t.Fatal("nothing is to be written")
	}
	s.step(JournalWritten{Tag: s.writeNext().Tag})
}

func (s *station) tell(message proto.Message) []actors.Effect {
	return s.step(actors.Received{Message: message})
}

func (s *station) start() *actorv1.Start {
	return &actorv1.Start{Assignment: s.assignment(), Commit: s.commit}
}

func stopMessage(desired recordv1.Desired, force bool) *actorv1.Stop {
	return &actorv1.Stop{Run: tableRun, Attempt: 1, Placement: 1, Desired: desired, Reason: recordv1.Reason_REASON_CANCELED, Force: force}
}

// tableStates bring a station into a state, each from the one before.
var tableStates = []struct {
	name string
	then func(*station)
}{
	{"unknown", func(s *station) { s.assign(s.assignment()) }},
	{"creating", (*station).watch},
	{"journaling starting", func(s *station) { s.do(VerbCreate) }},
	{"starting", (*station).write},
	{"started, held", func(s *station) { s.do(VerbStart) }},
	{"journaling started", func(s *station) { s.pass(StartHold) }},
	{"running", (*station).write},
	{"journaling stop", func(s *station) { s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false)) }},
	{"stopping", (*station).write},
	{"signaled", func(s *station) { s.do(VerbSignal) }},
	{"journaling exited", func(s *station) { s.do(VerbWait) }},
	{"emptying", (*station).write},
	{"flushing", func(s *station) { s.do(VerbKill) }},
	{"reporting", func(s *station) { s.do(VerbFlush) }},
	{"removed", func(s *station) { s.do(VerbRemove) }},
	{"acknowledged ahead of the watch", func(s *station) {
		s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.store.revision + 1})
	}},
}

var tableInputs = []struct {
	name string
	give func(*station) []actors.Effect
}{
	{"Start", func(s *station) []actors.Effect { return s.tell(s.start()) }},
	{"Start of another commit", func(s *station) []actors.Effect {
		return s.tell(&actorv1.Start{Assignment: s.assignment(), Commit: s.commit - 1})
	}},
	{"Stop", func(s *station) []actors.Effect { return s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false)) }},
	{"Stop by force", func(s *station) []actors.Effect { return s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, true)) }},
	{"Stop if not started", func(s *station) []actors.Effect {
		return s.tell(stopMessage(recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED, false))
	}},
	{"assignment gone", func(s *station) []actors.Effect {
		s.withdraw()
		return s.step(s.watched[len(s.watched)-1])
	}},
	{"Ack", func(s *station) []actors.Effect {
		return s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Commit: s.machine.assignments.Revision()})
	}},
	{"Ack of another placement", func(s *station) []actors.Effect {
		return s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 2, Commit: 1})
	}},
	{"Ack unknown", func(s *station) []actors.Effect {
		return s.tell(&actorv1.Ack{Run: tableRun, Attempt: 1, Placement: 1, Unknown: true})
	}},
	{"the timeout", func(s *station) []actors.Effect {
		s.advanceTo(s.now.Mono + time.Hour)
		for name := range s.timers {
			if name == timerTimeouts {
				return s.step(actors.TimerFired{Name: name})
			}
		}
		return nil
	}},
}

// describe is an effect in few words.
func describe(effects []actors.Effect) string {
	var words []string
	for _, effect := range effects {
		switch e := effect.(type) {
		case WriteJournal:
			for _, entry := range e.Change.Puts {
				word := "journal " + strings.ToLower(strings.TrimPrefix(entry.GetState().String(), "JOURNAL_STATE_"))
				if entry.GetStopCause() != 0 {
					word += " (" + strings.ToLower(strings.TrimPrefix(entry.GetStopCause().String(), "STOP_CAUSE_")) + ")"
				}
				words = append(words, word)
			}
			for range e.Change.Deletes {
				words = append(words, "forget")
			}
		case DoSandbox:
			word := e.Op.Verb.String()
			if e.Op.Verb == VerbSignal {
				word += fmt.Sprintf(" %d", e.Op.Signal)
			}
			words = append(words, word)
		case AbandonCreate:
			words = append(words, "abandon")
		case actors.Tell:
			words = append(words, "tell "+string(e.Message.ProtoReflect().Descriptor().Name()))
		case actors.SetTimer:
			name, _, _ := strings.Cut(e.Name, "/")
			if e.After >= 0 {
				words = append(words, fmt.Sprintf("%s in %s", name, e.After))
			}
		}
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}

// TestMachineTable renders what every input does in every state of a placement.
// A change of the golden file is a change of behaviour: read it.
func TestMachineTable(t *testing.T) {
	var table strings.Builder
	for i, state := range tableStates {
		fmt.Fprintf(&table, "%s\n", state.name)
		for _, input := range tableInputs {
			s := newStation(t)
			for _, step := range tableStates[:i+1] {
				step.then(s)
			}
			fmt.Fprintf(&table, "    %-26s %s\n", input.name, describe(input.give(s)))
		}
	}
	golden(t, "transitions.txt", table.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
	}
}
