package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/errand-run/errand/simulation/plan"
)

// run executes a command line in a folder of its own.
func run(t *testing.T, args ...string) (code int, out, errors string) {
	t.Helper()
	t.Chdir(t.TempDir())
	var stdout, stderr bytes.Buffer
	code = Execute(context.Background(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestExitCodes(t *testing.T) {
	cases := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"seeds that pass", []string{"--seeds", "1..3", "--nodes", "1", "--hours", "0.01"}, ExitPassed, "3 seeds in "},
		{"one seed that passes", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01"}, ExitPassed, "seed 1 passed: hash "},
		{"each seed twice", []string{"--seeds", "1..3", "--nodes", "2", "--hours", "0.01", "--twice"}, ExitPassed, "0 failures"},
		{"violation in a sweep", []string{"--seeds", "1..2", "--nodes", "1", "--hours", "0.01", "--canary"}, ExitViolated, "canary: step "},
		{"violation of one seed", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--canary"}, ExitViolated, "replay: simulate --seed 1 --nodes 1 --hours 0.01 --canary --trace"},
		{"no such class", []string{"--faults", "weather"}, ExitUsage, `there is no class "weather"`},
		{"seeds backwards", []string{"--seeds", "3..1"}, ExitUsage, "is not FROM..TO"},
		{"two modes", []string{"--seed", "1", "--seeds", "1..2"}, ExitUsage, "only one of"},
		{"trace of many", []string{"--seeds", "1..2", "--trace"}, ExitUsage, "--trace says nothing to --seeds: it needs --seed or --plan"},
		{"too many nodes", []string{"--seed", "1", "--nodes", "99"}, ExitUsage, "99 is not between"},
		{"no nodes", []string{"--seed", "1", "--nodes", "0"}, ExitUsage, "0 is not between"},
		{"seeds that are none", []string{"--seeds", "a..b"}, ExitUsage, "is not FROM..TO"},
		{"seeds beyond a number", []string{"--seeds", "1..99999999999999999999"}, ExitUsage, "is not FROM..TO"},
		{"seed below 0", []string{"--seed", "-1"}, ExitUsage, "--seed"},
		{"hours that are no number", []string{"--seed", "1", "--hours", "nan"}, ExitUsage, "is not between"},
		{"hours too small to see", []string{"--seed", "1", "--hours", "1e-30"}, ExitUsage, "is not between"},
		{"hours without end", []string{"--seed", "1", "--hours", "inf"}, ExitUsage, "is not between"},
		{"no faults and some", []string{"--seed", "1", "--faults", "none,node"}, ExitUsage, "it is all, none, or some of"},
		{"an argument", []string{"17"}, ExitUsage, "unknown command"},
		{"run without a trace", []string{"--seed", "1", "--run", "r.a.b"}, ExitUsage, "--run needs --trace"},
		{"two forms of a trace", []string{"--seed", "1", "--trace", "--json"}, ExitUsage, "only one of --trace and --json"},
		{"nodes of a plan", []string{"--plan", "p.json", "--nodes", "3"}, ExitUsage, "--nodes says nothing to --plan"},
		{"out without minimize", []string{"--seed", "1", "--out", "x"}, ExitUsage, "--out says nothing to --seed"},
		{"page in no folder", []string{"--seed", "1", "--html", "none/page.html"}, ExitUsage, "there is no folder none"},
		{"plan in no folder", []string{"--minimize", "1", "--out", "none/plan.json"}, ExitUsage, "there is no folder none"},
		{"minimize what passes", []string{"--minimize", "1", "--nodes", "1", "--hours", "0.01"}, ExitUsage, "it does not fail"},
		{"minimize neither seed nor file", []string{"--minimize", "x.json"}, ExitUsage, "x.json"},
		{"minimize a file with nodes", []string{"--minimize", "x.json", "--nodes", "2"}, ExitUsage, "--nodes says nothing to a plan in a file"},
		{"a page on a full disk", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--html", "/dev/full"}, ExitUsage, "no space left"},
		{"beyond the end", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--until", "999999999"}, ExitPassed, "seed 1 passed: "},
		{"before the end", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--until", "1"}, ExitPassed, "seed 1 passed so far: "},
		{"version", []string{"--version"}, ExitPassed, "simulate "},
		{"help", []string{"--help"}, ExitPassed, "Exit codes: 0 all passed"},
		{"failures on a full disk", []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--canary", "--failures", "/dev/full/x"}, ExitViolated, "evidence: make folder"},
		{"no such plan", []string{"--plan", "none.json"}, ExitUsage, "none.json"},
		{"no such flag", []string{"--speed", "9"}, ExitUsage, "unknown flag"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, out, errors := run(t, c.args...)
			if code != c.code || !strings.Contains(out+errors, c.want) {
				t.Errorf("exit %d, want %d and %q\n%s%s", code, c.code, c.want, out, errors)
			}
		})
	}
}

// A run that does not exist is refused with the names of those that do: each of them is
// taken.
func TestRunThatIsNotThereIsToldWhichAre(t *testing.T) {
	args := []string{"--seed", "1", "--nodes", "1", "--hours", "0.01", "--trace", "--run"}
	code, out, errors := run(t, append(args, "r.a.b")...)
	_, names, found := strings.Cut(out+errors, "there is no run r.a.b in this world; there are: ")
	if code != ExitUsage || !found {
		t.Fatalf("exit %d\n%s%s", code, out, errors)
	}
	ids := regexp.MustCompile(`[kr]\.[a-z0-9-]+\.[a-z0-9]+`).FindAllString(names, -1)
	if len(ids) < 2 {
		t.Fatalf("names %q", names)
	}
	for _, id := range ids[:2] {
		if code, out, errors := run(t, append(args, id)...); code != ExitPassed || !strings.Contains(out, id) {
			t.Errorf("run %s: exit %d\n%s%s", id, code, out, errors)
		}
	}
}

func TestFailureLeavesAFolderThatReplays(t *testing.T) {
	code, out, _ := run(t, "--seeds", "7..7", "--nodes", "2", "--hours", "0.01", "--canary", "--failures", "kept")
	if code != ExitViolated {
		t.Fatalf("exit %d\n%s", code, out)
	}
	for _, name := range []string{"plan.json", "result.txt", "trace.txt", "history.jsonl", "store.txt", "page.html"} {
		if info, err := os.Stat(filepath.Join("kept", "seed-7", name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	hash := func(out string) string { _, rest, _ := strings.Cut(out, "hash "); return rest[:16] }
	var again, stderr bytes.Buffer
	Execute(context.Background(), []string{"--plan", "kept/seed-7/plan.json"}, &again, &stderr)
	if hash(out) != hash(again.String()) {
		t.Errorf("the plan of the folder makes another history:\n%s\n%s", out, again.String())
	}
}

func TestTraceIsTheSameByteForByteAndEndsWhereItIsToldTo(t *testing.T) {
	args := []string{"--seed", "3", "--nodes", "3", "--hours", "0.01", "--json"}
	_, one, _ := run(t, args...)
	_, two, _ := run(t, args...)
	if one != two || len(one) == 0 {
		t.Errorf("two traces of %d and %d bytes differ", len(one), len(two))
	}
	_, short, _ := run(t, append(args, "--until", "100")...)
	lines := strings.Split(strings.TrimSpace(short), "\n")
	if !strings.HasPrefix(one, strings.Join(lines[:len(lines)-1], "\n")) {
		t.Error("cut short, it is another trace")
	}
	var last struct{ Step uint64 }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Step > 100 {
		t.Errorf("ends at step %d: %v", last.Step, err)
	}
}

func TestMinimizeWritesAPlanThatFailsInTheSameWay(t *testing.T) {
	code, out, errors := run(t, "--minimize", "2", "--hours", "0.05", "--canary", "--out", "small.json")
	if code != ExitPassed {
		t.Fatalf("exit %d\n%s%s", code, out, errors)
	}
	data, err := os.ReadFile("small.json")
	if err != nil {
		t.Fatal(err)
	}
	small, err := plan.Decode(data)
	if err != nil || len(small.Faults) > 0 || len(small.Workload) > 0 || small.Options.Nodes != 1 {
		t.Errorf("left: %+v, %v", small, err)
	}
}

func TestWorkloadOfAFileIsMade(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "calls.json")
	calls := `[{"at": "1s", "verb": "submit", "node": "n1", "label": "mine", "command": {"takes": "2s", "timeout": "1m", "start_deadline": "1m", "stop_grace": "1s"}}]`
	if err := os.WriteFile(file, []byte(calls), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errors := run(t, "--seed", "1", "--nodes", "1", "--hours", "0.01", "--faults", "none", "--workload", file, "--trace")
	if code != ExitPassed || !strings.Contains(out, "submit mine: ok") || !strings.Contains(out, ", 1 call\n") {
		t.Errorf("exit %d\n%s%s", code, out, errors)
	}
}
