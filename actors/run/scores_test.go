package run

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// scored is a bench whose machine keeps scores.
func scored(t *testing.T, nodes ...string) (*bench, *placement.Scores) {
	b := newBench(t, true, nodes...)
	scores := placement.NewScores(placement.MarkLife)
	b.machine.cfg.Scores = scores
	return b, scores
}

// placeAnywhere has the run placed on the node that it asks first, and returns that.
func (b *bench) placeAnywhere() string {
	b.now.Mono += backoffMax
	b.now.Wall = b.now.Wall.Add(backoffMax)
	b.receive(&actorv1.Wake{Run: testID})
	node := b.machine.round.candidates[b.machine.round.asked].Node
	b.receive(&actorv1.Reserved{
		Run: testID, Attempt: 1, Placement: b.machine.round.placement, Node: node, Yes: true, Session: b.sessionOf(node),
	})
	b.land()
	return node
}

func (b *bench) void(node string, void *recordv1.Void) {
	b.receive(&actorv1.Voided{Run: testID, Attempt: 1, Placement: b.record().GetPlacement().GetNumber(), Node: node, Void: void})
}

func startFails() *recordv1.Void {
	return &recordv1.Void{Reason: recordv1.Reason_REASON_START_ERROR, Message: "containerd does not answer"}
}

func nodesOf(lost []placement.Lost) (nodes []string) {
	for _, l := range lost {
		nodes = append(nodes, l.Node)
	}
	return nodes
}

func TestOnlyWhatANodeIsToBlameForCostsItScore(t *testing.T) {
	for _, test := range []struct {
		name string
		void *recordv1.Void
		wish recordv1.Reason
		lost bool
	}{
		{name: "the engine can not start it for now", void: startFails(), lost: true},
		{name: "the engine can not, and the start deadline has passed", void: startFails(), wish: recordv1.Reason_REASON_START_DEADLINE, lost: true},
		{name: "the spec is to blame", void: &recordv1.Void{Reason: recordv1.Reason_REASON_START_ERROR, Permanent: true, Message: "user x is unknown"}},
		{name: "the registry is to blame", void: &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "503"}},
		{name: "the image is not there", void: &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_NOT_FOUND, Permanent: true}},
		{name: "the session has ended", void: &recordv1.Void{Message: "the node's session ended before the start"}},
		{name: "it was canceled", void: &recordv1.Void{Reason: recordv1.Reason_REASON_CANCELED}, wish: recordv1.Reason_REASON_CANCELED},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, scores := scored(t, "n1")
			b.place()
			if test.wish != 0 {
				b.machine.snapshot.run.Wish = &recordv1.Wish{Reason: test.wish}
			}
			b.void("n1", test.void)
			if len(scores.Lost(b.now.Mono)) != 0 {
				t.Error("score is lost before the write is known")
			}
			b.land()
			if got := len(scores.Lost(b.now.Mono)) > 0; got != test.lost {
				t.Errorf("lost %+v", scores.Lost(b.now.Mono))
			}
		})
	}
}

func TestAVoidOfAnEarlierPlacementCostsNoScore(t *testing.T) {
	b, scores := scored(t, "n1")
	b.place()
	b.receive(&actorv1.Voided{Run: testID, Attempt: 1, Placement: 7, Node: "n1", Void: startFails()})
	b.land()
	if !scores.Empty() {
		t.Errorf("lost %+v", scores.Lost(0))
	}
}

func TestARunThatCanBeStartedNowhereBlamesNobodyUntilItIsStarted(t *testing.T) {
	b, scores := scored(t, "n1", "n2", "n3")
	var failed []string
	for range 2 {
		node := b.placeAnywhere()
		failed = append(failed, node)
		b.void(node, startFails())
		b.land()
		if want := len(failed) % 2; len(scores.Lost(b.now.Mono)) != want {
			t.Fatalf("after %q lost: %+v", failed, scores.Lost(b.now.Mono))
		}
	}
	node := b.placeAnywhere()
	if slices.Contains(failed, node) || failed[0] == failed[1] {
		t.Fatalf("placed on %s after %q", node, failed)
	}
	b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 3, Node: node, At: b.now.Milli()})
	b.land()
	slices.Sort(failed)
	lost := scores.Lost(b.now.Mono)
	if !slices.Equal(nodesOf(lost), failed) || !strings.Contains(lost[0].Cause, "containerd does not answer") {
		t.Errorf("once it was started lost: %+v, want %q", lost, failed)
	}
}

