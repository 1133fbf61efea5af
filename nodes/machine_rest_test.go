package nodes

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func TestPlacementRestsOnlyWhileItsCommandRunsAndNothingIsToBeDone(t *testing.T) {
	for i, state := range tableStates {
		s := newStation(t)
		for _, step := range tableStates[:i+1] {
			step.then(s)
		}
		for id, p := range s.machine.placements {
			if rests := p.doing == nil; rests != (state.name == "running") {
				t.Errorf("%s: sandbox %s is at rest: %v", state.name, id, rests)
			}
		}
	}
}

func TestRousedPlacementIsWhatItWasBefore(t *testing.T) {
	s := newStation(t)
	s.reach("journaling started")
	p := s.machine.placementOf(tableRun, 1, 1)
	entry, before := proto.CloneOf(p.entry), *p.doing
	s.write()
	if p.doing != nil {
		t.Fatal("it does not rest")
	}
	if s.machine.placementOf(tableRun, 1, 1) != p || p.doing == nil {
		t.Fatal("it was not roused")
	}
	before.writing = false
	if !proto.Equal(p.entry, entry) || p.passing != before.passing || p.lane != before.lane ||
		p.waiting != before.waiting || p.startCalled != before.startCalled || p.mayExist != before.mayExist {
		t.Errorf("%+v, want %+v", p.doing, before)
	}
	s.machine.restPerhaps()
	if p.doing != nil {
		t.Error("it does not rest again")
	}
}

// Each is roused by nothing else and comes to rest again in the same turn.
func TestPlacementAtRestAnswersAndRestsAgain(t *testing.T) {
	for _, input := range tableInputs {
		s := newStation(t)
		s.reach("running")
		effects := input.give(s)
		p := s.machine.placements[records.SandboxID(tableRun, 1, 1)]
		stopped := p.doing != nil && p.entry.GetStopCause() != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED
		if rests := p.doing == nil; rests == stopped {
			t.Errorf("%s: it is at rest: %v, after %s", input.name, rests, describe(effects))
		}
	}
}

func TestPlacementWhoseWaitFailsRestsWhenThatHasBeenAnswered(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	p := s.machine.placements[records.SandboxID(tableRun, 1, 1)]
	for try := range 3 {
		s.hang = func(SandboxVerb) error { return records.Errorf(records.ClassUnavailable, "away") }
		s.do(VerbWait)
		s.hang = nil
		if p.doing == nil {
			t.Fatal("it rests while nobody waits for its end")
		}
		s.step(actors.TimerFired{Name: "wait/" + p.id})
		if p.doing == nil || p.waitTry != try+1 {
			t.Fatalf("try %d: it has forgotten how often it has waited in vain", try)
		}
	}
	s.lab.end(p.id, 0, 0)
	s.do(VerbWait)
	if !p.ended() {
		t.Error("it has not ended")
	}
}

// A placement of before may have had the same name.
func TestAnswerToAnotherWaitEndsNothing(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	p := s.machine.placements[records.SandboxID(tableRun, 1, 1)]
	code := int32(3)
	s.step(SandboxDone{Tag: p.waitTag + 1, Op: SandboxOp{Verb: VerbWait, ID: p.id}, Result: SandboxResult{Exit: sandbox.Exit{Code: &code}}})
	if s.machine.placementOf(tableRun, 1, 1).ended() {
		t.Error("it has ended")
	}
}
