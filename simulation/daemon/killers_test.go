package daemon_test

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lastWritten is when a file below a directory was last written to.
func lastWritten(t *testing.T, dir string) (last time.Time) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// chat starts a run that speaks for ever, and returns its id and how long ago it has
// last spoken, by its log: who writes that lives as long as the command.
func (g *guardedNode) chat(t *testing.T, args ...string) (id string, silent func() time.Duration) {
	t.Helper()
	id = g.submit(t, append(args, "--", "sh", "-c", "while :; do echo beat; sleep 0.1; done")...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, id)
	logs := filepath.Join(g.data, "logs")
	return id, func() time.Duration { return time.Since(lastWritten(t, logs)) }
}

// silence is how long ago a run has last spoken, by its log.
func (g *guardedNode) silence(t *testing.T, id string) func() time.Duration {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(g.data, "logs", id+".*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("logs of %s: %v, %v", id, found, err)
	}
	return func() time.Duration { return time.Since(lastWritten(t, found[0])) }
}

// killBoth kills daemon and guard before either could start the other again.
func (g *guardedNode) killBoth(t *testing.T) {
	t.Helper()
	guard, ok := g.guard(t)
	if !ok {
		t.Fatal("there is no guard")
	}
	sendSignal(t, g.PID(), syscall.SIGSTOP)
	sendSignal(t, guard, syscall.SIGKILL)
	g.crash(t)
	for deadline := time.Now().Add(2 * time.Minute); syscall.Kill(guard, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the guard lives")
		}
	}
}

// TestSandboxesEndWithTheSessionWhenDaemonAndGuardAreDead leaves nobody but the process
// beside each sandbox.
func TestSandboxesEndWithTheSessionWhenDaemonAndGuardAreDead(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.chat(t)
	other, _ := g.beat(t)
	killed := time.Now()
	g.killBoth(t)
	took := awaitSilence(t, killed, silent, guardWindow+guardBudget)
	t.Logf("killed %s after daemon and guard died", took)
	if took < guardWindow-3*time.Second {
		t.Errorf("killed %s after, long before the session's end", took)
	}
	g.start(t)
	g.awaitFenced(t, id)
	g.awaitFenced(t, other)
}

// TestContainersEndWithTheSessionWhenDaemonAndGuardAreDead has beside it one whose run
// waits for its node: that one goes on.
func TestContainersEndWithTheSessionWhenDaemonAndGuardAreDead(t *testing.T) {
	t.Parallel()
	needContainerd(t)
	g := startGuardedNode(t, "--drivers", "containerd,process", "--containerd", "private")
	g.importBusybox(t)
	id, _ := g.chat(t, "--driver", "containerd", "busybox")
	silent := g.silence(t, id)
	waits, end := g.waitingContainer(t)
	killed := time.Now()
	g.killBoth(t)
	t.Logf("killed %s after daemon and guard died", awaitSilence(t, killed, silent, guardWindow+guardBudget))
	g.start(t)
	g.awaitFenced(t, id)
	g.wantGoesOn(t, waits, g.silence(t, waits))
	end()
	if r := g.errand(t, "wait", waits); r.code != 3 {
		t.Errorf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, g.log)
	}
	if text := g.errand(t, "logs", id).stdout; !strings.HasPrefix(text, "beat\n") {
		t.Errorf("its log begins with %.40q", text)
	}
}
