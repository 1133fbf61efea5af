package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
)

// startContainerNode starts a node with a containerd of its own and a busybox
// image. Without root or containerd the test is skipped, and fails in CI.
func startContainerNode(t *testing.T) *node {
	t.Helper()
	needContainerd(t)
	n := startNode(t, "--drivers", "containerd", "--containerd", "private")
	n.importBusybox(t)
	return n
}

// needContainerd skips a test where there can be no containers, but not in CI.
func needContainerd(t *testing.T) {
	t.Helper()
	_, missing := exec.LookPath("containerd")
	if os.Geteuid() == 0 && missing == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root and containerd (apt-get install containerd runc)")
	}
	t.Skip("needs root and containerd (apt-get install containerd runc)")
}

func (n *node) importBusybox(t *testing.T) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "busybox.tar")
	if err := imagetest.WriteBusybox(archive); err != nil {
		t.Fatal(err)
	}
	r := n.errand(t, "image", "import", archive)
	if r.code != 0 || !strings.Contains(r.stdout, "busybox") {
		t.Fatalf("image import: code %d, stdout %q, stderr %q\n%s", r.code, r.stdout, r.stderr, n.log)
	}
}

func TestContainerGivesItsOutputAndCode(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	n.errand(t, "run", "busybox", "--", "sh", "-c", "echo out; echo err >&2; exit 17").want(t, 17, "out\n", "err\n")
	n.errand(t, "run", "--user", "1000:1000", "--workdir", "/tmp", "busybox", "--", "sh", "-c", "id -u; pwd").want(t, 0, "1000\n/tmp\n", "")
	for _, test := range []struct {
		name    string
		args    []string
		code    int
		mention string
	}{
		{name: "absent command", args: []string{"busybox", "--", "/no/such"}, code: 127, mention: "NOT_FOUND"},
		{name: "not executable", args: []string{"busybox", "--", "/etc/passwd"}, code: 126, mention: "NOT_EXECUTABLE"},
		{name: "absent image", args: []string{"--pull", "never", "nosuchimage:1", "--", "true"}, code: 125, mention: "IMAGE_NOT_FOUND"},
		{name: "unknown user", args: []string{"--user", "nobodyhere", "busybox", "--", "true"}, code: 125, mention: "nobodyhere"},
		{name: "out of memory", args: []string{"--memory", "32MiB", "busybox", "--", "tail", "/dev/zero"}, code: 137, mention: "memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if r := n.errand(t, append([]string{"run"}, test.args...)...); r.code != test.code || !strings.Contains(r.stderr, test.mention) {
				t.Errorf("code %d, stderr %q; want %d and %q", r.code, r.stderr, test.code, test.mention)
			}
		})
	}
}

func TestContainerSurvivesACrashOfTheDaemon(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	r := n.errand(t, "run", "-d", "busybox", "--", "sh", "-c", "echo start; sleep 6; echo end; exit 3")
	id := strings.TrimSpace(r.stdout)
	n.awaitRunning(t.Context(), t, id)
	n.restart(t)
	if r := n.errand(t, "wait", id); r.code != 3 {
		t.Fatalf("wait gave %d, stderr %q; want 3\n%s", r.code, r.stderr, n.log)
	}
	if r := n.errand(t, "logs", id); r.stdout != "start\nend\n" {
		t.Fatalf("the log is %q", r.stdout)
	}
}

func TestImageArchiveThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	whole := filepath.Join(t.TempDir(), "whole.tar")
	if err := imagetest.WriteBusybox(whole); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"truncated": data[:len(data)/2], "empty": nil, "text": []byte("no archive at all")} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name+".tar")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if r := n.errand(t, "image", "import", path); r.code == 0 || r.stderr == "" {
				t.Errorf("code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
			}
		})
	}
	n.errand(t, "run", "busybox", "--", "true").want(t, 0, "", "")
}
