package containerd

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

func TestOutcomeOfEveryRowOfTheTable(t *testing.T) {
	code := func(n int) *int { return &n }
	running, starting := status.Status{State: status.Running}, status.Status{State: status.Starting}
	exited := func(n int) status.Status { return status.Status{State: status.Exited, Value: n} }
	signaled := func(n int) status.Status { return status.Status{State: status.Signaled, Value: n} }
	failed := func(stage status.Stage, errno unix.Errno) status.Status {
		return status.Status{State: status.ExecFailed, Stage: stage, Value: int(errno)}
	}
	const none = -1
	cases := []struct {
		name      string
		testimony testimony
		code      int32
		signal    int32
		reason    recordv1.Reason
		source    string
		oom       bool
		slain     bool
		disagree  bool
	}{
		{name: "exited and the same code", testimony: testimony{file: exited(7), code: code(7)}, code: 7, source: "both"},
		{name: "exited 0 and the same code", testimony: testimony{file: exited(0), code: code(0)}, code: 0, source: "both"},
		{name: "exited 137 and the same code is no signal", testimony: testimony{file: exited(137), code: code(137)}, code: 137, source: "both"},
		{name: "signaled and the same code", testimony: testimony{file: signaled(15), code: code(143)}, code: 143, signal: 15, source: "both"},
		{name: "signaled 9 with an OOM kill", testimony: testimony{file: signaled(9), code: code(137), oomKills: 1}, code: 137, signal: 9, source: "both", oom: true},
		{name: "exited with a child's OOM kill", testimony: testimony{file: exited(137), code: code(137), oomKills: 1}, code: 137, source: "both"},
		{name: "exited and the shim lost, process gone", testimony: testimony{file: exited(3), gone: true}, code: 3, source: "init"},
		{name: "signaled and the shim lost, process gone", testimony: testimony{file: signaled(6), gone: true}, code: 134, signal: 6, source: "init"},
		{name: "exited and the shim lost, process perhaps alive", testimony: testimony{file: exited(3)}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST},
		{name: "not found, whatever the shim says", testimony: testimony{file: failed(status.StageLookup, unix.ENOENT), code: code(127)}, code: none, reason: recordv1.Reason_REASON_NOT_FOUND, source: "init"},
		{name: "not executable with the shim lost", testimony: testimony{file: failed(status.StageExec, unix.ENOEXEC), gone: true}, code: none, reason: recordv1.Reason_REASON_NOT_EXECUTABLE, source: "init"},
		{name: "no working directory", testimony: testimony{file: failed(status.StageChdir, unix.ENOENT), code: code(126)}, code: none, reason: recordv1.Reason_REASON_START_ERROR, source: "init"},
		{name: "empty and a code", testimony: testimony{code: code(1)}, code: none, reason: recordv1.Reason_REASON_START_ERROR, source: "shim"},
		{name: "empty and code 0", testimony: testimony{code: code(0)}, code: none, reason: recordv1.Reason_REASON_START_ERROR, source: "shim"},
		{name: "empty and the shim lost", testimony: testimony{gone: true}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST},
		{name: "running and 137", testimony: testimony{file: running, code: code(137)}, code: 137, signal: 9, source: "shim", slain: true},
		{name: "running and 137 by the driver's kill", testimony: testimony{file: running, code: code(137), killed: true}, code: 137, signal: 9, source: "shim"},
		{name: "running and 137 with an OOM kill", testimony: testimony{file: running, code: code(137), oomKills: 2}, code: 137, signal: 9, source: "shim", oom: true},
		{name: "running and the code of an init that failed", testimony: testimony{file: running, code: code(2)}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST, source: "shim"},
		{name: "running and code 0", testimony: testimony{file: running, code: code(0)}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST, source: "shim"},
		{name: "starting and 137", testimony: testimony{file: starting, code: code(137)}, code: 137, signal: 9, source: "shim", slain: true},
		{name: "starting and 137 with an OOM kill", testimony: testimony{file: starting, code: code(137), oomKills: 1}, code: 137, signal: 9, source: "shim", oom: true},
		{name: "starting and the code of an init that failed", testimony: testimony{file: starting, code: code(2)}, code: none, reason: recordv1.Reason_REASON_START_ERROR, source: "shim"},
		{name: "starting and code 0", testimony: testimony{file: starting, code: code(0)}, code: none, reason: recordv1.Reason_REASON_START_ERROR, source: "shim"},
		{name: "running and the shim lost", testimony: testimony{file: running, gone: true}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST},
		{name: "starting and the shim lost", testimony: testimony{file: status.Status{State: status.Starting}, gone: true}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST},
		{name: "exited 0 and init killed after its last word", testimony: testimony{file: exited(0), code: code(137)}, code: 0, source: "init"},
		{name: "exited 3 and init killed after its last word, with an OOM kill", testimony: testimony{file: exited(3), code: code(137), oomKills: 1}, code: 3, source: "init"},
		{name: "signaled 15 and init killed after its last word", testimony: testimony{file: signaled(15), code: code(137)}, code: 143, signal: 15, source: "init"},
		{name: "exited and another code", testimony: testimony{file: exited(0), code: code(1)}, code: 1, source: "shim", disagree: true},
		{name: "signaled and another code", testimony: testimony{file: signaled(15), code: code(1)}, code: 1, source: "shim", disagree: true},
		{name: "a file that is not to be believed and a code", testimony: testimony{malformed: true, code: code(4)}, code: 4, source: "shim", disagree: true},
		{name: "a file that is not to be believed and the shim lost", testimony: testimony{malformed: true, gone: true}, code: none, reason: recordv1.Reason_REASON_SANDBOX_LOST},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			exit, disagree := outcome(tc.testimony)
			got := int32(none)
			if exit.Code != nil {
				got = *exit.Code
			}
			if got != tc.code || exit.Signal != tc.signal || exit.Reason != tc.reason || exit.Source != tc.source || exit.OOMKilled != tc.oom || exit.Slain != tc.slain || disagree != tc.disagree {
				t.Errorf("code %d, %+v, disagree %v", got, exit, disagree)
			}
			if exit.Code == nil && (exit.Message == "" || exit.Reason == 0) {
				t.Error("no code and no word why")
			}
			if tc.testimony.file.State <= status.ExecFailed && !exit.StartedAt.IsZero() {
				t.Error("a command that is not known to have run has a start")
			}
		})
	}
}

