package check_test

import (
	"os"
	"strings"
	"testing"

	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
)

type neverThree struct{}

func (neverThree) Guarantee() check.Guarantee { return "never three" }

func (neverThree) Observe(l *check.Ledger, e history.Event, report func(check.Finding)) {
	if e.Kind != history.KindCommand {
		return
	}
	if alive := l.Run(e.Run).Alive(); len(alive) > 2 {
		report(check.Finding{Run: e.Run, Node: e.Node, Text: "three commands of one run"})
	}
}

// The example of the document is this code, and does what it says.
func TestCheckerOfTheDocument(t *testing.T) {
	source, err := os.ReadFile("never_three_test.go")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/simulation.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(document), "```go\n")
	example, _, _ = strings.Cut(example, "```")
	if example == "" || !strings.Contains(string(source), example) {
		t.Errorf("the document has another checker:\n%s", example)
	}
	for commands, want := range map[int]int{2: 0, 3: 1} {
		set := check.New(check.Config{More: []check.Checker{neverThree{}}})
		for i := range commands {
			set.Observe(history.Event{
				Kind: history.KindCommand, Node: "n1", Run: "r.app.one", Attempt: int32(i + 1), Placement: 1,
				Detail: history.Command{Started: true, Sandbox: string(rune('a' + i)), Token: uint64(i + 1)},
			})
		}
		found := 0
		for _, v := range set.Violations() {
			if v.Guarantee == "never three" {
				found++
			}
		}
		if found != want {
			t.Errorf("%d commands: %d findings, want %d", commands, found, want)
		}
	}
}
