package containerd

import (
	"bytes"
	"os"
	"strings"
	"testing"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/filter"
)

// filterOf reads the filter that the first process of a sandbox is under.
func (b *bench) filterOf(spec sandbox.Spec) []byte {
	b.t.Helper()
	answer, err := b.d.client.TaskService().Get(within(b.t), &tasks.GetRequest{ContainerID: spec.ID})
	if err != nil {
		b.t.Fatal(err)
	}
	program, err := filter.Read(int(answer.GetProcess().GetPid()))
	if err != nil {
		b.t.Fatal(err)
	}
	return program
}

func TestInitInstallsWhatTheRuntimeHasCompiled(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	var programs [2][]byte
	for i, byRuntime := range []bool{true, false} {
		spec := b.spec("sleep", "60")
		spec.Spec.User = "12345:12345"
		if known := b.d.compiled.file() == ""; known != byRuntime {
			t.Fatalf("sandbox %d: compiled by the runtime: %v", i, known)
		}
		b.start(spec)
		programs[i] = b.filterOf(spec)
		if _, err := b.d.Kill(within(t), spec.ID); err != nil {
			t.Fatal(err)
		}
		b.wait(spec.ID)
		b.end(spec)
	}
	if err := os.Remove(b.d.compiled.file()); err != nil {
		t.Fatal(err)
	}
	if path := b.d.compiled.file(); path != "" {
		t.Errorf("%s was removed and is still to be installed", path)
	}
	if !bytes.Equal(programs[0], programs[1]) {
		t.Errorf("the runtime installs %d bytes, init %d others", len(programs[0]), len(programs[1]))
	}
}

// Every process and thread of a sandbox is under one filter and can not gain
// privileges, init included, whoever installs it: else a command could have its init
// do what it may not.
func TestNothingInASandboxIsWithoutFilter(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	for _, who := range []string{"the runtime", "init"} {
		spec := b.spec("sh", "-c", "grep -hE '^(NoNewPrivs|Seccomp|Seccomp_filters):' /proc/[0-9]*/task/*/status | sort | uniq -c | awk '{print $2,$3}'")
		out, _ := b.run(spec)
		if out != "NoNewPrivs: 1\nSeccomp: 2\nSeccomp_filters: 1\n" && out != "NoNewPrivs: 1\nSeccomp: 2\n" {
			t.Errorf("installed by %s: %q", who, out)
		}
	}
}

func TestACommandDoesNotRunWithoutItsFilter(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	first := b.spec("true")
	b.start(first)
	b.wait(first.ID)
	b.end(first)
	path := b.d.compiled.file()
	if path == "" {
		t.Fatal("nothing was learned")
	}
	for name, content := range map[string]string{"empty": "", "cut": "1234567", "no program": strings.Repeat("\xff", 80)} {
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			t.Fatal(err)
		}
		spec := b.spec("true")
		if err := b.d.Create(within(t), spec); err != nil {
			t.Fatal(err)
		}
		if _, err := b.d.Start(within(t), spec.ID); err == nil || !strings.Contains(err.Error(), "seccomp filter") {
			t.Errorf("%s: got %v", name, err)
		}
		if exit := b.wait(spec.ID); exit.Code != nil {
			t.Errorf("%s: a code of a command that must not have run: %+v", name, exit)
		}
		b.end(spec)
	}
}

// A process may have ended, and its number be another's, by the time that its filter is
// looked at: what that one is under is nobody's filter.
func TestAFilterIsLearnedOfTheSandboxsOwnProcessOnly(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "60")
	b.start(spec)
	answer, err := b.d.client.TaskService().Get(within(t), &tasks.GetRequest{ContainerID: spec.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id      string
		learned bool
	}{{"of-another-sandbox", false}, {spec.ID, true}} {
		b.d.compiled.path.Store(nil)
		b.d.learnFilter(c.id, answer.GetProcess().GetPid())
		if learned := b.d.compiled.file() != ""; learned != c.learned {
			t.Errorf("learned as that of %s: %v", c.id, learned)
		}
	}
	if _, err := b.d.Kill(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	b.wait(spec.ID)
	b.end(spec)
}

func TestFiltersOfEarlierDaemonsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path, err := keepFilter(dir, []byte("12345678"))
	if err != nil {
		t.Fatal(err)
	}
	if err := clearFilters(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