func TestOutcomeTakesTheTimesOfInit(t *testing.T) {
	n, start := 0, time.Unix(100, 0)
	exit, _ := outcome(testimony{file: status.Status{State: status.Exited, StartedAt: start, At: start.Add(time.Second)}, code: &n, at: start.Add(2 * time.Second)})
	if !exit.StartedAt.Equal(start) || !exit.At.Equal(start.Add(time.Second)) {
		t.Errorf("started %v, ended %v", exit.StartedAt, exit.At)
	}
}

func TestOutcomeOfALostSandboxIsDatedByItsLoss(t *testing.T) {
	start := time.Unix(100, 0)
	seen := start.Add(time.Minute)
	for name, file := range map[string]status.Status{
		"running":        {State: status.Running, StartedAt: start, At: start},
		"perhaps exited": {State: status.Exited, StartedAt: start, At: start.Add(time.Second)},
	} {
		exit, _ := outcome(testimony{file: file, at: seen})
		if exit.Code != nil || !exit.StartedAt.Equal(start) || !exit.At.Equal(seen) {
			t.Errorf("%s: %+v", name, exit)
		}
	}
}

func TestOutcomeOfALostSandboxTellsTheDriversKill(t *testing.T) {
	file := status.Status{State: status.Running}
	killed, _ := outcome(testimony{file: file, gone: true, killed: true})
	if killed.Reason != recordv1.Reason_REASON_SANDBOX_LOST || killed.Message != unseenKill {
		t.Errorf("%+v", killed)
	}
	if other, _ := outcome(testimony{file: file, gone: true}); other.Message == killed.Message {
		t.Errorf("a kill is told of that was none: %+v", other)
	}
}
