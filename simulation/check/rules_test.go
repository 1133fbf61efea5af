package check_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

const (
	askedToEnd    = recordv1.Reason_REASON_CANCELED
	startDeadline = recordv1.Reason_REASON_START_DEADLINE
	startError    = recordv1.Reason_REASON_START_ERROR
	startUnknown  = recordv1.Reason_REASON_START_UNKNOWN
	sandboxLost   = recordv1.Reason_REASON_SANDBOX_LOST
)

// pair is a rule of a checker: a history that keeps it, and the smallest that breaks
// it, with what is said then.
type pair struct {
	name          string
	guarantee     check.Guarantee
	want          string
	keeps, breaks func(s *script)
}

func judgePairs(t *testing.T, pairs []pair) {
	t.Helper()
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			for _, kept := range []bool{true, false} {
				s, guarantee, want, play := newScript(), p.guarantee, p.want, p.breaks
				if kept {
					guarantee, want, play = "", "", p.keeps
				}
				play(s)
				s.set.Step(s.step, s.now)
				s.set.Expensive()
				expect(t, s.set.Violations(), guarantee, want)
			}
		})
	}
}

// ran plays a run up to its command's start.
func (s *script) ran(id, node string) {
	s.create(id)
	s.runs(id, node)
}

// ranToRetry is ran of a run that is tried again when it is lost.
func (s *script) ranToRetry(id, node string) {
	s.createToRetry(id, onLoss)
	s.runs(id, node)
}

func (s *script) runs(id, node string) {
	s.place(id, node)
	s.start(id, node, 1, 1)
	s.running(id)
}

// wish records what is asked of a run.
func (s *script) wish(id string, reason recordv1.Reason, force bool) {
	s.update(id, func(run *recordv1.Run) { run.Wish = &recordv1.Wish{Reason: reason, Force: force} })
}

// note puts late exits into a record that has ended.
func (s *script) note(id string, exits ...*recordv1.LateExit) {
	run := s.record(id)
	run.LateExits = exits
	s.commit(keys.Note(run, 1).Then...)
}

func lateExit(code int32) *recordv1.LateExit {
	return &recordv1.LateExit{Attempt: 1, Placement: 1, Exit: &recordv1.Exit{Code: proto.Int32(code)}}
}

