package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const documentation = "../../../../docs/cli.md"

func readDocumentation(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// sections maps the headings of the page to what is below them.
func sections(page string) map[string]string {
	found := make(map[string]string)
	for _, part := range strings.Split(page, "\n## ")[1:] {
		heading, text, _ := strings.Cut(part, "\n")
		found[heading] = text
	}
	return found
}

// flagCell is the first cell of a row of a flag table.
var flagCell = regexp.MustCompile("(?m)^\\| `--([a-z-]+)`(?:, `-([a-zA-Z])`)? \\|")

func documentedFlags(text string) map[string]string {
	flags := make(map[string]string)
	for _, match := range flagCell.FindAllStringSubmatch(text, -1) {
		flags[match[1]] = match[2]
	}
	return flags
}

func declaredFlags(sets ...*pflag.FlagSet) map[string]string {
	flags := make(map[string]string)
	for _, set := range sets {
		set.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Shorthand })
	}
	return flags
}

func TestDocumentationHasEveryCommandAndFlagAndNoOther(t *testing.T) {
	found := sections(readDocumentation(t))
	root := newApp(strings.NewReader(""), io.Discard, io.Discard, nil).root()
	root.InitDefaultHelpFlag()
	root.InitDefaultCompletionCmd()
	global := declaredFlags(root.PersistentFlags())
	global["help"] = "h"
	if documented := documentedFlags(found["Flags of all commands"]); !maps.Equal(documented, global) {
		t.Errorf("flags of all commands: documented %v, declared %v", documented, global)
	}
	commands := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.HasSubCommands() && cmd.Name() != "completion" {
			for _, sub := range cmd.Commands() {
				visit(sub)
			}
			return
		}
		path := cmd.CommandPath()
		commands[path] = true
		text, ok := found[path]
		if !ok {
			t.Errorf("%s is not documented", path)
			return
		}
		if documented, declared := documentedFlags(text), declaredFlags(cmd.LocalNonPersistentFlags()); !maps.Equal(documented, declared) {
			t.Errorf("%s: documented %v, declared %v", path, documented, declared)
		}
		for _, alias := range cmd.Aliases {
			if cmd.Parent() == root && !strings.Contains(text, "`errand "+alias+"`") {
				t.Errorf("%s: its alias %s is not documented", path, alias)
			}
		}
		if cmd.Short == "" || !strings.Contains(text, "`"+path) {
			t.Errorf("%s has no short help, or its usage is not documented", path)
		}
	}
	visit(root)
	for heading := range found {
		if strings.HasPrefix(heading, "errand ") && !commands[heading] {
			t.Errorf("%s is documented and does not exist", heading)
		}
	}
}

func TestDocumentedExitCodesAreThoseOfTheCode(t *testing.T) {
	text := sections(readDocumentation(t))["Exit codes"]
	own := int32(42)
	row := regexp.MustCompile(`(?m)^\| ([A-Z_]+) \| ([A-Z_]+|any|none) \| (\d+|its own) \|$`)
	seen := map[string]bool{}
	for _, match := range row.FindAllStringSubmatch(text, -1) {
		run := &errandv1.Run{Status: errandv1.Status(errandv1.Status_value["STATUS_"+match[1]])}
		if run.GetStatus() == 0 {
			t.Errorf("%q is no status", match[1])
		}
		reasons := []string{match[2]}
		switch match[2] {
		case "any":
			reasons = slices.Collect(maps.Keys(errandv1.Reason_value))
		case "none":
			reasons = []string{"UNSPECIFIED"}
		}
		want := match[3]
		if want == "its own" {
			run.ExitCode, want = &own, strconv.Itoa(int(own))
		}
		for _, reason := range reasons {
			value, ok := errandv1.Reason_value["REASON_"+strings.TrimPrefix(reason, "REASON_")]
			if !ok {
				t.Errorf("%q is no reason", reason)
			}
			run.Reason = errandv1.Reason(value)
			seen[strings.TrimPrefix(reason, "REASON_")] = true
			if got := strconv.Itoa(exitCodeOf(run)); got != want {
				t.Errorf("%s %s gives %s, documented is %s", match[1], reason, got, want)
			}
		}
	}
	for name := range errandv1.Reason_value {
		if !strings.Contains(text, "| "+strings.TrimPrefix(name, "REASON_")+" |") && name != "REASON_UNSPECIFIED" {
			t.Errorf("the table has no row for %s", name)
		}
	}
	for name, value := range errandv1.Status_value {
		if word := strings.TrimPrefix(name, "STATUS_"); terminal(errandv1.Status(value)) && !strings.Contains(text, "| "+word+" |") {
			t.Errorf("the table has no row for %s", word)
		}
	}
	for _, code := range []int{0, ExitLeft, ExitUsage, ExitTimedOut, ExitErrand, ExitNotExecutable, ExitNotFound, ExitCanceled, ExitPipe} {
		if !strings.Contains(text, fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("exit code %d is not documented", code)
		}
	}
}

func TestDocumentedVariablesAreRead(t *testing.T) {
	text := sections(readDocumentation(t))["Environment"]
	documented := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|").FindAllStringSubmatch(text, -1)
	var names []string
	for _, match := range documented {
		names = append(names, match[1])
	}
	slices.Sort(names)
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{}
	lookup := regexp.MustCompile(`environ\["([A-Z_]+)"\]`)
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range lookup.FindAllStringSubmatch(string(source), -1) {
			read[match[1]] = true
		}
	}
	delete(read, "TERM")
	if want := slices.Sorted(maps.Keys(read)); !slices.Equal(names, want) {
		t.Errorf("documented %v, read %v", names, want)
	}
}
