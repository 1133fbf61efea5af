package nodes

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func deadlinePassed(run string) *actorv1.Stop {
	return &actorv1.Stop{
		Run: run, Attempt: 1, Placement: 1, Desired: recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED,
		Reason: recordv1.Reason_REASON_START_DEADLINE,
	}
}

// answerCreate ends the create that is under way with an error of the driver's.
func (s *station) answerCreate(err error) {
	s.t.Helper()
	i := slices.IndexFunc(s.ops, func(op DoSandbox) bool { return op.Op.Verb == VerbCreate })
	if i < 0 {
		s.t.Fatalf("no create is under way: %v", s.ops)
	}
	op := s.ops[i]
	s.ops = slices.Delete(s.ops, i, i+1)
	s.step(SandboxDone{Tag: op.Tag, Op: op.Op, Result: SandboxResult{Err: err}})
}

func TestStartDeadlineOfACreateUnderWayTellsWhatHeldItUp(t *testing.T) {
	id := records.SandboxID(tableRun, 1, 1)
	still := "still creating the sandbox of image busybox after 1m0s"
	for _, test := range []struct {
		name    string
		answer  func(*station)
		reason  recordv1.Reason
		message string
	}{
		{"the create says why", func(s *station) {
			s.answerCreate(sandbox.Transientf(recordv1.Reason_REASON_IMAGE_PULL, "still pulling image busybox"))
		}, recordv1.Reason_REASON_IMAGE_PULL, "still pulling image busybox"},
		{"the create fails of itself", func(s *station) {
			s.answerCreate(fmt.Errorf("create sandbox %s: open /var/lib/errand/status: %w", id, syscall.ENOSPC))
		}, recordv1.Reason_REASON_START_ERROR, "create sandbox: no space left on device"},
		{"the create is broken off", func(s *station) {
			s.answerCreate(records.Errorf(records.ClassDeadline, "create sandbox %s: %w", id, context.Canceled))
		}, 0, still},
		{"the create comes through after all", func(s *station) { s.do(VerbCreate) }, 0, still},
		{"the create does not answer", func(s *station) { s.pass(LastWordMax) }, 0, still},
		{"somebody cancels meanwhile", func(s *station) {
			s.tell(stopMessage(recordv1.Desired_DESIRED_STOP, false))
		}, recordv1.Reason_REASON_CANCELED, "stopped before the start"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			a := s.assignment()
			a.Spec.Image = "busybox"
			s.assign(a)
			s.watch()
			s.pass(time.Minute)
			if got := describe(s.tell(deadlinePassed(tableRun))); got != "abandon, overdue in 500ms" {
				t.Fatalf("at the deadline: %s", got)
			}
			if got := describe(s.tell(deadlinePassed(tableRun))); got != "-" {
				t.Errorf("told again: %s", got)
			}
			s.pass(LastWordMax - time.Millisecond)
			if len(s.writes) > 0 {
				t.Fatalf("void before the create has had its say: %v", s.writes)
			}
			test.answer(s)
			if len(s.writes) != 1 {
				t.Fatalf("%d writes, want the void", len(s.writes))
			}
			s.pass(LastWordMax)
			s.settle()
			void := heard[*actorv1.Voided](s).GetVoid()
			if void.GetReason() != test.reason || void.GetMessage() != test.message || void.GetPermanent() {
				t.Errorf("void %v", void)
			}
			if len(s.boxes) != 0 {
				t.Errorf("left behind: %v", s.boxes)
			}
		})
	}
}

func TestStartDeadlineOfAPlacementThatWaitsTellsForWhat(t *testing.T) {
	t.Run("for others to be created", func(t *testing.T) {
		s := newStation(t)
		for i := range 3 {
			a := s.assignment()
			a.Run = fmt.Sprintf("r.default.run%d", i)
			s.assign(a)
		}
		s.watch()
		s.tell(deadlinePassed("r.default.run2"))
		s.write()
		if got := heard[*actorv1.Voided](s).GetVoid(); got.GetReason() != 0 || got.GetMessage() != "too many sandboxes are being created" {
			t.Errorf("void %v", got)
		}
	})
	t.Run("for the run's earlier sandbox to go", func(t *testing.T) {
		s := newStation(t)
		s.reach("running")
		second := s.assignment()
		second.Placement = 2
		s.withdraw()
		s.assign(second)
		s.watch()
		stop := deadlinePassed(tableRun)
		stop.Placement = 2
		s.tell(stop)
		for len(s.writes) > 0 {
			s.write()
		}
		if got := heard[*actorv1.Voided](s).GetVoid(); got.GetReason() != 0 || got.GetMessage() != "an earlier sandbox of the run is not gone yet" {
			t.Errorf("void %v", got)
		}
	})
}