func TestRulesOfG1(t *testing.T) {
	judgePairs(t, []pair{
		{
			"a wish changes to a cancel and never from it", check.G1, "a cancel became another wish",
			func(s *script) { s.ran(one, "n1"); s.wish(one, startDeadline, false); s.wish(one, askedToEnd, false) },
			func(s *script) { s.ran(one, "n1"); s.wish(one, askedToEnd, false); s.wish(one, startDeadline, false) },
		},
		{
			"a stop becomes forced and never gentle", check.G1, "a forced stop became a gentle one",
			func(s *script) { s.ran(one, "n1"); s.wish(one, askedToEnd, false); s.wish(one, askedToEnd, true) },
			func(s *script) { s.ran(one, "n1"); s.wish(one, askedToEnd, true); s.wish(one, askedToEnd, false) },
		},
		{
			"a start clears the start deadline's wish and no other", check.G1, "CANCELED was forgotten",
			func(s *script) {
				s.create(one)
				s.place(one, "n1")
				s.wish(one, startDeadline, false)
				s.start(one, "n1", 1, 1)
				s.update(one, func(run *recordv1.Run) { run.Wish, run.Status = nil, recordv1.Status_STATUS_RUNNING })
			},
			func(s *script) {
				s.create(one)
				s.place(one, "n1")
				s.wish(one, askedToEnd, false)
				s.start(one, "n1", 1, 1)
				s.update(one, func(run *recordv1.Run) { run.Wish, run.Status = nil, recordv1.Status_STATUS_RUNNING })
			},
		},
		{
			"an attempt follows the one before", check.G1, "attempt 1 became attempt 3",
			func(s *script) { s.ranToRetry(one, "n1"); s.exit(one, "n1", 1, 1, 0, "fence"); s.retry(one) },
			func(s *script) {
				s.create(one)
				s.update(one, func(run *recordv1.Run) { run.Attempt = 3 })
			},
		},
		{
			"placements are numbered one after the other", check.G1, "placement 3 follows 1 placements",
			func(s *script) { s.create(one); s.place(one, "n1"); s.void(one); s.place(one, "n1") },
			func(s *script) {
				s.create(one)
				s.place(one, "n1")
				s.void(one)
				run := s.record(one)
				run.Placements, run.Placement = 3, &recordv1.Placement{Node: "n1", Number: 3}
				s.commit(keys.Place(run, 1, 0, &recordv1.Assignment{Attempt: 1, Placement: 3}).Then...)
			},
		},
		{
			"a run is not queued earlier than it was", check.G1, "queued earlier",
			func(s *script) { s.create(one); s.update(one, func(run *recordv1.Run) { run.QueuedAt = 9 }) },
			func(s *script) { s.create(one); s.update(one, func(run *recordv1.Run) { run.QueuedAt = 0 }) },
		},
		{
			"what a run was created with stays", check.G1, "created with has changed",
			func(s *script) { s.create(one); s.update(one, func(run *recordv1.Run) { run.HoldMessage = "no room" }) },
			func(s *script) { s.create(one); s.update(one, func(run *recordv1.Run) { run.Spec.TimeoutMs = 1 }) },
		},
		{
			"an attempt that has ended stays", check.G1, "attempt 1 was changed or lost",
			func(s *script) {
				s.ranToRetry(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "fence")
				s.retry(one)
				s.place(one, "n2")
			},
			func(s *script) {
				s.ranToRetry(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "fence")
				s.retry(one)
				s.update(one, func(run *recordv1.Run) { run.Attempts = nil })
			},
		},
		{
			"a late exit stays", check.G1, "a late exit was lost",
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(0)); s.note(one, lateExit(0), lateExit(0)) },
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(0)); s.note(one) },
		},
		{
			"a late exit stays as it is", check.G1, "a late exit was changed",
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(0)); s.note(one, lateExit(0)) },
			func(s *script) {
				s.whole(one, "n1")
				s.note(one, lateExit(0))
				s.note(one, &recordv1.LateExit{Attempt: 1, Placement: 1})
			},
		},
		{
			"a run that goes on has its live key", check.G1, "its live key is gone",
			func(s *script) { s.create(one) },
			func(s *script) { s.create(one); s.commit(records.Op{Kind: records.OpDelete, Key: keys.Live(one)}) },
		},
		{
			"a run without a placement has no assignment", check.G1, "no placement and an assignment on n1",
			func(s *script) { s.create(one); s.place(one, "n1"); s.void(one) },
			func(s *script) {
				s.create(one)
				s.commit(records.Op{Kind: records.OpPut, Key: keys.Assignment("n1", one), Value: records.Encode(&recordv1.Assignment{})})
			},
		},
		{
			"an assignment is of the placement in the record", check.G1, "is of attempt 1 placement 7",
			func(s *script) { s.create(one); s.place(one, "n1") },
			func(s *script) {
				s.create(one)
				s.place(one, "n1")
				s.commit(records.Op{Kind: records.OpPut, Key: keys.Assignment("n1", one), Value: records.Encode(&recordv1.Assignment{Attempt: 1, Placement: 7})})
			},
		},
		{
			"keys are of a run that has a record", check.G1, "has no record",
			func(s *script) { s.whole(one, "n1"); s.remove(one) },
			func(s *script) {
				s.commit(records.Op{Kind: records.OpPut, Key: keys.Live(one), Value: records.Encode(&recordv1.Live{})})
			},
		},
		{
			"only a run that has ended is deleted", check.G1, "deleted while it was PENDING",
			func(s *script) { s.whole(one, "n1"); s.remove(one) },
			func(s *script) { s.create(one); s.remove(one) },
		},
	})
}

