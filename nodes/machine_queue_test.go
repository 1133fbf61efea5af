package nodes

import (
	"fmt"
	"testing"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

func TestLightDriversDoNotWaitBehindTheProcessor(t *testing.T) {
	s := newStation(t)
	s.machine.config.Drivers = append(s.machine.config.Drivers, "light")
	s.machine.config.LightDrivers = []string{"light"}
	start := func(run, driver string) {
		a := s.assignment()
		a.Run, a.Spec.Driver = "r.default."+run, driver
		s.assign(a)
		s.tell(&actorv1.Start{Assignment: a, Commit: s.commit})
	}
	for i := range 4 {
		start(fmt.Sprintf("heavy%d", i), "null")
	}
	start("light", "light")
	created := map[string]int{}
	for _, op := range s.ops {
		if op.Op.Verb == VerbCreate {
			created[op.Op.Driver]++
		}
	}
	if most := s.machine.config.StartsInFlightMax; created["null"] != most || created["light"] != 1 {
		t.Fatalf("under way are %v, want %d of the heavy driver and the light one", created, most)
	}
	s.do(VerbCreate)
	s.write()
	s.do(VerbStart)
	if queued := len(s.machine.starts.heavy.queue); queued != 1 {
		t.Fatalf("%d wait after one has started, want 1", queued)
	}
	if _, ok := s.timers["slot/"+s.machine.placements[s.ops[len(s.ops)-1].Op.ID].id]; !ok {
		t.Error("a heavy create may keep its slot for ever")
	}
}

func TestTriesThatFailAreSaidEverMoreSeldom(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	s.machine.out = nil
	for try := range 1000 {
		s.machine.warn(try, "remove failed; it is tried again", "run", tableRun)
	}
	if said := len(s.machine.out); said != 10 {
		t.Errorf("1000 failed tries are said %d times, want 10", said)
	}
}

func TestCreateThatSaysThatItWaitsForTheNetworkGivesItsSlotBackAtOnce(t *testing.T) {
	s := newStation(t)
	for i := range 4 {
		a := s.assignment()
		a.Run = fmt.Sprintf("r.default.run%d", i)
		s.assign(a)
	}
	s.watch()
	first := s.ops[0]
	waits := SandboxDone{Tag: first.Tag, Op: first.Op, Result: SandboxResult{Waiting: true}}
	s.step(waits)
	if len(s.ops) != 3 {
		t.Fatalf("%d creates, want one more", len(s.ops))
	}
	s.step(waits)
	if len(s.ops) != 3 || s.machine.starts.slots() != 2 {
		t.Errorf("%d creates and %d slots after it has said so twice", len(s.ops), s.machine.starts.slots())
	}
	if n := s.machine.starts.creating(); n != 3 {
		t.Errorf("%d creates are under way, not 3", n)
	}
	s.do(VerbCreate)
	if n := s.machine.starts.creating(); n != 2 {
		t.Errorf("%d creates are under way when one has ended, not 2", n)
	}
	s.step(waits)
	if n := s.machine.starts.slots(); n != 2 {
		t.Errorf("%d slots after it has said so too late", n)
	}
}
