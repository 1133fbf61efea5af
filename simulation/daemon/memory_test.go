package daemon_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
)

// memoryOf is what a run's record says of its memory.
type memoryOf struct {
	Spec struct {
		MemoryBytes int64 `json:"memoryBytes"`
	} `json:"spec"`
	Attempts []struct {
		OOMKilled       bool  `json:"oomKilled"`
		MemoryPeakBytes int64 `json:"memoryPeakBytes"`
	} `json:"attempts"`
}

// wantOutOfMemory fails the test unless a run says that it was out of memory, with its
// limit and the most that it has used, wherever people look.
func (n *node) wantOutOfMemory(t *testing.T, id string, limit int64) {
	t.Helper()
	s := n.show(t, id)
	if s.Status != "FAILED" || s.Reason != "OOM_KILLED" || s.ExitCode == nil || *s.ExitCode != 137 || s.Attempts[0].Signal != 9 {
		t.Fatalf("the run is %+v\nnode: %s", s, n.log)
	}
	var m memoryOf
	if err := json.Unmarshal([]byte(n.errand(t, "show", id, "-o", "json").stdout), &m); err != nil {
		t.Fatal(err)
	}
	if a := m.Attempts[0]; m.Spec.MemoryBytes != limit || !a.OOMKilled || a.MemoryPeakBytes <= limit/2 || a.MemoryPeakBytes > limit {
		t.Errorf("memory of the run: %+v, limit %d", m, limit)
	}
	words := "its limit is " + records.SizeText(limit) + ", the most that it used was " + records.SizeText(m.Attempts[0].MemoryPeakBytes)
	if why := n.errand(t, "why", id).stdout; !strings.Contains(why, words) || !strings.Contains(why, "was the kernel's, for want of memory") {
		t.Errorf("why: %s", why)
	}
	if ended := n.eventTexts(t, id, "EXITED"); len(ended) != 1 || !strings.Contains(ended[0], words) {
		t.Errorf("events: %q", ended)
	}
}

// NOD-05: a kill for want of memory is told as one, with limit and peak, and no other
// kill is.
func TestOutOfMemoryIsToldFromOtherKills(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			run := func(t *testing.T, flags []string, command ...string) string {
				t.Helper()
				id := k.detach(t, n, append([]string{"--memory", "64MiB"}, flags...), command...)
				n.errand(t, "wait", "--timeout", "60s", id)
				return id
			}
			t.Run("out of memory", func(t *testing.T) { n.wantOutOfMemory(t, run(t, nil, "tail", "/dev/zero"), limit) })
			t.Run("out of memory at once", func(t *testing.T) {
				for range 5 {
					id := k.detach(t, n, []string{"--memory", "16MiB"}, "tail", "/dev/zero")
					n.errand(t, "wait", "--timeout", "60s", id)
					n.wantOutOfMemory(t, id, 16<<20)
				}
			})
			for _, test := range []struct {
				name           string
				flags, command []string
				status, reason string
				code           int
				says           string
			}{
				{"its own kill", nil, []string{"sh", "-c", "kill -9 $$"}, "FAILED", "SIGNAL", 137, "killed by signal 9"},
				{"a kill by its timeout", []string{"--timeout", "1s", "--stop-grace", "1s"}, []string{"sh", "-c", "trap '' TERM; sleep 600"}, "TIMED_OUT", "TIMEOUT", 137, "timeout"},
				{"a child out of memory", nil, []string{"sh", "-c", "tail /dev/zero; exit 9"}, "FAILED", "EXIT_CODE", 9, "the kernel killed a process of it for want of memory"},
			} {
				t.Run(test.name, func(t *testing.T) {
					id := run(t, test.flags, test.command...)
					s := n.show(t, id)
					if s.Status != test.status || s.Reason != test.reason || s.ExitCode == nil || *s.ExitCode != test.code || !strings.Contains(s.Message, test.says) {
						t.Errorf("the run is %+v", s)
					}
					if why := n.errand(t, "why", id).stdout; strings.Contains(why, "was the kernel's") || strings.Contains(why, "OOM") {
						t.Errorf("why: %s", why)
					}
				})
			}
			t.Run("while the daemon is away", func(t *testing.T) {
				id := k.detach(t, n, []string{"--memory", "64MiB"}, "sh", "-c", `trap "exec tail /dev/zero" USR1; echo ready; while :; do sleep 0.1; done`)
				n.awaitRunning(t.Context(), t, id)
				for deadline := time.Now().Add(2 * time.Minute); n.errand(t, "logs", id).stdout != "ready\n"; time.Sleep(20 * time.Millisecond) { // the trap is set
					if time.Now().After(deadline) {
						t.Fatal("the command writes nothing")
					}
				}
				n.crash(t)
				signalShell(t, id)
				n.start(t)
				n.errand(t, "wait", "--timeout", "60s", id)
				n.wantOutOfMemory(t, id, limit)
			})
		})
	}
}

