package boot_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

// asHost makes the test binary be a service with a node in it, below the directory
// that it names; asHostInit names the helper.
const (
	asHost     = "ERRAND_TEST_AS_HOST"
	asHostInit = "ERRAND_TEST_AS_HOST_INIT"
)

func hostConfig(dir, helper string) boot.Config {
	return boot.Config{
		Name: "embedded", DataDir: filepath.Join(dir, "data"), RuntimeDir: filepath.Join(dir, "run"), Listen: boot.ListenNone,
		Drivers: []string{boot.DriverProcess}, SandboxInit: helper,
	}
}

// beHost starts a command, says of which run it is, and goes on until it is killed.
func beHost(dir string) int {
	ctx := context.Background()
	var node *boot.Instance
	app := fx.New(boot.Node(hostConfig(dir, os.Getenv(asHostInit))), fx.Populate(&node), fx.NopLogger)
	if err := app.Start(ctx); err != nil {
		fmt.Println(err)
		return 1
	}
	script := "echo one; while [ ! -e " + filepath.Join(dir, "go") + " ]; do sleep 0.05; done; echo two; exit 5"
	run, err := node.Client().Submit(ctx, &errandv1.CreateRunRequest{
		IdempotencyKey: "survivor", Spec: &errandv1.RunSpec{Command: []string{"/bin/sh", "-c", script}},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for state, err := range node.Client().Watch(ctx, run.GetId()) {
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if state.GetStatus() == errandv1.Status_STATUS_RUNNING {
			fmt.Println(run.GetId())
		}
	}
	return 0
}

func TestRunsOfAKilledProcessAreAdoptedByTheNext(t *testing.T) {
	dir, helper := t.TempDir(), guesttest.Build(t)
	killed := exec.CommandContext(t.Context(), os.Args[0])
	killed.Env = append(os.Environ(), asHost+"="+dir, asHostInit+"="+helper)
	var complaints bytes.Buffer
	killed.Stderr = &complaints
	said, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(said).ReadString('\n')
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	id := strings.TrimSpace(line)
	if !strings.HasPrefix(id, "k.default.") || complaints.Len() > 0 {
		t.Fatalf("the service says %q and, on stderr, %q", line, &complaints)
	}
	h := newHost(hostConfig(dir, helper)).start(t)
	ctx := within(t, time.Minute)
	again, err := h.node.Client().Submit(ctx, &errandv1.CreateRunRequest{IdempotencyKey: "survivor", Spec: &errandv1.RunSpec{Command: []string{"other"}}})
	if err == nil {
		t.Errorf("the key was forgotten: %v", again)
	}
	if run, err := h.node.Client().Get(ctx, id); err != nil || run.GetStatus() != errandv1.Status_STATUS_RUNNING {
		t.Fatalf("%v, %v", run, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run, err := h.node.Client().Wait(ctx, id)
	if err != nil || run.GetExitCode() != 5 || len(run.GetAttempts()) != 1 {
		t.Fatalf("%v, %v", run, err)
	}
	if got := h.output(t, run); got != "one\ntwo\n" {
		t.Errorf("output %q", got)
	}
}
