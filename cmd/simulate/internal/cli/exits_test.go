package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/simulation/mutation"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// runWith executes a command line on worlds that are set up with more than the command
// line says, in the working folder.
func runWith(t *testing.T, base world.Setup, args ...string) (code int, out string) {
	t.Helper()
	var stdout bytes.Buffer
	code = (&app{base: base}).execute(t.Context(), args, &stdout, &stdout)
	return code, stdout.String()
}

// folder is what the failure of a seed has left, by name.
func folder(t *testing.T, seed string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"plan.json", "result.txt", "trace.txt", "history.jsonl", "store.txt", "page.html"} {
		data, err := os.ReadFile(filepath.Join("simulation-failures", "seed-"+seed, name))
		if err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
		files[name] = string(data)
	}
	return files
}

// A wait that is given up: without it a run that has ended reads RUNNING for good, and all
// else goes on.
func TestWorldThatDoesNotComeToRest(t *testing.T) {
	t.Chdir(t.TempDir())
	table := mutation.Table()
	m := table[slices.IndexFunc(table, func(m mutation.Mutation) bool { return m.Name == "wait given up" })]
	p := m.Plan(3)
	p.Options.Converge = plan.Duration(3 * time.Minute) // enough to see what rests and what does not
	data, err := plan.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("plan.json", data, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := runWith(t, world.Setup{Ports: m.Ports}, "--plan", "plan.json")
	if code != ExitNotLive || !strings.Contains(out, "liveness: step ") || !strings.Contains(out, " since ") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if files := folder(t, "3"); !strings.Contains(files["result.txt"], "pending: ") {
		t.Errorf("result.txt does not say what is pending:\n%s", files["result.txt"])
	}
}

func TestPanicLeavesAFolderAsWell(t *testing.T) {
	t.Chdir(t.TempDir())
	fall := world.Setup{Prepare: func(w *world.World) {
		w.Timeline().After(20*time.Second, func() { panic("out of order") })
	}}
	for _, mode := range [][]string{{"--seed", "1"}, {"--seeds", "1..1"}} {
		code, out := runWith(t, fall, append(mode, "--nodes", "2", "--hours", "0.01")...)
		if code != ExitPanicked || !strings.Contains(out, "panic: out of order (the stack is in result.txt)") || strings.Contains(out, "goroutine ") || !strings.Contains(out, " 00:00:1") {
			t.Errorf("exit %d\n%s", code, out)
		}
	}
	files := folder(t, "1")
	if !strings.Contains(files["result.txt"], "exits_test.go") {
		t.Errorf("result.txt has no stack:\n%s", files["result.txt"])
	}
	if !strings.Contains(files["trace.txt"], "launched") || !strings.Contains(files["store.txt"], "/nodes/n1") {
		t.Errorf("the folder does not say what there was before the panic:\n%s\n%s", files["trace.txt"], files["store.txt"])
	}
}

func TestTwoExecutionsThatDifferAreToldApart(t *testing.T) {
	t.Chdir(t.TempDir())
	executions := time.Duration(0)
	differing := world.Setup{Prepare: func(w *world.World) {
		executions++
		w.Timeline().After(10*time.Second+executions*time.Millisecond, func() { w.Machine("n1").PowerOff() })
	}}
	code, out := runWith(t, differing, "--seed", "1", "--nodes", "1", "--hours", "0.01", "--twice")
	if code != ExitNondeterministic || !strings.Contains(out, "a second execution was another one") {
		t.Errorf("exit %d\n%s", code, out)
	}
	text, err := os.ReadFile("simulation-failures/seed-1/difference.txt")
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 3 || !strings.HasPrefix(lines[1], "first ") || !strings.Contains(lines[1], "00:00:10.00") || lines[1][6:] == lines[2][6:] {
		t.Errorf("%v\n%s", err, text)
	}
}

// What a folder holds is enough: nothing else is at hand where it is opened.
func TestFolderAloneShowsTheFailureAgain(t *testing.T) {
	t.Chdir(t.TempDir())
	calls := `[{"at": "1s", "verb": "submit", "node": "n1", "label": "mine", "command": {"takes": "2s", "timeout": "1m", "start_deadline": "1m", "stop_grace": "1s"}}]`
	if err := os.WriteFile("calls.json", []byte(calls), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := runWith(t, world.Setup{}, "--seed", "1", "--workload", "calls.json", "--canary"); code != ExitViolated {
		t.Fatalf("exit %d\n%s", code, out)
	}
	t.Chdir("simulation-failures/seed-1")
	text, err := os.ReadFile("result.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	const want = "replay: simulate --plan plan.json --canary --trace"
	if lines[3] != want {
		t.Fatalf("says %q, want %q", lines[3], want)
	}
	code, out := runWith(t, world.Setup{}, strings.Fields(want)[2:]...)
	if code != ExitViolated || !strings.Contains(out, lines[0]) || !strings.Contains(out, "submit mine: ok") {
		t.Errorf("exit %d, want %s\n%s", code, lines[0], out)
	}
}

func TestTraceInJSONIsReadByToolsWhateverIsFound(t *testing.T) {
	t.Chdir(t.TempDir())
	for code, args := range map[int][]string{ExitPassed: nil, ExitViolated: {"--canary"}} {
		var stdout, stderr bytes.Buffer
		args = append([]string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--json"}, args...)
		if got := Execute(t.Context(), args, &stdout, &stderr); got != code {
			t.Errorf("exit %d, want %d", got, code)
		}
		var last struct {
			Kind       string
			Exit       int
			Violations []struct{ Guarantee string }
		}
		for line := range bytes.Lines(stdout.Bytes()) {
			if err := json.Unmarshal(line, &last); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
		}
		if last.Kind != "result" || last.Exit != code || len(last.Violations) != code || strings.Contains(stderr.String(), "FAILED") != (code != 0) {
			t.Errorf("%v ends with %+v\n%s", args, last, stderr.String())
		}
	}
}

func TestViolationOutweighsAPageThatCanNotBeWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	code, out := runWith(t, world.Setup{}, "--seed", "1", "--nodes", "1", "--hours", "0.01", "--canary", "--html", "/dev/full")
	if code != ExitViolated || strings.Count(out, "/dev/full: no space left") != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestOutputThatIsLostIsNoSuccess(t *testing.T) {
	t.Chdir(t.TempDir())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"--seeds", "1..2"}, {"--seed", "1"}, {"--seed", "1", "--json"}, {"--help"}} {
		var stderr bytes.Buffer
		if args[0] != "--help" {
			args = append(args, "--nodes", "1", "--hours", "0.01")
		}
		if code := Execute(t.Context(), args, full, &stderr); code != ExitUsage || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%v: exit %d\n%s", args, code, stderr.String())
		}
	}
}

func TestInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{
		{"--seed", "1", "--nodes", "5", "--hours", "2000"},
		{"--seeds", "1..9", "--nodes", "5", "--hours", "2000"},
		{"--minimize", "1", "--nodes", "5", "--hours", "2000"},
		{"--bench", "--nodes", "5", "--hours", "2000"},
	} {
		t.Run(strings.TrimPrefix(args[0], "--"), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			running := world.Setup{Prepare: func(w *world.World) { w.Timeline().After(time.Hour, cancel) }}
			var out bytes.Buffer
			code := (&app{base: running}).execute(ctx, args, &out, &out)
			if code != ExitInterrupted || !strings.Contains(out.String(), "simulate: interrupted") || strings.Contains(out.String(), "passed") {
				t.Errorf("exit %d\n%s", code, out.String())
			}
			if _, err := os.Stat("seed-1.json"); err == nil {
				t.Error("a plan was written of which nobody knows whether it fails")
			}
		})
	}
}

// What has been cut down until then fails, and is worth keeping.
func TestInterruptedMinimizeKeepsWhatItHas(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	executions := 0
	after := world.Setup{Prepare: func(*world.World) {
		if executions++; executions == 4 {
			cancel()
		}
	}}
	var out bytes.Buffer
	code := (&app{base: after}).execute(ctx, []string{"--minimize", "2", "--hours", "0.1", "--canary"}, &out, &out)
	if code != ExitInterrupted || !strings.Contains(out.String(), "not cut down to the end") {
		t.Errorf("exit %d\n%s", code, out.String())
	}
	if code, out := runWith(t, world.Setup{}, "--plan", "seed-2.json", "--canary"); code != ExitViolated {
		t.Errorf("what is left does not fail: exit %d\n%s", code, out)
	}
}