// signalShell sends USR1 to the shell that is a run's command, and returns when its
// processes are gone.
func signalShell(t *testing.T, id string) {
	t.Helper()
	commands := func() (shell int, others int) {
		for _, text := range processesOf(t, id) {
			line, err := os.ReadFile("/proc/" + text + "/cmdline")
			switch {
			case err != nil || bytes.Contains(line, []byte("sandbox-init")) || bytes.Contains(line, []byte("errand/init")):
			case bytes.HasPrefix(line, []byte("sh\x00-c\x00trap")):
				shell, _ = strconv.Atoi(text)
			default:
				others++
			}
		}
		return shell, others
	}
	shell, _ := commands()
	if shell == 0 {
		t.Fatalf("run %s has no shell among %v", id, processesOf(t, id))
	}
	sendSignal(t, shell, syscall.SIGUSR1)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) { // the kernel tells nobody
		if shell, others := commands(); shell == 0 && others == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("run %s goes on: %v", id, processesOf(t, id))
		}
	}
}

// NOD-01, G7: who kills a sandbox from outside ends it without a code: 137 is the
// killer's number, and the command might have ended well. What the command does itself,
// or somebody does to it alone, has its code.
func TestSandboxThatIsKilledFromOutsideIsLost(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	ctr := func(args ...string) func(*testing.T, string) {
		return func(t *testing.T, id string) {
			t.Helper()
			binary, err := exec.LookPath("ctr")
			if err != nil {
				t.Fatal(err)
			}
			address, _, _, _ := private.At(filepath.Join(n.data, "containerd"))
			all := append([]string{"-a", address, "-n", containerd.NamespaceDefault}, args...)
			output, err := exec.CommandContext(t.Context(), binary, append(all, id)...).CombinedOutput()
			// `tasks delete --force` kills and then deletes: the node, which sees the end,
			// may have deleted the task in between.
			if err != nil && !bytes.Contains(output, []byte("cannot delete a deleted process")) && !bytes.Contains(output, []byte("not found")) {
				t.Fatalf("ctr %q: %v: %s", all, err, output)
			}
		}
	}
	for _, test := range []struct {
		name string
		kill func(*testing.T, string)
	}{
		{"its task is deleted by force", ctr("tasks", "delete", "--force")},
		{"its task is killed", ctr("tasks", "kill", "-s", "SIGKILL")},
		{"its init is killed", func(t *testing.T, id string) {
			sendSignal(t, initOf(t, id), syscall.SIGKILL)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := kinds[1].detach(t, n, nil, "sh", "-c", "echo out; sleep 600")
			n.awaitRunning(t.Context(), t, id)
			for deadline := time.Now().Add(2 * time.Minute); n.errand(t, "logs", id).stdout != "out\n"; time.Sleep(20 * time.Millisecond) { // what it writes comes with the log
				if time.Now().After(deadline) {
					t.Fatal("the command writes nothing")
				}
			}
			test.kill(t, records.SandboxID(id, 1, 1))
			n.errand(t, "wait", "--timeout", "100s", id)
			s := n.show(t, id)
			if s.Status != "FAILED" || s.Reason != "SANDBOX_LOST" || s.ExitCode != nil || s.Attempts[0].Signal != 0 || !strings.Contains(s.Message, "killed from outside") {
				t.Errorf("the run is %+v\nnode: %s", s, n.log)
			}
			if out := n.errand(t, "logs", id).stdout; out != "out\n" || !s.Attempts[0].LogComplete {
				t.Errorf("the log has %q, complete %t", out, s.Attempts[0].LogComplete)
			}
			if why := n.errand(t, "why", id).stdout; !strings.Contains(why, "its node found its cgroup empty") {
				t.Errorf("why: %s", why)
			}
		})
	}
}

// initOf is the first process of a sandbox.
func initOf(t *testing.T, id string) int {
	t.Helper()
	groups, err := filepath.Glob("/sys/fs/cgroup/*/errand-*/" + id + "/cgroup.procs")
	if err != nil || len(groups) == 0 {
		groups, err = filepath.Glob("/sys/fs/cgroup/errand-*/" + id + "/cgroup.procs")
	}
	if err != nil || len(groups) == 0 {
		t.Fatalf("sandbox %s has no cgroup: %v", id, err)
	}
	text, err := os.ReadFile(groups[0])
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		status, err := os.ReadFile("/proc/" + field + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if names := strings.Fields(line); len(names) > 1 && names[0] == "NSpid:" && names[len(names)-1] == "1" {
				pid, _ := strconv.Atoi(field)
				return pid
			}
		}
	}
	t.Fatalf("sandbox %s has no init among %s", id, text)
	return 0
}