func TestRulesOfG3AndG4(t *testing.T) {
	judgePairs(t, []pair{
		{
			"a placement is given up when nothing of it runs", check.G3, "was given up while it ran",
			func(s *script) { s.ranToRetry(one, "n1"); s.exit(one, "n1", 1, 1, 0, "fence"); s.retry(one) },
			func(s *script) { s.ranToRetry(one, "n1"); s.retry(one) },
		},
		{
			"the live key goes with the end", check.G4, "its live key is there",
			func(s *script) { s.whole(one, "n1") },
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				run := s.record(one)
				run.Status, run.ExitCode, run.Placement, run.EndedAt = succeeded, proto.Int32(0), nil, 10
				run.Attempts[0].ExitCode = run.ExitCode
				s.commit(
					records.Op{Kind: records.OpPut, Key: keys.Run(one), Value: records.Encode(run)},
					records.Op{Kind: records.OpDelete, Key: keys.Assignment("n1", one)},
				)
			},
		},
		{
			"the placement goes with the end", check.G4, "has a placement",
			func(s *script) { s.whole(one, "n1") },
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, succeeded, 0, proto.Int32(0), func(run *recordv1.Run) { run.Placement = &recordv1.Placement{Node: "n1", Session: 1, Number: 1} })
			},
		},
	})
}

func TestRulesOfG7(t *testing.T) {
	judgePairs(t, []pair{
		{
			"a code is of a command that has ended", check.G7, "which has not ended",
			func(s *script) { s.whole(one, "n1") },
			func(s *script) {
				s.ran(one, "n1")
				s.update(one, func(run *recordv1.Run) { run.Attempts[0].ExitCode = proto.Int32(0) })
			},
		},
		{
			"a code after a signal is that of the signal", check.G7, "exit code 143 with signal 9",
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 143, "itself")
				s.finish(one, failed, exitCode, proto.Int32(143), func(run *recordv1.Run) { run.Attempts[0].Signal = 15 })
			},
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 143, "itself")
				s.finish(one, failed, exitCode, proto.Int32(143), func(run *recordv1.Run) { run.Attempts[0].Signal = 9 })
			},
		},
		{
			"what the engine has stopped is not said to have failed by itself", check.G7, "was ended by the engine",
			func(s *script) {
				s.ran(one, "n1")
				s.wish(one, askedToEnd, false)
				s.exit(one, "n1", 1, 1, 143, "signal")
				s.finish(one, canceled, askedToEnd, proto.Int32(143))
			},
			func(s *script) {
				s.ran(one, "n1")
				s.wish(one, askedToEnd, false)
				s.exit(one, "n1", 1, 1, 143, "signal")
				s.finish(one, failed, recordv1.Reason_REASON_SIGNAL, proto.Int32(143))
			},
		},
		{
			"only who was canceled is said to be", check.G7, "although nobody wished it",
			func(s *script) {
				s.create(one)
				s.wish(one, askedToEnd, false)
				s.finish(one, canceled, askedToEnd, nil)
			},
			func(s *script) {
				s.create(one)
				s.finish(one, canceled, askedToEnd, nil, func(run *recordv1.Run) { run.Wish = nil })
			},
		},
		{
			"the run's code is that of its last attempt", check.G7, "not that of its last attempt",
			func(s *script) { s.whole(one, "n1") },
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, failed, exitCode, proto.Int32(0), func(run *recordv1.Run) { run.ExitCode = proto.Int32(5) })
			},
		},
		{
			"a late exit's code is the command's", check.G7, "late: exit code 4",
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(0)) },
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(4)) },
		},
		{
			"a late exit under the fence has no code that counts", check.G7, "late: exit code 137",
			func(s *script) {
				s.whole(one, "n1")
				late := lateExit(137)
				late.Exit.Fenced = true
				s.note(one, late)
			},
			func(s *script) { s.whole(one, "n1"); s.note(one, lateExit(137)) },
		},
	})
}

