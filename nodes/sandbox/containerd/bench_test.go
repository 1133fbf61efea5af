package containerd

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private/privatetest"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

// BenchmarkSandbox runs "true" in a sandbox, up to its exit and with its removal. Its
// metrics tell the phases in milliseconds a run.
func BenchmarkSandbox(b *testing.B) {
	ctx := context.Background()
	address := privatetest.Address(b)
	dir := b.TempDir()
	d, err := New(ctx, Config{Address: address, Namespace: "errand-bench", NodeUUID: testNode, Dir: filepath.Join(dir, "sandboxes"), Init: guesttest.Build(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var archive bytes.Buffer
	if err := imagetest.Write(&archive, imagetest.Busybox()); err != nil {
		b.Fatal(err)
	}
	if _, err := d.Images().Import(ctx, "", &archive); err != nil {
		b.Fatal(err)
	}
	base := (&bench{dir: dir, d: d}).spec("true")
	var created, started, exited, removed time.Duration
	phase := func(total *time.Duration, from time.Time, err error) time.Time {
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		*total += now.Sub(from)
		return now
	}
	for b.Loop() {
		spec := base
		spec.ID = sandboxIDFor(b)
		spec.LogPath = logs.Path(dir, spec.ID, 1)
		spec.Spec = &recordv1.Spec{Image: imagetest.BusyboxName, Command: []string{"true"}}
		at := time.Now()
		at = phase(&created, at, d.Create(ctx, spec))
		_, err := d.Start(ctx, spec.ID)
		at = phase(&started, at, err)
		_, err = d.Wait(ctx, spec.ID)
		at = phase(&exited, at, err)
		_, err = d.Kill(ctx, spec.ID)
		if err == nil {
			_, err = d.Flush(ctx, spec.ID)
		}
		if err == nil {
			err = d.Remove(ctx, spec.ID)
		}
		phase(&removed, at, err)
	}
	report := func(total time.Duration, name string) {
		b.ReportMetric(float64(total.Microseconds())/1000/float64(b.N), name)
	}
	report(created, "create-ms/op")
	report(started, "start-ms/op")
	report(exited, "exit-ms/op")
	report(removed, "remove-ms/op")
}

func sandboxIDFor(b *testing.B) string {
	b.Helper()
	return (&bench{}).spec("true").ID
}

// BenchmarkCtrRun is what the sandbox is measured against: "ctr run --rm" of the same.
func BenchmarkCtrRun(b *testing.B) {
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		b.Skip("no ctr")
	}
	address := privatetest.Address(b)
	var archive bytes.Buffer
	if err := imagetest.Write(&archive, imagetest.Busybox()); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "image.tar")
	if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command(ctr, "-a", address, "-n", "errand-ctr", "images", "import", path).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for b.Loop() {
		if out, err := exec.Command(ctr, "-a", address, "-n", "errand-ctr", "run", "--rm", imagetest.BusyboxName, sandboxIDFor(b), "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}
