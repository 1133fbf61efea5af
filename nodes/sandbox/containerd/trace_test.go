package containerd

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/errand-run/errand/nodes/sandbox"
)

// traceOf is what a driver lists of a sandbox, which is to be nothing but a trace.
func (b *bench) traceOf(id string) sandbox.Info {
	b.t.Helper()
	infos, err := b.d.List(within(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	i := slices.IndexFunc(infos, func(info sandbox.Info) bool { return info.ID == id })
	if i < 0 || !infos[i].Trace {
		b.t.Fatalf("%s is not listed as a trace: %+v", id, infos)
	}
	return infos[i]
}

// What runs when its container, its lease and its directory are gone is found by what the
// kernel and the runtime have of it, and goes.
func TestSandboxOfWhichOnlyTracesAreLeftIsRemoved(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	b.d.config.StateDir, b.d.config.RootDir = daemon.StateDir(), daemon.RootDir()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	if infos, err := b.d.List(within(t)); err != nil || len(infos) != 1 || infos[0].Trace {
		t.Errorf("a sandbox is listed as %+v, %v", infos, err)
	}
	if err := b.d.client.ContainerService().Delete(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.d.leases.Delete(within(t), leases.Lease{ID: spec.ID}); err != nil {
		t.Fatal(err)
	}
	if err := b.d.removeDir(spec.ID); err != nil {
		t.Fatal(err)
	}
	if trace := b.traceOf(spec.ID); trace.State != sandbox.StateRunning {
		t.Errorf("what runs is %+v", trace)
	}
	if idle, err := b.d.Idle(within(t)); err != nil || !idle {
		t.Errorf("a trace keeps containerd: %v, %v", idle, err)
	}
	if killed, err := b.d.Kill(within(t), spec.ID); err != nil || killed {
		// Without its status nothing tells what was killed.
		t.Errorf("kill: %v, %v", killed, err)
	}
	if err := b.d.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if infos, err := b.d.List(within(t)); err != nil || len(infos) > 0 {
		t.Errorf("afterwards it lists %+v, %v", infos, err)
	}
}

// A runtime that went on after everything was removed leaves files that nobody else looks
// for.
func TestFilesThatALateRuntimeLeavesAreRemoved(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	b.d.config.StateDir, b.d.config.RootDir = daemon.StateDir(), daemon.RootDir()
	id := b.spec("true").ID
	bundle := filepath.Join(daemon.StateDir(), bundlesDir, testNamespace, id)
	state := filepath.Join(runcRoot, testNamespace, id)
	socket := filepath.Join(shimSocketDir, shimSocket(daemon.Address(), testNamespace, id))
	for _, dir := range []string{bundle, state, shimSocketDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if trace := b.traceOf(id); trace.State != sandbox.StateCreated {
		t.Errorf("what does not run is %+v", trace)
	}
	if err := b.d.Remove(within(t), id); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bundle, state, socket} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("left over: %s", path)
		}
	}
}
