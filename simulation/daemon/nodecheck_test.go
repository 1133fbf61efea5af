package daemon_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// checked is what errand node check says.
type checked struct {
	Clean      bool
	Left, Kept []struct{ Kind, Name, Sandbox, Run, Reason, Outlook, Since string }
	Unseen     []string
	Sandboxes  int
}

// check asks the node what is left on it, and fails the test unless the exit code is as
// it should be.
func (n *node) check(t *testing.T, code int) (found checked) {
	t.Helper()
	r := n.errand(t, "node", "check", "-o", "json")
	if r.code != code {
		t.Fatalf("node check gave %+v, want %d\nnode: %s", r, code, n.log)
	}
	if err := json.Unmarshal([]byte(r.stdout), &found); err != nil {
		t.Fatalf("%q: %v", r.stdout, err)
	}
	return found
}

// NOD-07: what a run has is accounted for, what nobody has is found and told with its
// reason, and what can not be looked at is said to be.
func TestNodeCheckTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	needContainerd(t)
	n := startNode(t, "--drivers", "containerd,process", "--containerd", "private")
	n.importBusybox(t)
	var ids []string
	for _, kind := range kinds {
		id := kind.detach(t, n, nil, "sleep", "600")
		n.awaitRunning(t.Context(), t, id)
		ids = append(ids, id)
	}
	if found := n.check(t, 0); !found.Clean || found.Sandboxes != len(ids) || len(found.Kept) > 0 {
		t.Errorf("beside two runs that go on it says %+v", found)
	}
	uuid, err := os.ReadFile(filepath.Join(n.data, "node.uuid"))
	if err != nil {
		t.Fatal(err)
	}
	strange := records.SandboxID("r.default.nobodys", 1, 1)
	left := []string{
		filepath.Join(aTree(t), cgroup.ParentName(string(uuid)), strange),
		filepath.Join(n.data, "containerd", "sandboxes", strange),
		filepath.Join(n.data, "containerd", "state", "io.containerd.runtime.v2.task", "errand", strange),
		filepath.Join("/run/containerd/runc/errand", strange),
	}
	for _, path := range left {
		if err := os.MkdirAll(path, 0o711); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
	}
	found := n.check(t, 1)
	var names []string
	for _, one := range found.Left {
		names = append(names, one.Name)
		if one.Sandbox != strange || one.Reason != "no run of this node accounts for it" || one.Outlook == "" || one.Since == "" {
			t.Errorf("it says %+v", one)
		}
	}
	slices.Sort(left)
	slices.Sort(names)
	if !slices.Equal(names, left) || found.Sandboxes != len(ids) {
		t.Errorf("it finds %q, want %q: %+v", names, left, found)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	pid := n.containerd(t)
	sendSignal(t, pid, syscall.SIGSTOP)
	hung := n.check(t, 125)
	sendSignal(t, pid, syscall.SIGCONT)
	if hung.Clean || len(hung.Unseen) == 0 || !strings.Contains(strings.Join(hung.Unseen, "\n"), "containers") {
		t.Errorf("without containerd it says %+v", hung)
	}
	for _, id := range ids {
		n.errand(t, "cancel", "--force", id)
		n.errand(t, "wait", id)
	}
	// Nothing is left, and both ways to look agree in that.
	scope := leftover.Node{Data: n.data}
	if found, err := scope.Settle(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("left over: %q, %v", found, err)
	}
	n.check(t, 0)
}

// aTree is one of the trees that cgroups are made in.
func aTree(t *testing.T) string {
	t.Helper()
	for _, tree := range []string{"unified", "pids", ""} {
		path := filepath.Join(cgroup.Root, tree)
		if _, err := os.Stat(filepath.Join(path, "cgroup.procs")); err == nil {
			return path
		}
	}
	t.Fatal("there is no tree of cgroups")
	return ""
}
