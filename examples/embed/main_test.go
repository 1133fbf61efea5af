package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	linesMax = 79
	stdout   = "STREAM_STDOUT: hello\n"
	stderr   = "STREAM_STDERR: careful\n"
	end      = "STATUS_FAILED with code 7\n"
)

func TestExampleRunsItsCommandAndStops(t *testing.T) {
	t.Setenv("SANDBOX_INIT", guesttest.Build(t))
	dir := t.TempDir()
	for range 2 { // the second time on the data of the first
		var out bytes.Buffer
		if err := serve(t.Context(), dir, &out); err != nil {
			t.Fatal(err)
		}
		// The two streams of a command have no order between them.
		if got := out.String(); got != stdout+stderr+end && got != stderr+stdout+end {
			t.Errorf("%q", got)
		}
	}
}

func TestExampleIsShort(t *testing.T) {
	content, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(content, []byte("\n")); lines > linesMax {
		t.Errorf("main.go has %d lines, more than %d", lines, linesMax)
	}
}

// outside is a module of somebody else, offline, on this repository as it is.
type outside struct {
	t   *testing.T
	dir string
}

func newOutside(t *testing.T) *outside {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{t: t, dir: t.TempDir()}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/errand-run/errand"
	text := strings.Replace(string(mod), "module "+module, "module example.org/acme", 1) +
		"\nrequire " + module + " v0.0.0\nreplace " + module + " => " + root + "\n"
	o.write("go.mod", []byte(text))
	o.write("go.sum", sum)
	return o
}

func (o *outside) write(name string, content []byte) {
	o.t.Helper()
	path := filepath.Join(o.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		o.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) run(environ []string, name string, args ...string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), name, args...)
	cmd.Dir = o.dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off"), environ...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	output, err := cmd.Output()
	if err != nil {
		o.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &errors)
	}
	return string(output)
}

func TestModuleOutsideEmbedsANode(t *testing.T) {
	o := newOutside(t)
	example, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	o.write("main.go", example)
	// The helper is built as docs/embedding.md says.
	o.run([]string{"CGO_ENABLED=0"}, "go", "build", "-o", "sandbox-init", "github.com/errand-run/errand/cmd/sandbox-init")
	o.run(nil, "go", "build", "-o", "service", ".")
	got := o.run([]string{"SANDBOX_INIT=" + filepath.Join(o.dir, "sandbox-init")}, "./service", filepath.Join(o.dir, "data"))
	if got != stdout+stderr+end && got != stderr+stdout+end {
		t.Errorf("%q", got)
	}
}

func TestModuleOutsideThatCallsANodeHasNothingOfTheEngine(t *testing.T) {
	o := newOutside(t)
	o.write("main.go", []byte(`package main

import (
	"context"
	"fmt"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func main() {
	c, err := client.New(client.Config{Address: "127.0.0.1:1"})
	if err == nil {
		_, err = c.Once().Submit(context.Background(), &errandv1.CreateRunRequest{})
	}
	fmt.Print(client.CodeOf(err))
}
`))
	if got := o.run(nil, "go", "run", "."); got != "UNREACHABLE" {
		t.Errorf("%q", got)
	}
	deps := strings.Fields(o.run(nil, "go", "list", "-deps", "."))
	if len(deps) < 20 {
		t.Fatalf("only %v", deps)
	}
	for _, path := range deps {
		for _, heavy := range []string{"go.etcd.io/", "github.com/containerd/", "github.com/asynkron/", "google.golang.org/grpc", "go.uber.org/", "github.com/prometheus/"} {
			if strings.HasPrefix(path, heavy) {
				t.Errorf("a caller of the API builds %s", path)
			}
		}
	}
}
