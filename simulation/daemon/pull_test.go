package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
)

// registryWithBusybox serves busybox as NAME/busybox:1.
func registryWithBusybox(t *testing.T) (*registrytest.Registry, string) {
	t.Helper()
	r := registrytest.New(false)
	t.Cleanup(r.Close)
	image := imagetest.Busybox()
	image.Config.Labels = map[string]string{"test": t.Name()}
	built, err := imagetest.Build(image)
	if err != nil {
		t.Fatal(err)
	}
	full, err := r.Add("busybox", "1", built)
	if err != nil {
		t.Fatal(err)
	}
	return r, full
}

func TestRunPullsItsImage(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	r, image := registryWithBusybox(t)
	n.errand(t, "run", image, "--", "echo", "pulled").want(t, 0, "pulled\n", "")
	asked := len(r.Requests())
	n.errand(t, "run", image, "--", "true").want(t, 0, "", "")
	if len(r.Requests()) != asked {
		t.Errorf("an image that is there was asked for again: %v", r.Requests()[asked:])
	}
	n.errand(t, "run", "--pull", "always", image, "--", "true").want(t, 0, "", "")
	if len(r.Requests()) == asked {
		t.Error("--pull always asked nobody")
	}
	if got := n.errand(t, "image", "ls", "-o", "json"); !strings.Contains(got.stdout, `"pulledAt"`) {
		t.Errorf("listed %s", got.stdout)
	}
	id := strings.TrimSpace(n.errand(t, "run", "-d", image, "--", "sleep", "600").stdout)
	n.awaitRunning(t.Context(), t, id)
	if r := n.errand(t, "image", "rm", image); r.code != 125 || !strings.Contains(r.stderr, "that of run "+id+" and goes on") || r.took > 10*time.Second+busy {
		t.Errorf("removing the image of a run that goes on gave %+v", r)
	}
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
	n.errand(t, "image", "rm", image).want(t, 0, image+"\n", "")
	if got := n.errand(t, "run", "--pull", "never", image, "--", "true"); got.code != 125 || !strings.Contains(got.stderr, "IMAGE_NOT_FOUND") {
		t.Errorf("got %+v", got)
	}
}

// The registry that others run, with the credentials of a docker config file.
func TestPullFromDebiansRegistry(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("docker-registry")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs docker-registry (apt-get install docker-registry)")
		}
		t.Skip("needs docker-registry (apt-get install docker-registry)")
	}
	dir := t.TempDir()
	address := freeAddress(t)
	config := filepath.Join(dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, binary, "serve", config)
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = command.Wait() }()
	image, err := imagetest.Build(imagetest.Busybox())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // it has no sign of being ready
		if err = registrytest.Push(ctx, address, "team/busybox", "1", image); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("push: %v\n%s", err, &log)
		}
	}
	n := startContainerNode(t)
	full := address + "/team/busybox:1"
	if got := n.errand(t, "image", "pull", full); got.code != 0 || !strings.HasPrefix(got.stdout, full+" sha256:") {
		t.Fatalf("got %+v\n%s", got, n.log)
	}
	n.errand(t, "run", full, "--", "echo", "hello").want(t, 0, "hello\n", "")
	if got := n.errand(t, "run", address+"/team/none:1", "--", "true"); got.code != 125 || !strings.Contains(got.stderr, "IMAGE_NOT_FOUND") {
		t.Errorf("got %+v", got)
	}
}
