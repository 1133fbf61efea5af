package check_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

const (
	pending   = recordv1.Status_STATUS_PENDING
	succeeded = recordv1.Status_STATUS_SUCCEEDED
	failed    = recordv1.Status_STATUS_FAILED
	canceled  = recordv1.Status_STATUS_CANCELED
	nodeLost  = recordv1.Reason_REASON_NODE_LOST
	exitCode  = recordv1.Reason_REASON_EXIT_CODE
)

// Each guarantee has histories that keep it and the smallest ones that break it.
func TestCheckersJudgeHistories(t *testing.T) {
	for _, c := range []struct {
		name      string
		guarantee check.Guarantee
		want      string
		play      func(s *script)
	}{
		{"a run succeeds", "", "", func(s *script) { s.whole(one, "n1") }},
		{"a run fails with a code", "", "", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 3, "itself")
			s.finish(one, failed, exitCode, proto.Int32(3))
		}},
		{"a void and another placement", "", "", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.void(one)
			s.place(one, "n2")
			s.start(one, "n2", 1, 2)
			s.exit(one, "n2", 1, 2, 0, "itself")
			s.succeed(one)
		}},
		{"a lost node and another attempt", "", "", func(s *script) {
			s.createToRetry(one, onLoss)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.fault("n1", "cut", true, false)
			s.exit(one, "n1", 1, 1, 0, "fence")
			s.retry(one)
			s.place(one, "n2")
			s.start(one, "n2", 2, 1)
			s.exit(one, "n2", 2, 1, 0, "itself")
			s.succeed(one)
		}},
		{"a deleted run and its name used again after the tombstone", "", "", func(s *script) {
			s.whole(one, "n1")
			s.remove(one)
			s.commit(records.Op{Kind: records.OpDelete, Key: keys.Gone(one)})
			s.whole(one, "n1")
		}},
		{"a late exit on a terminal record", "", "", func(s *script) {
			s.whole(one, "n1")
			run := s.record(one)
			run.LateExits = append(run.LateExits, &recordv1.LateExit{Attempt: 1, Placement: 1, Exit: &recordv1.Exit{Code: proto.Int32(0)}})
			s.commit(keys.Note(run, 1).Then...)
		}},

		{"a terminal record is left", check.G1, "SUCCEEDED was changed", func(s *script) {
			s.whole(one, "n1")
			run := s.record(one)
			run.Message = "other words"
			s.commit(keys.Note(run, 1).Then...)
		}},
		{"RUNNING goes back", check.G1, "RUNNING became PENDING again", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.update(one, func(run *recordv1.Run) { run.Status = pending })
		}},
		{"a move that does not exist", check.G1, "PENDING became SKIPPED", func(s *script) {
			s.create(one)
			run := s.record(one)
			run.Status, run.EndedAt = recordv1.Status_STATUS_SKIPPED, 9
			s.commit(keys.End(run, 1, "").Then...)
		}},
		{"a record is brought back", check.G1, "tombstone", func(s *script) {
			s.whole(one, "n1")
			s.remove(one)
			s.create(one)
		}},
		{"an actor creates a record", check.G1, "did not exist was written as PENDING, attempt 2", func(s *script) {
			run := &recordv1.Run{Id: one, App: "app", Status: pending, Attempt: 2}
			s.commit(keys.Update(run, 1, 0).Then...)
		}},
		{"a placement over a placement", check.G1, "was put over", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.commit(records.Op{Kind: records.OpDelete, Key: keys.Assignment("n1", one)})
			s.place(one, "n2")
		}},
		{"a wish is forgotten", check.G1, "CANCELED was forgotten", func(s *script) {
			s.create(one)
			s.update(one, func(run *recordv1.Run) { run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED} })
			s.update(one, func(run *recordv1.Run) { run.Wish = nil })
		}},
		{"a placement is forgotten", check.G1, "1 placements became 0", func(s *script) {
			s.create(one)
			before := s.record(one)
			s.place(one, "n1")
			s.commit(records.Op{Kind: records.OpPut, Key: keys.Run(one), Value: records.Encode(before)},
				records.Op{Kind: records.OpDelete, Key: keys.Assignment("n1", one)})
		}},
		{"two assignments", check.G1, "assignments on n1 and n2", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.commit(records.Op{Kind: records.OpPut, Key: keys.Assignment("n2", one), Value: records.Encode(&recordv1.Assignment{Attempt: 1, Placement: 1})})
		}},
		{"a run is deleted without a tombstone", check.G1, "no tombstone", func(s *script) {
			s.whole(one, "n1")
			s.commit(records.Op{Kind: records.OpDelete, Key: keys.Run(one)})
		}},
		{"a run's record is damaged", check.G1, "is no record", func(s *script) {
			s.create(one)
			s.commit(records.Op{Kind: records.OpPut, Key: keys.Run(one), Value: []byte{0xff}})
		}},

		{"an attempt's command is started twice", check.G2, "started again", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.start(one, "n1", 1, 1)
		}},
		{"what was started is recorded as never started", check.G2, "recorded as never started", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.void(one)
		}},
		{"two attempts at one time", check.G3, "was started while", func(s *script) {
			s.createToRetry(one, onLoss)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.retry(one)
			s.place(one, "n2")
			s.start(one, "n2", 2, 1)
		}},
		{"a placement that was given up is started", check.G3, "does not hold any more", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.void(one)
			s.start(one, "n1", 1, 1)
		}},

		{"a process outlives its run", check.G4, "still runs", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.finish(one, failed, nodeLost, nil)
		}},
		{"a command is started after the end", check.G4, "after the run had ended", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.finish(one, failed, nodeLost, nil)
			s.start(one, "n1", 1, 1)
		}},
		{"an assignment outlives its run", check.G4, "is assigned to n1", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			run := s.record(one)
			run.Status, run.Reason, run.Message, run.Placement, run.EndedAt = failed, nodeLost, "words", nil, 9
			s.commit(keys.End(run, 1, "").Then...)
		}},

		{"a code that is not the command's", check.G7, "which ended with 3", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 3, "itself")
			s.succeed(one)
		}},
		{"a code that the runtime made up", check.G7, "ended by vanished", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 137, "vanished")
			s.finish(one, failed, exitCode, proto.Int32(137))
		}},
		{"a code of the fence", check.G7, "ended by fence", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 137, "fence")
			s.finish(one, failed, exitCode, proto.Int32(137))
		}},
		{"a code of a command that was never started", check.G7, "never started", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.finish(one, failed, exitCode, proto.Int32(1))
		}},
		{"RUNNING that was not started", check.G7, "was not started", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.running(one)
		}},
		{"SUCCEEDED without a code", check.G7, "without the exit code 0", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.finish(one, succeeded, 0, nil)
		}},

		{"an acknowledged submit", "", "", func(s *script) {
			answer := s.calls(check.VerbSubmit, one)
			s.create(one)
			answer("ok", nil)
		}},
		{"an acknowledged submit is not in the store", check.G8, "not in the store", func(s *script) {
			s.calls(check.VerbSubmit, one)("ok", nil)
		}},
		{"an acknowledged cancel is not in the record", check.G8, "not in the record", func(s *script) {
			answer := s.calls(check.VerbSubmit, one)
			s.create(one)
			answer("ok", nil)
			s.calls(check.VerbCancel, one)("ok", nil)
		}},
		{"an exit is lost although nothing was disturbed", check.G8, "has no code", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.finish(one, failed, recordv1.Reason_REASON_START_ERROR, nil)
		}},

		{"a command runs past its timeout", check.G9, "its timeout is 1m0s", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.wait(5 * time.Minute)
			s.exit(one, "n1", 1, 1, 0, "itself")
		}},
		{"a command runs past its timeout on a machine that is disturbed", "", "", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.fault("n1", "pause", true, false)
			s.wait(5 * time.Minute)
			s.exit(one, "n1", 1, 1, 0, "itself")
		}},

		{"a failure without a reason", check.G11, "without a reason", func(s *script) {
			s.create(one)
			s.finish(one, canceled, 0, nil)
		}},

		{"a command without a token", check.G12, "no fencing token", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			clear(s.tokens)
			s.start(one, "n1", 1, 1)
		}},
		{"a token that does not grow", check.G12, "not above", func(s *script) {
			s.createToRetry(one, onLoss)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			s.exit(one, "n1", 1, 1, 0, "fence")
			s.retry(one)
			s.place(one, "n2")
			s.token = 1
			s.start(one, "n2", 2, 1)
		}},
		{"a token of another placement", check.G12, "is not the placement's", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.token = 77
			s.start(one, "n1", 1, 1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			c.play(s)
			s.set.Expensive()
			expect(t, s.set.Violations(), c.guarantee, c.want)
		})
	}
}

