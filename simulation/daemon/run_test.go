package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// shown is what the tests read of `errand show -o json`.
type shown struct {
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	QueuedAt  time.Time `json:"queuedAt"`
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt"`
	ExitCode  *int      `json:"exitCode"`
	Attempt   int       `json:"attempt"`
	Attempts  []struct {
		Number      int       `json:"number"`
		PlacedAt    time.Time `json:"placedAt"`
		StartedAt   time.Time `json:"startedAt"`
		EndedAt     time.Time `json:"endedAt"`
		Signal      int       `json:"signal"`
		Signals     []signal  `json:"signals"`
		LogComplete bool      `json:"logComplete"`
		Reason      string    `json:"reason"`
		ExitCode    *int      `json:"exitCode"`
	} `json:"attempts"`
}

// event is what the tests read of one in `errand events -o json`.
type event struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Attempt int       `json:"attempt"`
	Message string    `json:"message"`
}

// eventsOf returns the events of a run that are of a kind, oldest first.
func (n *node) eventsOf(t *testing.T, id, kind string) (found []event) {
	t.Helper()
	r := n.errand(t, "events", id, "-o", "json")
	var history struct {
		Events []event `json:"events"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &history); err != nil || r.code != 0 {
		t.Fatalf("errand events %s: %+v, %v", id, r, err)
	}
	for _, e := range history.Events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// signal is a stop signal that the engine sent.
type signal struct {
	Signal    int       `json:"signal"`
	Name      string    `json:"name"`
	At        time.Time `json:"at"`
	Delivered *bool     `json:"delivered"`
	Reason    string    `json:"reason"`
}

// wantTermAndKill asserts that an attempt was sent exactly these two, when, and that
// both arrived.
func wantTermAndKill(t *testing.T, s shown, reason string, term, kill time.Duration) {
	t.Helper()
	sent := s.Attempts[0].Signals
	if len(sent) != 2 || sent[0].Name != "TERM" || sent[1].Name != "KILL" {
		t.Fatalf("signals %+v, want TERM and KILL", sent)
	}
	for i, want := range []time.Duration{term, kill} {
		after := sent[i].At.Sub(s.Attempts[0].StartedAt)
		if after < want-50*time.Millisecond || after > want+time.Second+busy {
			t.Errorf("%s was sent %s after the start, want %s", sent[i].Name, after, want)
		}
		if sent[i].Delivered == nil || !*sent[i].Delivered || sent[i].Reason != reason {
			t.Errorf("signal %+v, want one for %s that arrived", sent[i], reason)
		}
	}
}

func (n *node) show(t *testing.T, id string) shown {
	t.Helper()
	r := n.errand(t, "show", id, "-o", "json")
	if r.code != 0 {
		t.Fatalf("errand show %s: code %d, stderr %s", id, r.code, r.stderr)
	}
	var s shown
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
		t.Fatalf("errand show -o json gave %s: %v", r.stdout, err)
	}
	return s
}

func (n *node) submit(t *testing.T, args ...string) string {
	t.Helper()
	r := n.errand(t, append([]string{"run", "-d", "--driver", "process"}, args...)...)
	if r.code != 0 {
		t.Fatalf("errand run -d: code %d, stderr %s\nnode: %s", r.code, r.stderr, n.log)
	}
	return strings.TrimSpace(r.stdout)
}

// API-01: the command line ends with the command's own code and keeps its outputs
// apart.
func TestRunGivesTheCommandsCodeAndKeepsOutputsApart(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			run := func(command ...string) result {
				return n.errand(t, slices.Concat([]string{"run"}, k.args, []string{"--"}, command)...)
			}
			run("sh", "-c", "echo out; echo err >&2; exit 17").want(t, 17, "out\n", "err\n")
			run("true").want(t, 0, "", "")
			for _, code := range []int{1, 2, 124, 125, 130, 137, 255} {
				if r := run("sh", "-c", fmt.Sprintf("exit %d", code)); r.code != code {
					t.Errorf("exit %d gave %d, stderr %q", code, r.code, r.stderr)
				}
			}
			n.waits(t, k)
			n.runOutlivesARestart(t, k)
		})
	}
}

// waits waits for runs as API-01 does: for one that takes too long and goes on, and for
// several, which have all gone well or have not.
func (n *node) waits(t *testing.T, k kind) {
	t.Helper()
	long := k.detach(t, n, nil, "sleep", "60")
	n.awaitRunning(t.Context(), t, long)
	timedOut := make(chan result, 1)
	go func() { timedOut <- n.errand(t, "wait", "--timeout", "5s", long) }()
	good, well, bad := k.detach(t, n, nil, "true"), k.detach(t, n, nil, "true"), k.detach(t, n, nil, "sh", "-c", "exit 3")
	for _, test := range []struct {
		runs []string
		code int
	}{{[]string{good, well}, 0}, {[]string{good, bad}, 3}, {[]string{bad, well}, 3}} {
		if r := n.errand(t, append([]string{"wait"}, test.runs...)...); r.code != test.code {
			t.Errorf("wait %v gave %+v; want %d", test.runs, r, test.code)
		}
	}
	if r := <-timedOut; r.code != 124 || r.took < 5*time.Second {
		t.Errorf("after %s wait gave %+v; want 124 after 5 s", r.took, r)
	}
	if s := n.show(t, long); s.Status != "RUNNING" || len(processesOf(t, long)) == 0 {
		t.Errorf("after a wait that took too long the run is %+v", s)
	}
	n.errand(t, "cancel", "--force", long)
	n.errand(t, "wait", long)
}

func TestRunThatCanNotStartSaysWhyAndHasNoCode(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	script := filepath.Join(t.TempDir(), "script")
	writeProgram(t, script, "#!/no/such/interpreter\n")
	for _, test := range []struct {
		name    string
		command string
		code    int
		reason  string
	}{
		{name: "absent", command: "/no/such/command", code: 127, reason: "NOT_FOUND"},
		{name: "absent on PATH", command: "no-such-command-anywhere", code: 127, reason: "NOT_FOUND"},
		{name: "not executable", command: "/etc/passwd", code: 126, reason: "NOT_EXECUTABLE"},
		{name: "missing interpreter", command: script, code: 127, reason: "NOT_FOUND"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := n.errand(t, "run", "--driver", "process", "--name", strings.ReplaceAll(test.name, " ", "-"), "--", test.command)
			if r.code != test.code || !strings.Contains(r.stderr, test.reason) {
				t.Fatalf("got code %d, stderr %q; want %d and %s", r.code, r.stderr, test.code, test.reason)
			}
			id := strings.TrimSpace(n.errand(t, "runs", "-q", "--name", strings.ReplaceAll(test.name, " ", "-")).stdout)
			if s := n.show(t, id); s.Status != "FAILED" || s.Reason != test.reason || s.ExitCode != nil {
				t.Fatalf("got %+v", s)
			}
		})
	}
}

// LIF-01: a command that ignores TERM is killed after the grace, when its run reads
// terminal nothing of it is left, and soon after nothing of its sandbox.
func TestTimeoutKillsACommandThatIgnoresTerm(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			marker := fmt.Sprintf("6%d%d", os.Getpid(), len(k.name)) // a duration that no other process sleeps for
			id := k.detach(t, n, []string{"--timeout", "5s", "--stop-grace", "3s"}, "sh", "-c", `trap "" TERM; sleep `+marker)
			n.awaitRunning(t.Context(), t, id)
			<-time.After(time.Until(n.show(t, id).StartedAt.Add(6 * time.Second)))
			if s := n.show(t, id); s.Status != "RUNNING" || len(processesOf(t, id)) == 0 || len(cgroupOf(t, records.SandboxID(id, 1, 1))) == 0 {
				t.Errorf("while it is alive the run is %+v", s)
			}
			r := n.errand(t, "wait", id)
			left, err := exec.Command("pgrep", "-f", "sleep "+marker).Output()
			ended, members := time.Now(), cgroupOf(t, records.SandboxID(id, 1, 1))
			if r.code != 124 {
				t.Fatalf("code %d, stderr %q; want 124", r.code, r.stderr)
			}
			if err == nil {
				t.Errorf("still running when the status was terminal: %s", left)
			}
			if len(members) > 0 {
				t.Errorf("when the status was terminal its cgroup held the processes %v", members)
			}
			scope := leftover.Node{Data: n.data, Sandboxes: []string{records.SandboxID(id, 1, 1)}}
			settle, cancel := context.WithDeadline(t.Context(), ended.Add(5*time.Second+busy))
			defer cancel()
			if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
				t.Errorf("soon after there is left: %v, %v", found, err)
			}
			s := n.show(t, id)
			took := s.EndedAt.Sub(s.StartedAt)
			if s.Status != "TIMED_OUT" || s.Reason != "TIMEOUT" || took < 8*time.Second || took > 11*time.Second+busy {
				t.Fatalf("got %s, %s after %s; want TIMED_OUT, TIMEOUT after 8 s and not much more", s.Status, s.Reason, took)
			}
			if s.ExitCode == nil || *s.ExitCode != 137 || s.Attempts[0].Signal != 9 {
				t.Fatalf("exit code %v, attempts %+v; want 137 by signal 9", s.ExitCode, s.Attempts)
			}
			wantTermAndKill(t, s, "TIMEOUT", 5*time.Second, 8*time.Second)
			events := n.eventsOf(t, id, "SIGNAL")
			if len(events) != 2 || !strings.Contains(events[0].Message, "15 (TERM)") || !strings.Contains(events[1].Message, "9 (KILL)") {
				t.Fatalf("the events of the signals are %+v", events)
			}
			for i, sent := range s.Attempts[0].Signals {
				if !events[i].At.Equal(sent.At) {
					t.Errorf("%s was sent at %s, and its event says %s", sent.Name, sent.At, events[i].At)
				}
			}
		})
	}
}

func TestWaitWithTimeoutLeavesTheRunGoing(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "--", "sleep", "60")
	if r := n.errand(t, "wait", "--timeout", "1s", id); r.code != 124 {
		t.Fatalf("code %d, stderr %q; want 124", r.code, r.stderr)
	}
	if s := n.show(t, id); s.Status != "RUNNING" && s.Status != "PENDING" {
		t.Fatalf("the run is %s", s.Status)
	}
	if r := n.errand(t, "cancel", id); r.code != 0 {
		t.Fatalf("cancel: code %d, stderr %q", r.code, r.stderr)
	}
	if r := n.errand(t, "wait", id); r.code != 130 {
		t.Fatalf("wait after cancel: code %d; want 130", r.code)
	}
	if s := n.show(t, id); s.Status != "CANCELED" || s.ExitCode == nil || *s.ExitCode != 128+15 {
		t.Fatalf("got %+v; want CANCELED with the observed code 143", s)
	}
	if r := n.errand(t, "cancel", n.submit(t, "--", "true")); r.code != 0 && !strings.Contains(r.stderr, "SUCCEEDED") {
		t.Fatalf("cancel of a run that ends: code %d, stderr %q", r.code, r.stderr)
	}
}

func TestWaitForSeveralRunsGivesTheFirstFailureInOrder(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	good, bad, worse := n.submit(t, "--", "true"), n.submit(t, "--", "sh", "-c", "exit 3"), n.submit(t, "--", "sh", "-c", "exit 4")
	for _, test := range []struct {
		args []string
		code int
	}{
		{args: []string{good}, code: 0},
		{args: []string{good, bad}, code: 3},
		{args: []string{worse, bad}, code: 4},
	} {
		if r := n.errand(t, append([]string{"wait"}, test.args...)...); r.code != test.code {
			t.Errorf("wait %v gave %d; want %d", test.args, r.code, test.code)
		}
	}
}

func TestEnvironmentOfACommand(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	r := n.errand(t, "run", "--driver", "process", "--env", "A=b c", "--", "sh", "-c",
		`echo "$A|$ERRAND_APP|$ERRAND_ATTEMPT|$ERRAND_RUN_ID|$ERRAND_FENCING_TOKEN"`)
	fields := strings.Split(strings.TrimSpace(r.stdout), "|")
	if len(fields) != 5 || fields[0] != "b c" || fields[1] != "default" || fields[2] != "1" || !strings.HasPrefix(fields[3], "k.default.") {
		t.Fatalf("got %q", r.stdout)
	}
	first, err := strconv.ParseUint(fields[4], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	again := n.errand(t, "run", "--driver", "process", "--", "sh", "-c", "echo $ERRAND_FENCING_TOKEN")
	if second, err := strconv.ParseUint(strings.TrimSpace(again.stdout), 10, 64); err != nil || second <= first {
		t.Fatalf("the fencing token went from %d to %q (%v)", first, again.stdout, err)
	}
}
