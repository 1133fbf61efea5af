package nodes

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/deadline"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	ranking "github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// residentLab is a node whose view a test changes.
type residentLab struct {
	clock     stepping.Clock
	scheduler *stepping.Scheduler
	node      *Node
	alive     []string
	// followed counts the follows under way of each prefix.
	followed map[string]int
	sent     []*actorv1.Packet
}

func newResidentLab(t *testing.T, alone bool) *residentLab {
	t.Helper()
	l := &residentLab{scheduler: stepping.NewScheduler(1), alive: []string{"n1"}, followed: map[string]int{}}
	ports := Ports{
		Clock: labClock{&l.clock}, Store: labFollows{l}, Rand: labRand{}, Journal: noJournal{}, Sandboxes: noSandboxes{},
		Nodes: labView{l}, Transport: labTransport{l},
		Actors: host.Options{Dispatcher: l.scheduler, Mailbox: stepping.Mailbox, StrictSpawn: true},
	}
	if alone {
		ports.Nodes, ports.Transport = nil, nil
	}
	var err error
	l.node, err = New(ports, Config{
		ID: "n1", Keys: records.Keys{Root: "/errand/", Shards: 16}, BootID: "b", SandboxesMax: 1, Drivers: []string{"null"},
		LogPath: func(string, int32) string { return "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type (
	labClock     struct{ *stepping.Clock }
	labFollows   struct{ *residentLab }
	labView      struct{ *residentLab }
	labTransport struct{ *residentLab }
	labRand      struct{}
	noJournal    struct{ Journal }
	noSandboxes  struct{ Sandboxes }
)

func (c labClock) Now() actors.Instant {
	return actors.Instant{Mono: c.Clock.Now(), Boot: c.Clock.Now(), Wall: time.Unix(0, 0).Add(c.Clock.Now()), WallHealthy: true}
}

func (labFollows) Txn(records.Txn, func(records.Result)) {}

func (l labFollows) Follow(prefix string, _ func(records.Batch)) (stop func()) {
	l.followed[prefix]++
	return func() { l.followed[prefix]-- }
}

func (l labView) Alive() []string {
	return slices.Clone(l.alive)
}

func (labView) Candidates() []actors.Candidate {
	return nil
}

func (l labTransport) Send(_ string, p *actorv1.Packet) {
	l.sent = append(l.sent, p)
}

func (labRand) Uint64() uint64 {
	return 1
}

func (labRand) Fill([]byte) {}

func (l *residentLab) view(alive ...string) *residentLab {
	l.alive = alive
	return l
}

func (l *residentLab) deadlines() int {
	return l.node.Activations()[actors.KindDeadline]
}

func (l *residentLab) shardFollowed(shard int32) int {
	return l.followed[l.node.config.Keys.LiveInShard(shard)]
}

func (l *residentLab) settle() {
	l.scheduler.Settle(1 << 16)
}

func (l *residentLab) pass(d time.Duration) {
	over := false
	l.clock.After(d, func() { over = true })
	for l.settle(); !over; l.settle() {
		l.clock.Next()
	}
}

// check compares the deadline actors that are here with those that belong here.
func (l *residentLab) check(t *testing.T) {
	t.Helper()
	view, want := ranking.NewView(l.alive), 0
	for shard := range l.node.config.Keys.Shards {
		rank := view.Rank("n1", actors.KindDeadline, strconv.Itoa(int(shard)))
		belongs := 0
		if rank > 0 && rank <= deadline.RanksMax {
			belongs = 1
		}
		want += belongs
		if got := l.shardFollowed(shard); got != belongs {
			t.Errorf("with %q: %d actors follow shard %d, where rank %d is here", l.alive, got, shard, rank)
		}
	}
	if got := l.deadlines(); got != want {
		t.Errorf("with %q: %d deadline actors, want %d", l.alive, got, want)
	}
}

func TestDeadlineActorsFollowTheView(t *testing.T) {
	l := newResidentLab(t, false)
	six := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	l.node.keepResidents()
	for _, alive := range [][]string{six[:1], six, six[:4], six[:2], six, {"n1", "n7", "n8", "n9"}, six} {
		l.view(alive...).pass(viewLook + time.Millisecond)
		l.check(t)
	}
	// Nobody is told anything as long as nothing changes.
	steps := l.scheduler.Steps()
	l.pass(5 * viewLook)
	if got := l.scheduler.Steps(); got != steps {
		t.Errorf("%d turns without a change", got-steps)
	}
	// A view that comes and goes between two looks, seen by actors alone, is told of
	// all the same: some have passivated by it.
	l.view("n1").pass(viewLook + time.Millisecond)
	l.view(six...)
	for shard := range l.node.config.Keys.Shards {
		l.node.Router().TellAt("n1", actors.KindDeadline, strconv.Itoa(int(shard)), &actorv1.Activate{})
	}
	l.settle()
	if got := l.deadlines(); got == 16 {
		t.Fatal("no actor has passivated")
	}
	l.view("n1").pass(viewLook + time.Millisecond)
	l.check(t)
	if len(l.sent) > 0 {
		t.Errorf("told another node %v", l.sent[0])
	}
	l.node.leaveResidents()
	if l.view("n1").pass(5 * viewLook); l.clock.Waiting() > 0 {
		t.Errorf("%d timers are left", l.clock.Waiting())
	}
}

func TestNodeThatIsAloneHasAllDeadlineActorsAndDoesNotLookAround(t *testing.T) {
	l := newResidentLab(t, true)
	l.node.keepResidents()
	l.settle()
	if got := l.deadlines(); got != 16 || l.clock.Waiting() > 0 {
		t.Errorf("%d deadline actors, %d timers", got, l.clock.Waiting())
	}
	l.node.keepResidents() // the node actor was restarted
	l.settle()
	if got := l.deadlines(); got != 16 || l.shardFollowed(3) != 1 {
		t.Errorf("%d deadline actors", got)
	}
}

func TestReservationIsAnsweredWhereItWasAskedFor(t *testing.T) {
	s := newStation(t)
	for _, effect := range s.tell(&actorv1.Reserve{Run: tableRun, Attempt: 1, Placement: 1, Driver: "null", Node: "n7"}) {
		if tell, ok := effect.(actors.Tell); ok && tell.Node == "n7" && tell.Kind == actors.KindRun && tell.Identity == tableRun {
			return
		}
	}
	t.Error("nothing is told at n7")
}
