package nodes

import (
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// lingerMax is how long a sandbox may stand that nothing accounts for.
const lingerMax = 5 * time.Minute

// passSettled lets time pass in steps, and lets all that follows from it happen.
func (s *station) passSettled(d time.Duration) {
	for ; d > 0; d -= 5 * time.Second {
		s.pass(min(d, 5*time.Second))
		s.settle()
	}
}

// What comes back of a run that has ended, or was deleted, is stopped and goes within five
// minutes, without a restart of the node.
func TestSandboxThatComesBackIsGoneWithinFiveMinutes(t *testing.T) {
	for _, test := range []struct {
		name string
		run  *recordv1.Run
	}{
		{"its run has ended", &recordv1.Run{Id: "r.default.stray", App: "default", Status: recordv1.Status_STATUS_SUCCEEDED, EndedAt: 1}},
		{"its run is deleted", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStation(t)
			if test.run != nil {
				s.lab.commit(s.keys.Create(test.run, 1))
			}
			s.passSettled(time.Hour)
			id := records.SandboxID("r.default.stray", 1, 1)
			s.boxes[id] = strayBox("r.default.stray", test.run.GetSpec())
			s.passSettled(2*SweepEvery + 10*time.Second)
			if b := s.boxes[id]; b == nil || b.alive {
				t.Errorf("after two sweeps the sandbox is %+v", b)
			}
			s.passSettled(lingerMax - 2*SweepEvery - 10*time.Second)
			if b := s.boxes[id]; b != nil {
				t.Errorf("after five minutes the sandbox is %+v", b)
			}
		})
	}
}

// What one look has seen and the next has not was on its way out, and what the node knows
// is none of a sweep's business.
func TestSweepsLeaveAloneWhatIsAccountedFor(t *testing.T) {
	s := newStation(t)
	s.reach("running")
	id, passing := records.SandboxID(tableRun, 1, 1), records.SandboxID("r.default.passing", 1, 1)
	s.machine.unwatchTimeout(s.machine.placements[id])
	for range 5 {
		s.boxes[passing] = strayBox("r.default.passing", nil)
		s.passSettled(SweepEvery)
		delete(s.boxes, passing)
		s.passSettled(SweepEvery)
	}
	if b := s.boxes[id]; b == nil || !b.alive {
		t.Errorf("the sandbox of a run that goes on is %+v", b)
	}
	if len(s.machine.orphans) > 0 {
		t.Errorf("in quarantine: %v", s.machine.orphans)
	}
}
