package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// waiting starts a host command that waits for its node and beats until a file is there;
// end makes that, and started counts how often it was started.
func (g *guardedNode) waiting(t *testing.T) (id string, silent func() time.Duration, end func(), started func() int) {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	id = g.submit(t, "--on-node-loss", "wait", "--", "sh", "-c",
		"echo started >> "+path("starts")+"; until [ -e "+path("end")+" ]; do echo >> "+path("beat")+"; sleep 0.05; done; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, id)
	silent = func() time.Duration { return time.Since(lastWritten(t, dir)) }
	end = func() {
		if err := os.WriteFile(path("end"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	started = func() int {
		text, err := os.ReadFile(path("starts"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "started")
	}
	return id, silent, end, started
}

// wantGoesOn wants a run that waits to run, and to be known to.
func (g *guardedNode) wantGoesOn(t *testing.T, id string, silent func() time.Duration) {
	t.Helper()
	if quiet := silent(); quiet > silence {
		t.Fatalf("the command is silent since %s\nnode: %s", quiet, g.log)
	}
	if s := g.show(t, id); s.Status != "RUNNING" || s.Attempt != 1 {
		t.Fatalf("the run is %+v\nnode: %s", s, g.log)
	}
}

// TestRunThatWaitsOutlivesItsNodesSessions ends the node's session twice: first while the
// store is away, then while daemon and guard are dead. Each time what does not wait ends.
func TestRunThatWaitsOutlivesItsNodesSessions(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent, end, started := g.waiting(t)
	ended, _, endSooner, _ := g.waiting(t)
	first, firstSilent := g.beat(t)

	away := time.Now()
	g.etcd.pause(t)
	awaitSilence(t, away, firstSilent, guardWindow+guardBudget)
	g.etcd.resume(t)
	g.awaitFenced(t, first)
	g.wantGoesOn(t, id, silent)

	second, secondSilent := g.beat(t)
	killed := time.Now()
	g.killBoth(t)
	awaitSilence(t, killed, secondSilent, guardWindow+guardBudget)
	// One of them ends behind the fence, where nobody sees it.
	endSooner()
	time.Sleep(time.Second) // the absence itself
	g.start(t)
	g.awaitFenced(t, second)
	g.wantGoesOn(t, id, silent)
	for _, run := range []string{ended, id} {
		end()
		if r := g.errand(t, "wait", run); r.code != 3 {
			t.Errorf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, g.log)
		}
	}
	if n := started(); n != 1 {
		t.Errorf("the command was started %d times", n)
	}
}

// waitingContainer starts a container that waits for its node and beats into its log; end
// lets it end.
func (g *guardedNode) waitingContainer(t *testing.T) (id string, end func()) {
	t.Helper()
	id = g.submit(t, "--driver", "containerd", "--on-node-loss", "wait", "busybox", "--",
		"sh", "-c", "until [ -e /end ]; do echo beat; sleep 0.1; done; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, id)
	return id, func() { g.errand(t, "exec", id, "--", "touch", "/end").want(t, 0, "", "") }
}
