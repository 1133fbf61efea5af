package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The session of these tests: what runs is killed 8 s after the last renewal was sent.
const (
	guardWindow = 8 * time.Second
	guardBudget = 3 * time.Second
)

// guardedNode is a node on an outside etcd, whose session can end.
type guardedNode struct {
	*node
	etcd    *outsideEtcd
	runtime string
}

func startGuardedNode(t *testing.T, flags ...string) *guardedNode {
	t.Helper()
	runtime, err := os.MkdirTemp("/dev/shm", "errand-guard-")
	if err != nil {
		t.Fatal(err)
	}
	g := &guardedNode{etcd: startEtcd(t), runtime: runtime}
	// The guard outlives the daemon, so it is ended after it.
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(runtime, "guard-*.log"))
			for _, path := range logs {
				text, _ := os.ReadFile(path)
				t.Logf("guard: %s", text)
			}
		}
		if pid, ok := g.guard(t); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.RemoveAll(runtime); err != nil {
			t.Error(err)
		}
	})
	g.node = startNode(t, append([]string{
		"--etcd-endpoints", g.etcd.address, "--runtime-dir", runtime,
		"--session-lease", "12s", "--session-renew", "1s", "--session-margin", "4s", "--kill-budget", guardBudget.String(),
	}, flags...)...)
	return g
}

// guard returns the pid of the guard that is at work.
func (g *guardedNode) guard(t *testing.T) (pid int, ok bool) {
	t.Helper()
	locks, err := filepath.Glob(filepath.Join(g.runtime, "guard-*.lock"))
	if err != nil || len(locks) > 1 {
		t.Fatalf("locks of guards: %v, %v", locks, err)
	}
	if len(locks) == 0 {
		return 0, false
	}
	text, err := os.ReadFile(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, err == nil
}

// beat starts a run whose command writes to a file for ever, and returns its id and how
// long ago it has last written.
func (g *guardedNode) beat(t *testing.T) (id string, silent func() time.Duration) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "beat")
	id = g.submit(t, "--", "sh", "-c", "while :; do echo >> "+path+"; sleep 0.05; done")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, id)
	return id, func() time.Duration {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(info.ModTime())
	}
}

// silence is how long a command that beats twenty times a second must not be heard to be
// taken for ended: it gets no processor, and its disk stands still, for no longer.
const silence = 5 * time.Second

// awaitSilence returns when the command has been silent for so long, how long after
// begin it fell silent; it fails after limit.
func awaitSilence(t *testing.T, begin time.Time, silent func() time.Duration, limit time.Duration) time.Duration {
	t.Helper()
	for {
		quiet := silent()
		switch last := time.Since(begin) - quiet; {
		case quiet >= silence:
			return last
		case last > limit:
			t.Fatalf("the command still ran %s after", last)
		}
		time.Sleep(50 * time.Millisecond) // nothing tells that a file is no longer written
	}
}

// awaitFenced wants the run to end without a code because its node was fenced.
func (g *guardedNode) awaitFenced(t *testing.T, id string) {
	t.Helper()
	g.errand(t, "wait", id)
	if s := g.show(t, id); s.Status != "FAILED" || s.Reason != "NODE_FENCED" || s.ExitCode != nil {
		t.Fatalf("the run is %+v\nnode: %s", s, g.log)
	}
	// The node is in a new session and takes what comes.
	g.errand(t, "run", "--driver", "process", "--", "sh", "-c", "exit 7").want(t, 7, "", "")
}

func TestGuardKillsWhatRunsOnANodeThatIsFrozen(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.beat(t)
	frozen := time.Now()
	sendSignal(t, g.PID(), syscall.SIGSTOP)
	took := awaitSilence(t, frozen, silent, guardWindow+guardBudget)
	t.Logf("killed %s after the daemon was frozen", took)
	if took < guardWindow-3*time.Second {
		t.Errorf("the command was killed %s after the daemon was frozen, long before the session's end", took)
	}
	sendSignal(t, g.PID(), syscall.SIGCONT)
	g.awaitFenced(t, id)
}

func TestGuardKillsWhatRunsOnANodeThatIsDead(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.beat(t)
	killed := time.Now()
	g.crash(t)
	t.Logf("killed %s after the daemon died", awaitSilence(t, killed, silent, guardWindow+guardBudget))
	g.start(t)
	g.awaitFenced(t, id)
}

func TestNodeWhoseStoreIsAwayIsFencedAndComesBack(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.beat(t)
	away := time.Now()
	g.etcd.pause(t)
	t.Logf("killed %s after the store went away", awaitSilence(t, away, silent, guardWindow+guardBudget))
	g.etcd.resume(t)
	g.awaitFenced(t, id)
}

// The session of a node whose absences are short, and what is short: a machine that is
// busy with other things makes them longer than they are meant to be, and the fence is
// right to kill then.
const (
	longWindow   = 24 * time.Second
	shortAbsence = longWindow / 2
	absenceTries = 3
)

