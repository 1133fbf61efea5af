package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// pidOf finds the process whose command line holds all words.
func pidOf(t *testing.T, words ...string) int {
	t.Helper()
	pid, ok := findProcess(t, words...)
	if !ok {
		t.Fatalf("no process of %q", words)
	}
	return pid
}

// findProcess is pidOf where there may be none.
func findProcess(t *testing.T, words ...string) (pid int, ok bool) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
find:
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		for _, word := range words {
			if !bytes.Contains(line, []byte(word)) {
				continue find
			}
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			return pid, true
		}
	}
	return 0, false
}

// commandOf is the process that a run's command was started as, which is a sleep.
func commandOf(t *testing.T, id string) int {
	t.Helper()
	pid, ok := sleepOf(t, id)
	if !ok {
		t.Fatalf("run %s has no sleep among %v", id, processesOf(t, id))
	}
	return pid
}

// sleepOf is the process of a run that is a sleep, if it has one.
func sleepOf(t *testing.T, id string) (pid int, ok bool) {
	t.Helper()
	for _, text := range processesOf(t, id) {
		name, err := os.ReadFile("/proc/" + text + "/cmdline")
		if err == nil && bytes.HasPrefix(name, []byte("sleep\x00")) {
			pid, err = strconv.Atoi(text)
			return pid, err == nil
		}
	}
	return 0, false
}

// awaitSleep returns when a run's shell has come to the sleep that it runs.
func awaitSleep(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) { // the kernel tells nobody
		if _, ok := sleepOf(t, id); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("run %s has no sleep among %v", id, processesOf(t, id))
		}
	}
}

// G7, NOD-01 (b): no outcome is invented. What was lost has no code and says so at once, what
// was seen has its own, and the numbers that a runtime makes up for what it has lost
// are told apart from the same numbers of a command.
func TestLossIsToldApartFromACode(t *testing.T) {
	t.Parallel()
	type test struct {
		name    string
		command []string
		harm    func(t *testing.T, n *node, id string)
		reason  string
		code    int // -1 for none
	}
	sleep := []string{"sleep", "600"}
	supervisor := func(t *testing.T, n *node, id string) int {
		return pidOf(t, "sandbox-init", records.SandboxID(id, 1, 1))
	}
	of := map[string][]test{
		"process": {
			{"the supervisor is killed", sleep, func(t *testing.T, n *node, id string) { sendSignal(t, supervisor(t, n, id), syscall.SIGKILL) }, "SANDBOX_LOST", -1},
		},
		"containerd": {
			{"the shim is killed", sleep, func(t *testing.T, n *node, id string) {
				sendSignal(t, pidOf(t, "containerd-shim", records.SandboxID(id, 1, 1)), syscall.SIGKILL)
			}, "SANDBOX_LOST", -1},
			{"containerd is killed, and the command ends later", []string{"sh", "-c", "sleep 4; exit 7"}, func(t *testing.T, n *node, _ string) {
				sendSignal(t, pidOf(t, "containerd\x00--config\x00", n.data), syscall.SIGKILL)
			}, "EXIT_CODE", 7},
		},
	}
	for _, k := range kinds {
		tests := append(of[k.name],
			test{"the command is killed", sleep, func(t *testing.T, n *node, id string) { sendSignal(t, commandOf(t, id), syscall.SIGKILL) }, "SIGNAL", 137},
			test{"the command gives 137", []string{"sh", "-c", "exit 137"}, nil, "EXIT_CODE", 137},
			test{"the command gives 255", []string{"sh", "-c", "exit 255"}, nil, "EXIT_CODE", 255},
		)
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					id := k.detach(t, n, nil, test.command...)
					if test.harm != nil {
						n.awaitRunning(t.Context(), t, id)
						test.harm(t, n, id)
					}
					began := time.Now()
					n.errand(t, "wait", "--timeout", "60s", id)
					s := n.show(t, id)
					code := -1
					if s.ExitCode != nil {
						code = *s.ExitCode
					}
					if s.Status != "FAILED" || s.Reason != test.reason || code != test.code || s.Message == "" || time.Since(began) > 30*time.Second+busy {
						t.Errorf("after %s the run is %+v; want %s, %d\nnode: %s", time.Since(began), s, test.reason, test.code, n.log)
					}
					if left := leftOf(t, id); len(left) > 0 {
						t.Errorf("left over: %v", left)
					}
				})
			}
		})
	}
}

