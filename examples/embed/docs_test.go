package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/errand-run/errand/boot"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

var block = regexp.MustCompile("(?ms)^ *```(go|sh)\n(.*?)^ *```$")

// Every program of the guide is compiled by a module outside, and the first one, which
// calls a node, is run too; every command is run.
func TestGuideIsTrue(t *testing.T) {
	guide, err := os.ReadFile("../../docs/embedding.md")
	if err != nil {
		t.Fatal(err)
	}
	helper := guesttest.Build(t)
	address := startNode(t, helper)
	o := newOutside(t)
	var programs, commands []string
	for _, match := range block.FindAllStringSubmatch(string(guide), -1) {
		if match[1] == "go" {
			programs = append(programs, match[2])
		} else {
			commands = append(commands, strings.TrimSpace(match[2]))
		}
	}
	if len(programs) != 2 || len(commands) != 2 {
		t.Fatalf("the guide has %d programs and %d commands", len(programs), len(commands))
	}
	for i, program := range programs {
		o.write(fmt.Sprintf("p%d/main.go", i), []byte(program))
	}
	o.run(nil, "go", "vet", "./...")
	if got := o.run([]string{"ERRAND_ADDRESS=" + address}, "go", "run", "./p0"); got != "hello\nSTATUS_SUCCEEDED 0\n" {
		t.Errorf("the program that calls a node says %q", got)
	}
	for _, command := range commands {
		dir := o.dir
		if strings.Contains(command, "./examples/") {
			dir = "../.." // of this repository
		}
		here := &outside{t: t, dir: dir}
		environ := []string{"SANDBOX_INIT=" + helper}
		if dir != o.dir {
			environ = append(environ, "GOFLAGS=", "TMPDIR="+t.TempDir())
		}
		got := here.run(environ, "bash", "-c", command)
		if strings.Contains(command, "./examples/") && !strings.Contains(got, "hello") {
			t.Errorf("%s says %q", command, got)
		}
	}
	if _, err := os.Stat(filepath.Join(o.dir, "sandbox-init")); err != nil {
		t.Error(err)
	}
}

// startNode starts a node for programs that call one, and returns its address.
func startNode(t *testing.T, helper string) string {
	t.Helper()
	var node *boot.Instance
	app := fx.New(boot.Node(boot.Config{
		Name: "called", DataDir: t.TempDir(), RuntimeDir: t.TempDir(), Listen: "127.0.0.1:0", Dev: true,
		Drivers: []string{boot.DriverProcess}, SandboxInit: helper,
	}), fx.Populate(&node), fx.NopLogger)
	if err := app.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := app.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return node.Address()
}
