package containerd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/conformance"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private/privatetest"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

func TestMain(m *testing.M) { privatetest.Main(m) }

const testImage = "docker.io/library/errand-test:latest"

// Of this process alone: tests of other packages, and what a killed test left, share
// the cgroups and the runtime's state directory of the machine.
var (
	testNode      = fmt.Sprintf("%08x-test", rand.Uint32())
	testNamespace = "errand-test-" + testNode[:8]
)

// bench is a driver with what its tests need around it.
type bench struct {
	t    *testing.T
	d    *Driver
	dir  string
	logs *observer.ObservedLogs
	// node is the node's uuid, testNode if it is empty.
	node string
}

// setUp opens a driver with an image in the private containerd of this package.
func setUp(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	b.open(privatetest.Address(t))
	importImages(t, b.d)
	return b
}

func (b *bench) open(address string) *Driver {
	b.t.Helper()
	core, observed := observer.New(zapcore.DebugLevel)
	b.logs = observed
	d, err := New(within(b.t), Config{
		Address: address, Namespace: testNamespace, NodeUUID: cmp.Or(b.node, testNode),
		Dir: filepath.Join(b.dir, "sandboxes"), Init: guesttest.Build(b.t), Log: zap.New(core),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.d = d
	return d
}

// finish closes the driver and fails the test if anything is left.
func (b *bench) finish() {
	b.t.Helper()
	for _, leak := range leaks(b.t, b.d) {
		b.t.Errorf("left over: %s", leak)
	}
	if err := b.d.Close(); err != nil {
		b.t.Error(err)
	}
	// The runtime never removes the directory of a namespace. One that is in use stays.
	_ = os.Remove(filepath.Join(runcRoot, testNamespace))
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

var imported sync.Map // address -> *sync.Once

// importImages imports the test image once for each containerd.
func importImages(t *testing.T, d *Driver) {
	t.Helper()
	once, _ := imported.LoadOrStore(d.config.Address, new(sync.Once))
	once.(*sync.Once).Do(func() {
		image := imagetest.Busybox()
		image.Name = testImage
		image.Files = []imagetest.File{
			{Path: "test/not-executable", Content: []byte("data"), Mode: 0o644},
			{Path: "test/no-interpreter", Content: []byte("#!/no/such/interpreter\n"), Mode: 0o755},
			{Path: "test/no-format", Content: []byte{0, 1, 2, 3}, Mode: 0o755},
		}
		image.Config = v1.Config{
			Env: []string{"PATH=/bin", "FROM_IMAGE=image", "BOTH=image"}, WorkingDir: "/image/dir", User: "nobody",
			Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{"echo from the image; exit 33"},
		}
		var archive bytes.Buffer
		if err := imagetest.Write(&archive, image); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Images().Import(within(t), "", &archive); err != nil {
			t.Fatal(err)
		}
	})
}

var sequence atomic.Int64

// spec makes the spec of a sandbox that runs a command as root.
func (b *bench) spec(command ...string) sandbox.Spec {
	run := fmt.Sprintf("r.test.%d-%d", time.Now().UnixNano(), sequence.Add(1))
	return sandbox.Spec{
		ID: records.SandboxID(run, 1, 1), Run: run, App: "test", Attempt: 1, Placement: 1, NodeUUID: testNode,
		StartToken: []byte("token"), SpecHash: []byte("hash"), LogPath: logs.Path(filepath.Join(b.dir, "logs"), run, 1),
		Spec: &recordv1.Spec{Image: testImage, User: "0:0", Command: command},
	}
}

func (b *bench) start(spec sandbox.Spec) {
	b.t.Helper()
	if err := b.d.Create(within(b.t), spec); err != nil {
		b.t.Fatalf("create: %v", err)
	}
	if _, err := b.d.Start(within(b.t), spec.ID); err != nil {
		b.t.Fatalf("start: %v", err)
	}
}

func (b *bench) wait(id string) sandbox.Exit {
	b.t.Helper()
	exit, err := b.d.Wait(within(b.t), id)
	if err != nil {
		b.t.Fatalf("wait: %v", err)
	}
	return exit
}

// end tears a sandbox down and returns what it wrote.
func (b *bench) end(spec sandbox.Spec) string {
	b.t.Helper()
	if _, err := b.d.Kill(within(b.t), spec.ID); err != nil {
		b.t.Fatalf("kill: %v", err)
	}
	if _, err := b.d.Flush(within(b.t), spec.ID); err != nil {
		b.t.Fatalf("flush: %v", err)
	}
	if err := b.d.Remove(within(b.t), spec.ID); err != nil {
		b.t.Fatalf("remove: %v", err)
	}
	return readLog(b.t, spec.LogPath)
}

// run runs a sandbox to its end and returns what it wrote.
func (b *bench) run(spec sandbox.Spec) (string, sandbox.Exit) {
	b.t.Helper()
	b.start(spec)
	exit := b.wait(spec.ID)
	return b.end(spec), exit
}

func readLog(t *testing.T, dir string) string {
	t.Helper()
	reader, err := logs.OpenReader(dir, logs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var out strings.Builder
	for {
		chunk, err := reader.Next(within(t))
		if err != nil {
			return out.String()
		}
		out.Write(chunk.Data)
	}
}

// leaks lists what is left of sandboxes in a driver's namespace, and on the machine.
func leaks(t *testing.T, d *Driver) []string {
	t.Helper()
	ctx := within(t)
	var found []string
	add := func(kind string, err error, names ...string) {
		if err != nil {
			t.Errorf("count %s: %v", kind, err)
		}
		for _, name := range names {
			found = append(found, kind+" "+name)
		}
	}
	containers, err := d.client.ContainerService().List(ctx)
	for _, container := range containers {
		add("container", nil, container.ID)
	}
	add("containers", err)
	running, err := d.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	for _, process := range running.GetTasks() {
		add("task", nil, process.GetID())
	}
	add("tasks", err)
	leased, err := d.leases.List(ctx)
	for _, lease := range leased {
		add("lease", nil, lease.ID)
	}
	add("leases", err)
	add("snapshots", d.snapshot.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			add("snapshot", nil, info.Name)
		}
		return nil
	}))
	entries, err := os.ReadDir(d.config.Dir)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), filterPrefix) { // the driver's own
			add("directory", nil, entry.Name())
		}
	}
	add("directories", err)
	for _, tree := range trees() {
		groups, _ := os.ReadDir(filepath.Join(tree, d.parent.Name()))
		for _, group := range groups {
			if group.IsDir() {
				add("cgroup", nil, filepath.Join(tree, d.parent.Name(), group.Name()))
			}
		}
	}
	runtime, _ := os.ReadDir(filepath.Join(runcRoot, testNamespace))
	for _, entry := range runtime {
		add("runc state", nil, entry.Name())
	}
	return append(append(found, leakedProcesses(t, d)...), leakedMounts(t, d)...)
}