// Trap 11: what was lost goes by on_node_loss, and is not charged to the retries.
func TestLostSandboxGoesByOnNodeLoss(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	create := func(retry string) string {
		id := n.create(t, fmt.Sprintf(`{"spec": {"driver": "process", "command": ["sh", "-c", %q], "retry": {"backoff": "0.1s", %s}}}`,
			`[ $ERRAND_ATTEMPT = 1 ] && exec sleep 600; exit $ERRAND_ATTEMPT`, retry))
		n.awaitRunning(t.Context(), t, id)
		sendSignal(t, pidOf(t, "sandbox-init", records.SandboxID(id, 1, 1)), syscall.SIGKILL)
		n.errand(t, "wait", id)
		return id
	}
	fails := n.show(t, create(`"retries": 3, "onNodeLoss": "ON_NODE_LOSS_FAIL"`))
	if fails.Status != "FAILED" || fails.Reason != "SANDBOX_LOST" || fails.ExitCode != nil || len(fails.Attempts) != 1 {
		t.Errorf("a run that fails with what it is lost with is %+v", fails)
	}
	// One loss and two failures: attempts 1, 2 and 3, of which one retry was charged.
	retries := n.show(t, create(`"retries": 1`))
	if retries.Status != "FAILED" || retries.ExitCode == nil || *retries.ExitCode != 3 || len(retries.Attempts) != 3 ||
		retries.Attempts[0].ExitCode != nil || retries.Attempts[0].Reason != "SANDBOX_LOST" {
		t.Errorf("a run that is tried again is %+v", retries)
	}
}

// Trap 12: a success that the engine has not read yet when the run is canceled stays
// one, and both are kept.
func TestSuccessThatWasNotReadYetOutranksACancel(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	gate := filepath.Join(t.TempDir(), "gate")
	id := n.submit(t, "--stop-grace", "60s", "--", "sh", "-c", "until [ -e "+gate+" ]; do sleep 0.05; done")
	n.awaitRunning(t.Context(), t, id)
	supervisor := pidOf(t, "sandbox-init", records.SandboxID(id, 1, 1))
	sendSignal(t, supervisor, syscall.SIGSTOP)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Only the supervisor is left, which also has the run's environment.
	for deadline := time.Now().Add(2 * time.Minute); len(processesOf(t, id)) > 1; time.Sleep(10 * time.Millisecond) { // nobody is told: that is the point
		if time.Now().After(deadline) {
			t.Fatal("the command does not end")
		}
	}
	n.errand(t, "cancel", id).want(t, 0, id+"\n", "")
	sendSignal(t, supervisor, syscall.SIGCONT)
	if r := n.errand(t, "wait", id); r.code != 0 {
		t.Errorf("wait gave %+v", r)
	}
	s := n.show(t, id)
	if s.Status != "SUCCEEDED" || s.ExitCode == nil || *s.ExitCode != 0 {
		t.Errorf("the run is %+v\nnode: %s", s, n.log)
	}
	// The cancel is in its history: as a signal that reached nobody, with its cause.
	sent := s.Attempts[0].Signals
	if len(sent) != 1 || sent[0].Reason != "CANCELED" || sent[0].Delivered == nil || *sent[0].Delivered {
		t.Errorf("signals %+v, want one for CANCELED that did not arrive", sent)
	}
}

// NOD-07: a delete that hangs blocks no other run, and is repeated until it is done.
func TestHungShimBlocksNobodyAndIsClearedAway(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	id := kinds[1].detach(t, n, nil, "sleep", "600")
	n.awaitRunning(t.Context(), t, id)
	shim := pidOf(t, "containerd-shim", records.SandboxID(id, 1, 1))
	sendSignal(t, shim, syscall.SIGSTOP)
	n.errand(t, "cancel", "--force", id)
	for range 3 {
		if r := n.errand(t, "run", "busybox", "--", "sh", "-c", "exit 4"); r.code != 4 || r.took > 20*time.Second+busy {
			t.Errorf("beside a hung shim a run gave %+v", r)
		}
	}
	if r := n.errand(t, "wait", "--timeout", "100s", id); r.code != 130 {
		t.Errorf("wait gave %+v: %+v\nnode: %s", r, n.show(t, id), n.log)
	}
	if left := leftOf(t, id); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	scope := leftover.Node{Data: n.data, Sandboxes: []string{records.SandboxID(id, 1, 1)}}
	settle, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
		t.Errorf("left over: %s, %v\nnode: %s", strings.Join(found, "\n"), err, n.log)
	}
	_ = syscall.Kill(shim, syscall.SIGCONT)
}