// Outside the model a finding is kept and says so, and is no violation.
func TestFindingsOutsideTheModelAreMarked(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   func(s *script)
		outside bool
	}{
		{"nothing", func(*script) {}, false},
		{"a fault within the model", func(s *script) { s.fault("n1", "cut", true, false) }, false},
		{"a clock that drifts", func(s *script) { s.fault("n1", "drift", true, true) }, true},
		{"a clock that drifts where the run's actor waits", func(s *script) { s.fault("n9", "drift", true, true) }, true},
		{"a clock that drifts elsewhere", func(s *script) { s.fault("n7", "drift", true, true) }, false},
		{"a machine that stands still", func(s *script) { s.machine("n1", "stopped") }, true},
		{"a machine that goes on after a while", func(s *script) {
			s.machine("n1", "suspended")
			s.wait(2 * time.Second)
			s.machine("n1", "resumed")
			s.wait(8 * time.Second)
		}, true},
		{"a machine that stood still for a moment", func(s *script) {
			s.machine("n1", "stopped")
			s.machine("n1", "resumed")
		}, false},
		{"a machine that went on long ago", func(s *script) {
			s.machine("n1", "stopped")
			s.wait(time.Minute)
			s.machine("n1", "resumed")
			s.wait(time.Minute)
		}, false},
		{"a pause that is over", func(s *script) {
			s.fault("n1", "suspend", true, true)
			s.fault("n1", "suspend", false, true)
		}, true},
		{"a pause that was over long ago", func(s *script) {
			s.fault("n1", "suspend", true, true)
			s.fault("n1", "suspend", false, true)
			s.wait(time.Hour)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			c.fault(s)
			s.finish(one, failed, nodeLost, nil)
			violations := s.set.Violations()
			if len(violations) != 1 || violations[0].Guarantee != check.G4 || (violations[0].Outside != "") != c.outside || s.set.Failed() == c.outside {
				t.Errorf("outside should be %v, failed is %v: %v", c.outside, s.set.Failed(), violations)
			}
		})
	}
}

func TestTheCanaryIsReported(t *testing.T) {
	for _, on := range []bool{true, false} {
		s := newScript(func(c *check.Config) { c.Canary = on })
		s.whole(one, "n1")
		if got := s.set.Finish(s.settled()); s.set.Failed() != on || on && (len(got) != 1 || got[0].Guarantee != check.Canary) {
			t.Errorf("canary %v: %v", on, got)
		}
	}
}

// A finding is reported once for each run, however often it is seen.
func TestFindingsAreReportedOnce(t *testing.T) {
	s := newScript()
	s.create(one)
	s.place(one, "n1")
	s.start(one, "n1", 1, 1)
	s.running(one)
	s.wait(time.Hour)
	for range 3 {
		s.set.Step(99, s.now)
		s.set.Expensive()
	}
	if got := s.set.Violations(); len(got) != 1 || got[0].Step != 99 {
		t.Errorf("%v", got)
	}
}
