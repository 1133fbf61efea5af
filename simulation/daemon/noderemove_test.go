package daemon_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/simulation/daemon"
)

// removal is what errand node rm prints as JSON.
type removal struct {
	ID        string   `json:"id"`
	RemovedAt string   `json:"removedAt"`
	RemovedBy string   `json:"removedBy"`
	Waiting   []string `json:"waiting"`
}

// TestRunThatWaitsEndsByTheWordThatItsNodeIsDead: the machine is lost with its daemon and
// its guard, another one takes its place on the same store, and somebody says that it will
// not come back. It does: what it still has is stopped before it takes part again.
func TestRunThatWaitsEndsByTheWordThatItsNodeIsDead(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t, "--name", "n1")
	id, silent, _, started := g.waiting(t)
	g.wantRefused(t, 125, "NODE_HAS_SESSION", []string{"has a session", "stop its daemon"}, "node", "rm", "n1", "--i-know-it-is-dead")
	g.killBoth(t)

	other := g.second(t)
	if nodes := other.errand(t, "node", "ls").stdout; !strings.Contains(nodes, "n1     away") {
		t.Errorf("the nodes are\n%s", nodes)
	}
	other.awaitCause(t, id, "WAITS_FOR_NODE", "errand node rm n1 --i-know-it-is-dead")
	other.wantRefused(t, 2, "USAGE", []string{"nothing was done", "1 run that waits for the node", id, "--i-know-it-is-dead"}, "node", "rm", "n1")
	if s := other.show(t, id); s.Status != "RUNNING" {
		t.Fatalf("without the word the run is %+v", s)
	}
	for range 2 {
		r := other.errandWith(t, []string{"USER=alice"}, "node", "rm", "n1", "--i-know-it-is-dead", "-o", "json")
		var told removal
		if err := json.Unmarshal([]byte(r.stdout), &told); r.code != 0 || err != nil || told.ID != "n1" || !strings.HasPrefix(told.RemovedBy, "alice") {
			t.Fatalf("%+v: %v", r, err)
		}
		if told.RemovedAt == "" || len(told.Waiting) > 0 && !slices.Equal(told.Waiting, []string{id}) {
			t.Errorf("told %+v", told)
		}
		other.errand(t, "wait", id)
	}
	if s := other.show(t, id); s.Status != "FAILED" || s.Reason != "NODE_LOST" || s.ExitCode != nil || s.Attempt != 1 {
		t.Errorf("the run is %+v", s)
	}
	other.awaitCause(t, id, "SAFE_POINT", "alice")
	if told := other.eventsOf(t, id, "SAFE"); len(told) != 1 || !strings.Contains(told[0].Message, "has said that it is dead") {
		t.Errorf("its events: %+v", told)
	}
	if nodes := other.errand(t, "node", "ls").stdout; strings.Contains(nodes, "n1") {
		t.Errorf("it is still listed:\n%s", nodes)
	}

	// The word was wrong: the command still runs.
	if quiet := silent(); quiet > silence {
		t.Fatalf("the command is silent since %s", quiet)
	}
	other.crash(t)
	other.Daemon = nil
	g.startWhenFree(t)
	// It had spoken for the last time when the node took part again.
	awaitSilence(t, time.Now(), silent, 0)
	g.errand(t, "run", "--driver", "process", "--", "sh", "-c", "exit 7").want(t, 7, "", "")
	if n := started(); n != 1 {
		t.Errorf("the command was started %d times", n)
	}
	if told := g.eventsOf(t, id, "LATE_EXIT"); len(told) != 1 || !strings.Contains(told[0].Message, "had said that its machine was dead") {
		t.Errorf("its events: %+v\nnode: %s", told, g.log)
	}
	if s := g.show(t, id); s.Status != "FAILED" || s.Reason != "NODE_LOST" {
		t.Errorf("the run is %+v", s)
	}
}

// second starts another node on the same store, as soon as the first one's session is over.
func (g *guardedNode) second(t *testing.T) *node {
	t.Helper()
	flags := slices.DeleteFunc(slices.Clone(g.flags), func(flag string) bool { return flag == "n1" || flag == "--name" })
	i := slices.Index(flags, g.runtime)
	runtime, err := os.MkdirTemp("/dev/shm", "errand-guard-")
	if err != nil {
		t.Fatal(err)
	}
	flags[i] = runtime
	other := &guardedNode{node: &node{data: t.TempDir(), flags: append(flags, "--name", "n2")}, runtime: runtime}
	t.Cleanup(func() {
		if pid, ok := other.guard(t); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.RemoveAll(runtime); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if other.Daemon != nil {
			other.crash(t)
		}
	})
	other.startWhenFree(t)
	return other.node
}

// startWhenFree starts a node as soon as no other one has a session in its store.
func (n *node) startWhenFree(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) { // nothing tells that a lease has ended
		n.log = &logText{}
		started, err := daemon.Start(t.Context(), daemon.Options{
			Binary: filepath.Join(binaries, "errand-node"), Data: n.data, Stderr: n.log,
			Flags: append([]string{"--sandbox-init", filepath.Join(binaries, "sandbox-init")}, n.flags...),
		})
		if err == nil {
			n.Daemon = started
			return
		}
		if !strings.Contains(n.log.String(), "the store belongs to node") || time.Now().After(deadline) {
			t.Fatalf("start the node: %v\n%s", err, n.log)
		}
	}
}

// wantRefused wants a command line to fail with a code, a word for programs and words for
// people.
func (n *node) wantRefused(t *testing.T, code int, word string, words []string, args ...string) {
	t.Helper()
	r := n.errand(t, append([]string{"-o", "json"}, args...)...)
	for _, want := range append(words, `"code":"`+word+`"`) {
		if r.code != code || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: code %d, stderr %q; want %d and %q", args, r.code, r.stderr, code, want)
		}
	}
}