func TestRulesOfG8(t *testing.T) {
	judgePairs(t, []pair{
		{
			"a cancel is in the record when it is acknowledged", check.G8, "a cancel was acknowledged",
			func(s *script) {
				answer := s.calls(check.VerbCancel, one)
				s.ran(one, "n1")
				s.wish(one, askedToEnd, false)
				answer("ok", nil)
			},
			func(s *script) {
				answer := s.calls(check.VerbCancel, one)
				s.ran(one, "n1")
				s.wish(one, startDeadline, false)
				answer("ok", nil)
			},
		},
		{
			"a cancel that came too late is not acknowledged", check.G8, "a cancel was acknowledged",
			func(s *script) {
				answer := s.calls(check.VerbCancel, one)
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.wish(one, askedToEnd, false)
				s.succeed(one)
				answer("ok", nil)
			},
			func(s *script) {
				s.whole(one, "n1")
				s.calls(check.VerbCancel, one)("ok", nil)
			},
		},
		{
			"an acknowledged submit may be deleted, and is not gone otherwise", check.G8, "not in the store",
			func(s *script) {
				answer := s.calls(check.VerbSubmit, one)
				s.whole(one, "n1")
				s.remove(one)
				answer("ok", nil)
			},
			func(s *script) { s.calls(check.VerbSubmit, one)("ok", nil); s.create(two) },
		},
		{
			"an end without a code is one that something befell", check.G8, "has no code",
			func(s *script) {
				s.ran(one, "n1")
				s.fault("n1", "vanish", true, false)
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, failed, startError, nil)
			},
			func(s *script) {
				s.fault("n1", "vanish", true, false)
				s.fault("n1", "vanish", false, false)
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, failed, startError, nil)
			},
		},
		{
			"only what its node may have lost sight of is said to be lost", check.G8, "in sight of its node",
			func(s *script) {
				s.ran(one, "n1")
				s.fault("n1", "shim_death", true, false)
				s.exit(one, "n1", 1, 1, 137, "kill")
				s.finish(one, failed, sandboxLost, nil)
			},
			func(s *script) {
				s.ran(one, "n1")
				s.fault("n1", "crash", true, false)
				s.fault("n2", "shim_death", true, false)
				s.exit(one, "n1", 1, 1, 137, "kill")
				s.finish(one, failed, sandboxLost, nil)
			},
		},
		{
			"a start that its node can find is not said to be unknown", check.G8, "(START_UNKNOWN)",
			func(s *script) {
				s.ran(one, "n1")
				s.fault("n1", "reboot", true, false)
				s.exit(one, "n1", 1, 1, 137, "reboot")
				s.finish(one, failed, startUnknown, nil)
			},
			func(s *script) {
				s.ran(one, "n1")
				s.fault("n1", "failed_start", true, false)
				s.exit(one, "n1", 1, 1, 137, "kill")
				s.finish(one, failed, startUnknown, nil)
			},
		},
		{
			"a start that its node was told nobody knows of, and that comes after that, may be unknown", check.G8, "(START_UNKNOWN)",
			func(s *script) {
				s.fault("n1", "failed_start", true, false)
				s.create(one)
				s.place(one, "n1")
				s.startUnknown(one, "n1")
				s.start(one, "n1", 1, 1)
				s.exit(one, "n1", 1, 1, 3, "itself")
				s.finish(one, failed, startUnknown, nil)
			},
			func(s *script) {
				s.fault("n1", "failed_start", true, false)
				s.create(one)
				s.place(one, "n1")
				s.start(one, "n1", 1, 1)
				s.startUnknown(one, "n1")
				s.exit(one, "n1", 1, 1, 3, "itself")
				s.finish(one, failed, startUnknown, nil)
			},
		},
		{
			"a node that has lost its journal has lost sight", check.G8, "in sight of its node",
			func(s *script) {
				s.fault("n1", "disk_loss", true, false)
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, failed, sandboxLost, nil)
			},
			func(s *script) {
				s.fault("n1", "disk_full", true, false)
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, failed, sandboxLost, nil)
			},
		},
	})
}
