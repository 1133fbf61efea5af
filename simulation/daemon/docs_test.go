package daemon_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// Every shell block of the documents is run against a node that has a few runs
// behind it; a line that calls make names a target that exists.
func TestCommandsInTheDocumentsWork(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.errand(t, "run", "--driver", "process", "--", "true").want(t, 0, "", "")
	n.errand(t, "run", "--driver", "process", "--", "sh", "-c", "exit 3").want(t, 3, "", "")
	n.submit(t, "--", "sleep", "600")
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, path := range append(documents, "../../README.md", "../../CONTRIBUTING.md") {
		if filepath.Base(path) == "embedding.md" {
			continue // examples/embed runs its programs and commands, in a module outside
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			var script []string
			for line := range strings.Lines(block[1]) {
				if target, ok := strings.CutPrefix(line, "make "); ok {
					if target = strings.Fields(target)[0]; !strings.Contains(string(makefile), "\n"+target+":") {
						t.Errorf("%s: there is no make %s", path, target)
					}
					continue
				}
				script = append(script, line)
			}
			runBlock(t, n, path, strings.Join(script, ""))
		}
	}
	if blocks == 0 {
		t.Fatal("no shell block was found in any document")
	}
}

func runBlock(t *testing.T, n *node, path, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address, "PATH="+binaries+":"+os.Getenv("PATH"))
	command.Dir = t.TempDir()
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %s\n%v\n%s", filepath.Base(path), script, err, output)
	}
}

// README's first command, as a newcomer types it.
func TestDemoShowsTheMainJob(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "bash", "scripts/demo")
	command.Dir = filepath.Join("..", "..")
	command.Env = append(os.Environ(), "CI=true")
	output, err := command.CombinedOutput()
	text := string(output)
	for _, want := range []string{"hello from a sandbox", "exit code: 7", "FAILED"} {
		if err != nil || !strings.Contains(text, want) {
			t.Fatalf("make demo: %v; want %q in\n%s", err, want, text)
		}
	}
}
