package daemon_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// silentRegistry takes connections and never answers.
func silentRegistry(t *testing.T) (host string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// Trap 6: RUNNING means that the command was started, not that a record was made. A pull
// that hangs is under the start deadline.
func TestRunWhoseImageHangsIsPendingUntilItsStartDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 6 * time.Second
	n := startContainerNode(t)
	image := silentRegistry(t) + "/a:1"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id := strings.TrimSpace(n.errand(t, "run", "-d", "--start-deadline", deadline.String(), image, "--", "true").stdout)
	through := n.statuses(ctx, t, id)
	for begun := time.Now(); time.Since(begun) < deadline/2; {
		if s := n.show(t, id); s.Status != "PENDING" || !s.StartedAt.IsZero() {
			t.Fatalf("while its image is pulled the run is %+v", s)
		}
	}
	n.errand(t, "wait", id)
	s := n.show(t, id)
	if s.Status != "FAILED" || s.Reason != "IMAGE_PULL" || s.ExitCode != nil || !s.StartedAt.IsZero() {
		t.Errorf("the run is %+v", s)
	}
	if took := s.EndedAt.Sub(s.QueuedAt); took < deadline || took > deadline+busy {
		t.Errorf("it ended %s after it was queued, whose start deadline is %s", took, deadline)
	}
	if got := through(); !slices.Equal(got, []string{"PENDING", "FAILED"}) {
		t.Errorf("it went through %v", got)
	}

	// And where RUNNING is read, a process has the command.
	command := kinds[1].detach(t, n, nil, "sleep", "600")
	n.awaitRunning(ctx, t, command)
	commandOf(t, command)
	n.errand(t, "cancel", "--force", command)
	n.errand(t, "wait", command)
}

// runtimeBefore returns the environment of a node whose shims find a runc in a directory
// before the others: it does what the script says, and then is the real one.
func runtimeBefore(t *testing.T, dir, script string) (environment []string) {
	t.Helper()
	real, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\n%s\nexec %s \"$@\"\n", script, real)
	writeProgram(t, filepath.Join(dir, "runc"), text)
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// writeProgram writes a script that can be executed at once: nothing is forked while its
// file is open, since the kernel executes none that a child may write to.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// Trap 7, and LIF-05 on one node: starts that fail are no failures of the command and
// use no attempt up; between them the run holds nothing that others could use.
func TestRunWhoseStartsFailHoldsNoRoomAndUsesNoAttemptUp(t *testing.T) {
	t.Parallel()
	needContainerd(t)
	dir := t.TempDir()
	away := filepath.Join(dir, "away")
	n := &node{environment: runtimeBefore(t, dir, "[ -e "+away+" ] && { echo 'no such program' >&2; exit 127; }")}
	n.startWith(t, "--drivers", "containerd,process", "--containerd", "private", "--sandboxes-max", "1")
	n.importBusybox(t)
	if err := os.WriteFile(away, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id := n.create(t, `{"spec": {"image": "busybox", "command": ["sh", "-c", "echo $ERRAND_ATTEMPT"], "retry": {"retries": 3, "backoff": "0.1s"}}}`)
	for deadline := time.Now().Add(2 * time.Minute); len(n.eventsOf(t, id, "LEFT")) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("no start has failed: %+v\nnode: %s", n.show(t, id), n.log)
		}
	}
	// There is room for one sandbox, and it is not held.
	for range 2 {
		if r := n.errand(t, "run", "--driver", "process", "--start-deadline", "60s", "--", "sh", "-c", "exit 5"); r.code != 5 {
			t.Errorf("beside a run whose starts fail another gave %+v", r)
		}
	}
	late := n.errand(t, "run", "--start-deadline", "5s", "busybox", "--", "true")
	if late.code != 125 || !strings.Contains(late.stderr, "START_ERROR") || late.took > 10*time.Second+busy {
		t.Errorf("a run that can not be started gave %+v", late)
	}
	s := n.show(t, id)
	if s.Status != "PENDING" || s.Attempt != 1 || s.ExitCode != nil || s.Message == "" {
		t.Errorf("the run whose starts fail is %+v", s)
	}
	if err := os.Remove(away); err != nil {
		t.Fatal(err)
	}
	if r := n.errand(t, "wait", "--timeout", "60s", id); r.code != 0 {
		t.Errorf("wait gave %+v\nnode: %s", r, n.log)
	}
	s = n.show(t, id)
	if s.Status != "SUCCEEDED" || len(s.Attempts) != 1 {
		t.Errorf("the run is %+v", s)
	}
	if log := n.errand(t, "logs", id); log.stdout != "1\n" {
		t.Errorf("its log is %q", log.stdout)
	}
}

// Runs that wait for a registry hold up none that wants nothing of it.
func TestSilentRegistryHoldsUpNoRunWithAnotherImage(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	silent := silentRegistry(t)
	for i := range 6 * runtime.NumCPU() {
		n.errand(t, "run", "-d", "--start-deadline", "30s", fmt.Sprintf("%s/a:%d", silent, i), "--", "true")
	}
	n.errand(t, "run", "--start-deadline", "8s", "busybox", "--", "echo", "through").want(t, 0, "through\n", "")
	for id := range strings.FieldsSeq(n.errand(t, "runs", "-q", "--status", "PENDING").stdout) {
		n.errand(t, "cancel", id)
	}
}
