package check_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

func TestBoundsThatComeEarlyAreFound(t *testing.T) {
	const overdue = recordv1.Reason_REASON_START_DEADLINE
	for _, c := range []struct {
		name, want string
		play       func(s *script)
		nodes      int
	}{
		{name: "a start deadline by a clock that most know to be wrong", nodes: 3, want: "start deadline of 5m0s after 2m0", play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.wait(2 * time.Minute)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a start deadline where half of the clocks are wrong", nodes: 4, play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.fault("n2", "wall_step", true, false)
			s.wait(2 * time.Minute)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a run that nobody ends although most clocks are right", nodes: 3, want: "waited 8m0", play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.wait(8 * time.Minute)
			s.set.Step(s.step, s.now)
			s.set.Expensive()
		}},
		{name: "a run that is ended late although most clocks are right", nodes: 3, want: "waited 8m0", play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.wait(8 * time.Minute)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a run that nobody ends where half of the clocks are wrong", nodes: 2, play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.wait(8 * time.Minute)
			s.set.Step(s.step, s.now)
			s.set.Expensive()
		}},
		{name: "a start deadline that has come", play: func(s *script) {
			s.create(one)
			s.wait(5 * time.Minute)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a start deadline after a step of a clock", want: "start deadline of 5m0s after 20", play: func(s *script) {
			s.create(one)
			s.wait(10 * time.Second)
			s.fault("n1", "wall_step", true, false)
			s.wait(10 * time.Second)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a start deadline after a step that nobody can know of any more", play: func(s *script) {
			s.create(one)
			s.fault("n1", "wall_step", true, false)
			s.wait(2 * time.Minute)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a start deadline of a run that was queued by a wrong clock", play: func(s *script) {
			s.fault("n1", "wall_step", true, false)
			s.create(one)
			s.fault("n1", "wall_step", false, false)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a start deadline while another fault lasts", play: func(s *script) {
			s.create(one)
			s.fault("n2", "drift", true, false)
			s.finish(one, failed, overdue, nil)
		}},
		{name: "a timeout of a command that was stopped too early", want: "timed out after", play: func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.wait(40 * time.Second)
			s.exit(one, "n1", 1, 1, 143, "signal")
			s.finish(one, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, proto.Int32(143))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(func(config *check.Config) { config.Nodes = c.nodes })
			c.play(s)
			guarantee := check.Guarantee("")
			if c.want != "" {
				guarantee = check.G9
			}
			expect(t, s.set.Violations(), guarantee, c.want)
		})
	}
}

func TestACancelAfterTheEndIsNoCause(t *testing.T) {
	for _, c := range []struct {
		name  string
		late  bool
		fails check.Guarantee
	}{
		{"a wish before the end", false, ""},
		{"a wish after the end", true, check.G7},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			wish := func() {
				s.update(one, func(run *recordv1.Run) {
					run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED}
				})
			}
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			if !c.late {
				wish()
			}
			s.exit(one, "n1", 1, 1, 0, "itself")
			if c.late {
				wish()
			}
			s.finish(one, canceled, recordv1.Reason_REASON_CANCELED, proto.Int32(0))
			if r := s.record(one); !records.Terminal(r.GetStatus()) {
				t.Fatal(r.GetStatus())
			}
			expect(t, s.set.Violations(), c.fails, "")
		})
	}
}
