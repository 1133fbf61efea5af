package cli

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/errand-run/errand/simulation/mutation"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

const submit = `{"at": "1s", "verb": "submit", "node": "n1", "label": "mine", "command": {"takes": "2s", "timeout": "1m", "start_deadline": "1m", "stop_grace": "1s"}}`

func TestWorkloadsThatAreRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	cases := []struct{ name, content, want string }{
		{"empty", "", "it is empty"},
		{"only blanks", " \n", "it is empty"},
		{"no call", "[]", "there is no call"},
		{"nothing", "null", "there is no call"},
		{"rubbish", "\x03\x04\xff", "line 1: invalid character"},
		{"truncated", "[" + submit, "it ends in the middle"},
		{"more behind it", "[" + submit + "] and more", "there is more behind its end"},
		{"a plan", `{"version": 1}`, "cannot unmarshal object"},
		{"unknown verb", `[{"at": "1s", "verb": "submitt", "node": "n1", "label": "x"}]`, `call 0: there is no verb "submitt"`},
		{"unknown field", `[{"at": "1s", "verb": "get", "node": "n1", "label": "x", "when": "now"}]`, `unknown field "when"`},
		{"before the beginning", `[{"at": "-1s", "verb": "get", "node": "n1", "label": "x"}]`, "is before the beginning"},
		{"after the end", `[{"at": "9h", "verb": "get", "node": "n1", "label": "x"}]`, "is made after the 36s of --hours"},
		{"no command", `[{"at": "1s", "verb": "submit", "node": "n1", "label": "x"}]`, "has no command"},
		{"no bounds", `[{"at": "1s", "verb": "submit", "node": "n1", "label": "x", "command": {"takes": "1s"}}]`, "timeout, start_deadline and stop_grace must be given"},
		{"a node too many", `[{"at": "1s", "verb": "get", "node": "n4", "label": "x"}]`, "call 0 is made through n4: say with --nodes"},
		{"no duration", `[{"at": "soon", "verb": "get", "node": "n1", "label": "x"}]`, `duration "soon"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile("calls.json", []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out := runWith(t, world.Setup{}, "--seed", "1", "--nodes", "2", "--hours", "0.01", "--workload", "calls.json")
			if code != ExitUsage || !strings.Contains(out, c.want) || !strings.Contains(out, "--workload calls.json: ") {
				t.Errorf("exit %d, want %q\n%s", code, c.want, out)
			}
		})
	}
	for _, name := range []string{"", ".", "none.json", "/dev/zero"} {
		if code, out := runWith(t, world.Setup{}, "--seed", "1", "--workload", name); code != ExitUsage || !strings.Contains(out, "--workload: ") {
			t.Errorf("%q: exit %d\n%s", name, code, out)
		}
	}
}

// A call that no world comes to is not passed over: the drawn length reaches to it.
func TestWorkloadIsMadeToItsEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("calls.json", []byte("["+strings.Replace(submit, `"1s"`, `"3h"`, 1)+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := runWith(t, world.Setup{}, "--seed", "1", "--nodes", "1", "--faults", "none", "--workload", "calls.json", "--trace")
	if code != ExitPassed || !strings.Contains(out, "submit mine: ok") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	whole, err := plan.Encode(plan.Draw(1, plan.Wanted{Nodes: 3}))
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, old, new, want string }{
		{"another version", `"version": 1`, `"version": 9`, "version 9 is not 1"},
		{"unknown field", `"seed"`, `"sead": 1, "seed"`, `unknown field "sead"`},
		{"unknown field of a fault", `"with": {`, `"with": {"colour": "red", `, `unknown field "colour"`},
		{"fault on a node that does not exist", `"node": "n`, `"node": "n9`, "there is no node n9"},
		{"unknown fault", `"fault": "`, `"fault": "no_`, `there is no fault "no_`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			data := bytes.Replace(whole, []byte(c.old), []byte(c.new), 1)
			if bytes.Equal(data, whole) {
				t.Fatal("nothing was changed")
			}
			if err := os.WriteFile("plan.json", data, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, flag := range []string{"--plan", "--minimize"} {
				if code, out := runWith(t, world.Setup{}, flag, "plan.json"); code != ExitUsage || !strings.Contains(out, c.want) || !strings.Contains(out, "plan.json: ") {
					t.Errorf("%s: exit %d, want %q\n%s", flag, code, c.want, out)
				}
			}
		})
	}
}

func TestMinimizeTakesAPlanOfAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	p := plan.Draw(2, plan.Wanted{})
	p.Note = "what it is about"
	data, err := plan.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("found.json", data, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := runWith(t, world.Setup{}, "--minimize", "found.json", "--canary")
	if code != ExitPassed || !strings.Contains(out, "replay: simulate --plan found-small.json --canary --trace") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	small, err := readPlan("found-small.json")
	if err != nil || small.Note != p.Note || len(small.Workload) > 0 {
		t.Errorf("%+v, %v", small, err)
	}
}

func TestReplayIsReadByAShellAsItIsMeant(t *testing.T) {
	got := shellLine([]string{"simulate", "--plan", "my plan's.json", "--trace", ""})
	if want := `simulate --plan 'my plan'\''s.json' --trace ''`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

var littleLeft = regexp.MustCompile(`G11 explained: 1 of \d+ faults, 1 of \d+ calls, `)

// Without a protection a plan fails; what is left of it is little, the same each time,
// and fails by the same guarantee when it is replayed.
func TestMinimizedPlanIsSmallAndFailsAgain(t *testing.T) {
	t.Chdir(t.TempDir())
	table := mutation.Table()
	m := table[slices.IndexFunc(table, func(m mutation.Mutation) bool { return m.Name == "end not clamped" })]
	whole, err := plan.Encode(m.Plan(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("whole.json", whole, 0o600); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 {
		code, out := runWith(t, world.Setup{Ports: m.Ports}, "--minimize", "whole.json", "--out", "small.json")
		data, err := os.ReadFile("small.json")
		if code != ExitPassed || err != nil || !littleLeft.MatchString(out) {
			t.Fatalf("exit %d, %v\n%s", code, err, out)
		}
		if first != nil && !bytes.Equal(first, data) {
			t.Errorf("cut down again it is another plan:\n%s\n%s", first, data)
		}
		first = data
	}
	if code, out := runWith(t, world.Setup{Ports: m.Ports}, "--plan", "small.json"); code != ExitViolated || !strings.Contains(out, "G11 explained: step ") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if code, out := runWith(t, world.Setup{}, "--plan", "small.json"); code != ExitPassed {
		t.Errorf("it fails with the protection too: exit %d\n%s", code, out)
	}
}