func TestShortAbsencesKillNothing(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t, "--session-lease", "28s")
	for range absenceTries {
		code, longest := g.absent(t)
		switch {
		case longest > shortAbsence:
			t.Logf("the run ended with %d after an absence of %s, which is not short: once more", code, longest)
		case code != 3:
			t.Fatalf("the run ended with %d, want 3; the longest absence took %s of %s\nnode: %s", code, longest, longWindow, g.log)
		default:
			return
		}
	}
	t.Fatalf("no absence was short: this machine is too busy to tell")
}

// absent lets node and store be away for a while in all ways, and returns how a command
// ended that ran meanwhile, and how long the longest absence took. One lasts until the
// session has been renewed.
func (g *guardedNode) absent(t *testing.T) (code int, longest time.Duration) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "end")
	id := g.submit(t, "--", "sh", "-c", "until [ -e "+path+" ]; do sleep 0.05; done; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, id)
	measured := func(away func()) {
		begin := time.Now()
		away()
		longest = max(longest, time.Since(begin))
	}
	measured(func() { g.restart(t) })
	measured(func() {
		g.etcd.pause(t)
		time.Sleep(longWindow / 12) // the absence itself
		g.etcd.resume(t)
		// Nothing tells that it was renewed in between, so both are one.
		sendSignal(t, g.PID(), syscall.SIGSTOP)
		time.Sleep(longWindow / 12)
		sendSignal(t, g.PID(), syscall.SIGCONT)
		if err := g.Stop(); err != nil {
			t.Fatal(err)
		}
		g.start(t)
	})
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return g.errand(t, "wait", id).code, longest
}

// TestPlannedRestartOutlastsTheSession is an update that takes longer than the daemon
// may be silent: what runs goes on, and its end arrives. Back again, the node has no
// more time than any other.
func TestPlannedRestartOutlastsTheSession(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	beating, silent := g.beat(t)
	path := filepath.Join(t.TempDir(), "end")
	ending := g.submit(t, "--", "sh", "-c", "until [ -e "+path+" ]; do sleep 0.05; done; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g.awaitRunning(ctx, t, ending)
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(guardWindow + guardBudget) // the absence itself
	if quiet := silent(); quiet > silence {
		t.Fatalf("the command is silent since %s\nnode: %s", quiet, g.log)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(t)
	if r := g.errand(t, "wait", ending); r.code != 3 {
		t.Fatalf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, g.log)
	}
	killed := time.Now()
	g.crash(t)
	t.Logf("killed %s after the daemon died", awaitSilence(t, killed, silent, guardWindow+guardBudget))
	g.start(t)
	g.awaitFenced(t, beating)
}

func TestStopWithoutTheStoreGivesNoMoreTime(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.beat(t)
	stopped := time.Now()
	g.etcd.pause(t)
	if err := g.Stop(); err != nil {
		t.Errorf("the daemon did not stop: %v", err)
	}
	t.Logf("stopped in %s, killed %s after", time.Since(stopped), awaitSilence(t, stopped, silent, guardWindow+guardBudget))
	g.etcd.resume(t)
	g.start(t)
	g.awaitFenced(t, id)
}

func TestGuardThatDiesIsStartedAgain(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t)
	id, silent := g.beat(t)
	first, ok := g.guard(t)
	if !ok {
		t.Fatal("there is no guard")
	}
	sendSignal(t, first, syscall.SIGKILL)
	deadline := time.Now().Add(2 * time.Minute)
	second := first
	for second == first || syscall.Kill(second, 0) != nil {
		if time.Now().After(deadline) {
			t.Fatalf("no other guard\nnode: %s", g.log)
		}
		time.Sleep(50 * time.Millisecond) // nothing tells of a process that is no child
		if pid, ok := g.guard(t); ok {
			second = pid
		}
	}
	killed := time.Now()
	g.crash(t)
	awaitSilence(t, killed, silent, guardWindow+guardBudget)
	g.start(t)
	g.awaitFenced(t, id)
}

func TestNodeThatIsAloneHasNoFence(t *testing.T) {
	t.Parallel()
	runtime := t.TempDir()
	n := startNode(t, "--runtime-dir", runtime)
	n.errand(t, "run", "--driver", "process", "--", "true").want(t, 0, "", "")
	for _, pattern := range []string{"fence-*", "guard-*"} {
		if found, err := filepath.Glob(filepath.Join(runtime, pattern)); err != nil || len(found) > 0 {
			t.Errorf("a node that is alone has %v, %v", found, err)
		}
	}
}

func TestNodeThatNeedsAGuardRefusesToStartWithoutRoomForIt(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	r := runNode(t, "--dev", "--drivers", "process", "--data", t.TempDir(), "--listen", "127.0.0.1:0",
		"--etcd-endpoints", etcd.address, "--runtime-dir", t.TempDir())
	if r.code == 0 || !strings.Contains(r.stderr, "--runtime-dir must name a folder on a tmpfs") {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
}
