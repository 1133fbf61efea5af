package process_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/conformance"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
	"github.com/errand-run/errand/nodes/sandbox/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config makes a driver's config that no other test shares.
func config(t testing.TB) process.Config {
	t.Helper()
	c := process.Config{
		Dir:          filepath.Join(t.TempDir(), "process"),
		CgroupParent: "errand-test-" + strings.ToLower(filepath.Base(t.TempDir())) + "-" + filepath.Base(filepath.Dir(t.TempDir())),
		Helper:       guesttest.Build(t),
	}
	c.CgroupParent = strings.NewReplacer("/", "-", " ", "-", "#", "-").Replace(c.CgroupParent)
	t.Cleanup(func() {
		if parent, err := cgroup.Open(cgroup.Root, c.CgroupParent); err == nil && os.Geteuid() == 0 {
			if err := parent.Remove(); err != nil {
				t.Errorf("remove parent cgroup: %v", err)
			}
		}
	})
	return c
}

func open(t testing.TB, c process.Config) sandbox.Driver {
	t.Helper()
	d, err := process.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func script(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConformance(t *testing.T) {
	root := os.Geteuid() == 0
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		c, files := config(t), t.TempDir()
		return conformance.Harness{
			Open:          func(t *testing.T) sandbox.Driver { return open(t, c) },
			LogRoot:       t.TempDir(),
			LimitsMemory:  root,
			LimitsPids:    root,
			NotExecutable: "/etc/passwd",
			NoInterpreter: script(t, files, "no-interpreter", "#!/no/such/interpreter\n"),
			NoFormat:      script(t, files, "no-format", "just text\n"),
			Leaks:         func(t *testing.T) []string { return leaks(t, c) },
		}
	})
}

// leaks lists what a driver has left behind.
func leaks(t *testing.T, c process.Config) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, file := range files {
		// A file that is kept for others says nothing.
		if b, err := os.ReadFile(file); err != nil || len(bytes.Trim(b, "\x00")) > 0 {
			left = append(left, file)
		}
	}
	if parent, err := cgroup.Open(cgroup.Root, c.CgroupParent); err == nil {
		groups, err := parent.List()
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, groups...)
	}
	// Every supervisor holds its sandbox's file.
	held, err := filepath.Glob("/proc/[0-9]*/fd/5")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range held {
		if target, err := os.Readlink(file); err == nil && strings.HasPrefix(target, c.Dir+"/") {
			left = append(left, "process "+file)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), c.Dir) {
		left = append(left, "mount")
	}
	return left
}
