package daemon_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// insideCommands is what errand exec and errand cp do in a run that runs.
func insideCommands(t *testing.T, n *node, id string) {
	t.Helper()
	n.errand(t, "exec", "-e", "MORE=1", id, "--", "sh", "-c", "echo out $MORE; echo err >&2; exit 7").want(t, 7, "out 1\n", "err\n")
	n.errand(t, "exec", "-w", "/tmp", "-u", "65534:65534", id, "sh", "-c", "pwd; id -u").want(t, 0, "/tmp\n65534\n", "")
	if r := n.errand(t, "exec", id, "--", "nosuch"); r.code != 127 || !strings.Contains(r.stderr, "nosuch: no such file") {
		t.Errorf("absent command: code %d, stderr %q", r.code, r.stderr)
	}
	if r := n.errand(t, "exec", id); r.code != 2 || !strings.Contains(r.stderr, "which COMMAND?") {
		t.Errorf("no command: code %d, stderr %q", r.code, r.stderr)
	}
	if r := n.errand(t, "exec", "-t", id, "--", "sh"); r.code != 2 || !strings.Contains(r.stderr, "-t wants a terminal") {
		t.Errorf("no terminal: code %d, stderr %q", r.code, r.stderr)
	}
	command := exec.Command(filepath.Join(binaries, "errand"), "exec", "-i", id, "--", "sh", "-c", "cat; echo end")
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	command.Stdin = strings.NewReader("input\n")
	if output, err := command.CombinedOutput(); err != nil || string(output) != "input\nend\n" {
		t.Errorf("exec -i: %q, %v", output, err)
	}
	dir := t.TempDir()
	n.errand(t, "cp", id+":/etc/passwd", filepath.Join(dir, "accounts")).want(t, 0, "", "")
	inside := n.errand(t, "exec", id, "--", "cat", "/etc/passwd")
	if copied, err := os.ReadFile(filepath.Join(dir, "accounts")); err != nil || string(copied) != inside.stdout {
		t.Errorf("copied %q, %v; inside %q", copied, err, inside.stdout)
	}
	if r := n.errand(t, "cp", id+":/no/such", dir); r.code != 125 || !strings.Contains(r.stderr, "no such file") {
		t.Errorf("cp of nothing: code %d, stderr %q", r.code, r.stderr)
	}
}

func TestExecAndCopyInARunOfTheHost(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "--", "sleep", "3600")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	insideCommands(t, n, id)
	n.restart(t)
	insideCommands(t, n, id)
	// Interrupted once the command is told, and leaves twice interrupted.
	command := exec.Command(filepath.Join(binaries, "errand"), "exec", id, "--", "sh", "-c", "trap 'echo told; exit 9' INT; echo begun; while :; do sleep 0.05; done")
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	var output lines
	command.Stdout = &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	output.await(t, "begun")
	sendSignal(t, command.Process.Pid, syscall.SIGINT)
	if err := command.Wait(); command.ProcessState.ExitCode() != 9 {
		t.Errorf("interrupted: %v, output %q", err, output.text())
	}
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
	if r := n.errand(t, "exec", id, "--", "true"); r.code != 125 || !strings.Contains(r.stderr, "CANCELED") {
		t.Errorf("in a run that has ended: code %d, stderr %q", r.code, r.stderr)
	}
}

func TestExecAndCopyInAContainer(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	r := n.errand(t, "run", "-d", "busybox", "--", "sleep", "3600")
	id := strings.TrimSpace(r.stdout)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	insideCommands(t, n, id)
	// What is added is held as the run's own command is.
	const privileges = "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status"
	own := n.errand(t, "run", "busybox", "--", "sh", "-c", privileges)
	n.errand(t, "exec", id, "--", "sh", "-c", privileges).want(t, 0, own.stdout, "")
	if !strings.Contains(own.stdout, "Seccomp:\t2") {
		t.Errorf("the run's own command has %q", own.stdout)
	}
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
}

// lines is output that is waited for.
type lines struct{ log logText }

func (l *lines) Write(p []byte) (int, error) { return l.log.Write(p) }

func (l *lines) text() string { return l.log.String() }

func (l *lines) await(t *testing.T, word string) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); !strings.Contains(l.text(), word); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("never %q; got %q", word, l.text())
		}
	}
}