// A short command is told by its exit alone.
func TestAStartGivesScoreBackHoweverItIsTold(t *testing.T) {
	for name, tell := range map[string]func(*bench){
		"started": func(b *bench) {
			b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: b.now.Milli()})
		},
		"exited": func(b *bench) {
			code := int32(0)
			b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Code: &code, StartedAt: b.now.Milli(), At: b.now.Milli()}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, scores := scored(t, "n1")
			scores.Failed(b.now.Mono, "other", "n1", b.record().GetSpec().GetDriver(), "no room")
			b.place()
			tell(b)
			b.land()
			if !scores.Empty() {
				t.Errorf("still lost: %+v", scores.Lost(b.now.Mono))
			}
		})
	}
	b, scores := scored(t, "n1")
	scores.Failed(b.now.Mono, "other", "n1", b.record().GetSpec().GetDriver(), "no room")
	b.place()
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Reason: recordv1.Reason_REASON_NOT_FOUND}})
	b.land()
	if scores.Empty() {
		t.Error("an exit without a start gives score back")
	}
}

// asksFirst counts the runs of many that ask each node first.
func asksFirst(t *testing.T, scores *placement.Scores, runs int, nodes ...string) map[string]int {
	t.Helper()
	first := map[string]int{}
	for i := range runs {
		m := New(fmt.Sprintf("r.default.%d", i), Config{Nodes: candidates(nodes), Scores: scores})
		m.snapshot.run = newRun()
		m.seek(at(0))
		asked := m.round.candidates
		if len(asked) != len(nodes) {
			t.Fatalf("asks %v of %q", asked, nodes)
		}
		first[asked[0].Node]++
	}
	return first
}

func TestOtherRunsAskANodeThatFailsStartsLastAndNeverNot(t *testing.T) {
	scores := placement.NewScores(placement.MarkLife)
	driver := newRun().GetSpec().GetDriver()
	for i := range placement.MarksMax {
		scores.Failed(0, fmt.Sprintf("bad%d", i), "n2", driver, "no room")
	}
	if first := asksFirst(t, scores, 600, "n1", "n2", "n3"); first["n2"] > 30 || first["n2"] == 0 || first["n1"] < 200 || first["n3"] < 200 {
		t.Errorf("asked first: %v", first)
	}
	if first := asksFirst(t, scores, 50, "n2"); first["n2"] != 50 {
		t.Errorf("the only node is asked by %d of 50", first["n2"])
	}
}

// With more nodes than a round asks, those that come last have their turn in another.
func TestRoundsGoOnWithTheOtherNodes(t *testing.T) {
	var all []actors.Candidate
	for i := range 2*candidatesMax + 5 {
		all = append(all, actors.Candidate{Node: fmt.Sprintf("n%d", i)})
	}
	asked := map[string]bool{}
	for round := range 3 {
		these := turn(all, round)
		if len(these) != candidatesMax {
			t.Fatalf("round %d asks %d", round, len(these))
		}
		for _, c := range these {
			asked[c.Node] = true
		}
	}
	if len(asked) != len(all) {
		t.Errorf("%d of %d nodes are asked in three rounds", len(asked), len(all))
	}
	if first := turn(all, 0); first[0].Node != "n0" || turn(all[:3], 5)[0].Node != "n0" {
		t.Error("the first round does not begin with the first")
	}
}

func TestWhySaysWhichNodesComeLastForTheRun(t *testing.T) {
	b, scores := scored(t, "n1", "n2")
	driver := b.record().GetSpec().GetDriver()
	for i := range placement.MarksMax {
		scores.Failed(b.now.Mono, fmt.Sprintf("bad%d", i), "n1", driver, "the disk is full")
	}
	scores.Failed(b.now.Mono, testID, "n2", driver, "its own failure says nothing new")
	if lost := b.machine.lostScore(b.now.Mono); lost != nil {
		t.Errorf("where nobody else is: %v", lost)
	}
	b.machine.cfg.Nodes = pair{b.nodes}
	lost := b.machine.lostScore(b.now.Mono + time.Minute)
	if len(lost) != 1 || lost[0].GetNode() != "n1" || lost[0].GetRuns() != placement.MarksMax {
		t.Fatalf("lost %v", lost)
	}
	causes := Why(b.now.Wall, b.record(), Unrecorded{Owner: &actorv1.Explained{Active: true, Attempt: 1, LostScore: lost}})
	want := "node n1 comes behind the others: it could not start 5 other runs, the last 1m ago (the disk is full); that is forgotten in 4m unless more follow"
	if !slices.ContainsFunc(causes, func(c Cause) bool { return c.Code == CauseLostScore && c.Node == "n1" && c.Text == want }) {
		t.Errorf("says %v", causes)
	}
}

// pair shows two nodes.
type pair struct{ candidates }

func (p pair) Alive() []string { return p.candidates }

func TestScoresAreNotTouchedByAWriteThatDidNotLand(t *testing.T) {
	b, scores := scored(t, "n1")
	b.place()
	b.void("n1", startFails())
	b.fail(records.ClassUnavailable, false)
	if !scores.Empty() {
		t.Errorf("lost %+v", scores.Lost(b.now.Mono))
	}
	b.pass()
	b.land()
	if lost := scores.Lost(b.now.Mono); len(lost) != 1 || lost[0].Runs != 1 {
		t.Errorf("lost %+v once it has", lost)
	}
}
