package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/inventory"
	"github.com/errand-run/errand/nodes/sandbox"
)

// runs tells whether a process is there that has not ended.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// empty removes all that is in the node's data directory, as rm -rf DATA/* does. What is
// mounted there stays, and what it is mounted on.
func (n *node) empty(t *testing.T) {
	t.Helper()
	for _, name := range n.files(t, []string{"*"}) {
		_ = os.RemoveAll(filepath.Join(n.data, name))
	}
	if _, err := os.Stat(filepath.Join(n.data, "containerd", "containerd.pid")); err == nil {
		t.Fatal("the pid file is still there")
	}
}

// A containerd that goes on without its files is refused while it has containers, and is
// ended with them by the loss that is accepted; one of another directory is left alone.
func TestContainerdOfAnEmptiedDirectoryIsEndedWithTheLoss(t *testing.T) {
	t.Parallel()
	n, other := startContainerNode(t), startContainerNode(t)
	ids := []string{}
	for range 2 {
		id := kinds[1].detach(t, n, nil, "sleep", "600")
		n.awaitRunning(t.Context(), t, id)
		ids = append(ids, id)
	}
	beside := kinds[1].detach(t, other, nil, "sleep", "600")
	other.awaitRunning(t.Context(), t, beside)
	lost, others := n.containerd(t), other.containerd(t)
	var there []int
	for _, id := range ids {
		there = append(there, pidOf(t, "containerd-shim", records.SandboxID(id, 1, 1)), commandOf(t, id))
	}
	uuid, err := os.ReadFile(filepath.Join(n.data, inventory.UUIDFile))
	if err != nil {
		t.Fatal(err)
	}
	before := inventory.Node{Data: n.data, UUID: strings.TrimSpace(string(uuid))}
	n.crash(t)
	n.empty(t)

	refused := runNode(t, append(slices.Clone(n.flags), "--data", n.data, "--listen", "127.0.0.1:0")...)
	if refused.code == 0 || !strings.Contains(refused.stderr, "--accept-loss-of journal") || !strings.Contains(refused.stderr, "pid "+strconv.Itoa(lost)) {
		t.Errorf("a start without the loss gave %+v", refused)
	}
	for _, pid := range append(slices.Clone(there), lost) {
		if !runs(pid) {
			t.Errorf("a start that was refused has ended process %d of %v and %d", pid, there, lost)
		}
	}
	flags := n.flags
	n.flags = append(slices.Clone(flags), "--accept-loss-of", "journal")
	n.start(t)
	for _, pid := range append(slices.Clone(there), lost) {
		if runs(pid) {
			t.Errorf("process %d of %v and %d goes on\nnode: %s", pid, there, lost, n.log)
		}
	}
	if !strings.Contains(n.log.String(), "has lost its files, it is ended") {
		t.Errorf("the log does not say what was ended:\n%s", n.log)
	}
	things, _ := before.Take(t.Context())
	for _, thing := range things {
		if thing.Kind == sandbox.KindCgroup || thing.Kind == sandbox.KindMount || thing.Kind == sandbox.KindContainerd || thing.Sandbox != "" {
			t.Errorf("%s is left", thing)
		}
	}
	n.flags = flags
	n.restart(t)
	n.importBusybox(t)
	n.errand(t, "run", "busybox", "--", "echo", "well").want(t, 0, "well\n", "")
	if found := n.check(t, 0); !found.Clean {
		t.Errorf("it finds %+v", found)
	}
	if now := other.containerd(t); now != others || other.show(t, beside).Status != "RUNNING" {
		t.Errorf("the containerd of another directory was %d and is %d; its run is %+v", others, now, other.show(t, beside))
	}
	other.errand(t, "cancel", "--force", beside)
	other.errand(t, "wait", beside)
}

// What an earlier start has left beside the containerd that it started anew is told, and
// ended by the next one; so is one that has no container, with no loss to accept.
func TestContainerdWithoutFilesIsToldAndEndedByTheNextStart(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	lost := n.containerd(t)
	aside := t.TempDir()
	n.crash(t)
	// A stopped one would not hinder the next: it is out of sight while that is started.
	if err := os.Rename(filepath.Join(n.data, "containerd"), filepath.Join(aside, "containerd")); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	second := n.containerd(t)
	if found := n.check(t, 1); len(found.Left) != 1 || found.Left[0].Kind != "containerd" || found.Left[0].Name != strconv.Itoa(lost) || found.Left[0].Since == "" {
		t.Errorf("beside %d it says of %d: %+v", second, lost, found)
	}
	if err := os.RemoveAll(filepath.Join(aside, "containerd")); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	if runs(lost) {
		t.Errorf("containerd %d goes on without its files\nnode: %s", lost, n.log)
		sendSignal(t, lost, syscall.SIGKILL)
	}
	n.check(t, 0)
	n.importBusybox(t)
	n.errand(t, "run", "busybox", "--", "echo", "well").want(t, 0, "well\n", "")
}
