package inventory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
)

func TestAttemptsAreReadFromTheNamesOfLogs(t *testing.T) {
	for _, run := range []string{"r.default.abc", "t.default.nightly.7", "t.shop.a-b.12", "k.default.k7", "r.a.1"} {
		for _, more := range []string{"", ".log", ".4096.log"} {
			name := filepath.Base(logs.Path("", run, 12)) + more
			if got, attempt, ok := attemptOf(name); !ok || got != run || attempt != 12 {
				t.Errorf("%s is of %q, %d, %v", name, got, attempt, ok)
			}
		}
	}
	for _, name := range []string{"", "x", "r.default", "r.default.abc", "r.default.abc.x", "q.default.abc.1"} {
		if run, _, ok := attemptOf(name); ok {
			t.Errorf("%q is of %q", name, run)
		}
	}
}

func TestIDsAreFoundWhereTheyStandAlone(t *testing.T) {
	id := records.SandboxID("r.default.a", 1, 1)
	for text, want := range map[string]string{
		id: id, "/x/" + id: id, "/x/" + id + "/rootfs": id, ".removing-" + id: id, "owner=" + id + "\x00log=/x": id,
		"": "", id + "a": "", "a" + id: "", id[:32]: "",
	} {
		if got := sandbox.IDIn(text); got != want {
			t.Errorf("in %q it finds %q", text, got)
		}
	}
}

// A node without containerd that has nothing running has what lies in its directories.
func TestFilesOfANodeAreFound(t *testing.T) {
	data := t.TempDir()
	id := records.SandboxID("r.default.a", 1, 1)
	for _, dir := range []string{"containerd/sandboxes/" + id, "containerd/sandboxes/.removing-" + id, "process", "logs"} {
		if err := os.MkdirAll(filepath.Join(data, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"node.uuid", "node.uuid.new", "containerd/sandboxes/.filter-1", "process/file-1", "logs/r.default.a.1.log", "containerd/x.new"} {
		if err := os.WriteFile(filepath.Join(data, file), []byte("00000000-none\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, err := At(data)
	if err != nil {
		t.Fatal(err)
	}
	things, unseen := n.Take(t.Context())
	var got []string
	for _, thing := range things {
		got = append(got, thing.String()+" of "+thing.Sandbox)
		if thing.Since.IsZero() {
			t.Errorf("since when %s is there is not known", thing)
		}
	}
	want := []string{
		"directory " + data + "/containerd/sandboxes/.removing-" + id + " of " + id,
		"directory " + data + "/containerd/sandboxes/" + id + " of " + id,
		"temporary file " + data + "/containerd/x.new of ",
		"temporary file " + data + "/node.uuid.new of ",
	}
	if len(unseen) > 0 || !slices.Equal(got, want) {
		t.Errorf("found %q, want %q; unseen %q", got, want, unseen)
	}
	if logged := n.logged(); !slices.Contains(logged, id) {
		t.Errorf("of the logs it knows %q", logged)
	}
	if _, err := At(t.TempDir()); err == nil {
		t.Error("a directory of no node has an inventory")
	}
}

func TestNodeWithoutAnythingHasNoProcessesAndMounts(t *testing.T) {
	n := Node{Data: "/nowhere/at/all", UUID: "00000000-none"}
	if things, unseen := n.Take(t.Context()); len(things) > 0 || len(unseen) > 0 {
		t.Errorf("it has %v; unseen %v", things, unseen)
	}
}
