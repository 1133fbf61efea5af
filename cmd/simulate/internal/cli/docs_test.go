package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asCommand makes the test's own binary the command.
const asCommand = "SIMULATE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// bash runs a script in a folder, in which simulate is the command of this package.
func bash(t *testing.T, folder, script string) (output string, err error) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	wrapper := "#!/bin/sh\nexec env " + asCommand + "=1 " + shellLine([]string{binary}) + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(bin, "simulate"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir, command.Env = folder, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := command.CombinedOutput()
	return string(out), err
}

// Every block of commands in the document works, and every command within a sentence,
// with something in the place of its capital letters. A command that violates, such as
// one with --canary, says so by itself.
func TestCommandsOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/simulation.md")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	for _, block := range blocks {
		if out, err := bash(t, folder, block[1]); err != nil {
			t.Errorf("%v\n%s\n%s", err, block[1], out)
		}
	}
	trace, err := os.ReadFile(filepath.Join(folder, "trace.txt"))
	run := regexp.MustCompile(`[kr]\.[a-z]+\.[a-z0-9]+`).FindString(string(trace))
	if len(blocks) < 3 || err != nil || run == "" {
		t.Fatalf("%d blocks, %v, a trace of the run %q", len(blocks), err, run)
	}
	sentences := regexp.MustCompile("`(simulate --[^`]*)`").FindAllStringSubmatch(string(text), -1)
	if len(sentences) < 4 {
		t.Fatalf("%d commands within sentences", len(sentences))
	}
	for _, sentence := range sentences {
		command := sentence[1]
		switch {
		case strings.HasPrefix(command, "simulate --bench"): // takes half a minute
			command = "simulate --help | grep -e --bench"
		case strings.Contains(command, "--minimize FILE"):
			command = strings.Replace(command, "FILE", "simulation-failures/seed-2/plan.json", 1) + " --canary"
		case strings.Contains(command, "--minimize"):
			command += " --canary"
		}
		command = strings.NewReplacer(" K", " 2 --nodes 3", " ID", " "+run, "--workload FILE", "--workload workload.json", "--html FILE", "--html page.html", "STEP", "100").Replace(command)
		command = strings.Replace(command, "--nodes 3 --nodes 3", "--nodes 3", 1)
		if out, err := bash(t, folder, command); err != nil {
			t.Errorf("%v\n%s\n%.2000s", err, command, out)
		}
	}
	// A flag that is named alone exists.
	help, _ := bash(t, folder, "simulate --help")
	for _, flag := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(help, " "+flag[1]) {
			t.Errorf("there is no %s", flag[1])
		}
	}
}

// Who reads only the beginning of a trace ends simulate without an error of its own.
func TestReaderThatGoesAway(t *testing.T) {
	out, err := bash(t, t.TempDir(), "set +o pipefail; simulate --seed 1 --nodes 3 --trace | head -3")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); err != nil || len(lines) != 3 || slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "simulate:") }) {
		t.Errorf("%v\n%s", err, out)
	}
}