// leakedProcesses finds shims of the namespace and loggers of the driver's directory.
func leakedProcesses(t *testing.T, d *Driver) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range lines {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		args := strings.Split(string(content), "\x00")
		shim := strings.Contains(args[0], "containerd-shim") && value(args, "-address") == d.config.Address
		if shim || strings.Contains(string(content), "run="+d.config.Dir) {
			found = append(found, "process "+strings.Join(args, " "))
		}
	}
	return found
}

func leakedMounts(t *testing.T, d *Driver) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, filepath.Dir(d.config.Address)+"/") && strings.Contains(line, "rootfs") {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

func TestConformance(t *testing.T) {
	privatetest.Address(t)
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		b := &bench{t: t, dir: t.TempDir()}
		return conformance.Harness{
			Open: func(t *testing.T) sandbox.Driver {
				d := b.open(privatetest.Address(t))
				importImages(t, d)
				return d
			},
			Prepare: func(spec *sandbox.Spec) { spec.NodeUUID, spec.Spec.Image, spec.Spec.User = testNode, testImage, "0:0" },
			LogRoot: filepath.Join(b.dir, "logs"), LimitsMemory: true, LimitsPids: true,
			NotExecutable: "/test/not-executable", NoInterpreter: "/test/no-interpreter", NoFormat: "/test/no-format",
			Leaks: func(t *testing.T) []string {
				d := b.open(privatetest.Address(t))
				defer d.Close()
				defer os.Remove(filepath.Join(runcRoot, testNamespace))
				return leaks(t, d)
			},
		}
	})
}
