package containerd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
)

// A containerd that is killed while it clears up leaves the directory of a task, with what
// is mounted in it. Nobody but the removal of the sandbox takes that away.
func TestBundleThatContainerdHasForgottenIsRemoved(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	b.d.config.StateDir = daemon.StateDir()
	spec := b.spec("sleep", "3600")
	if err := b.d.Create(within(t), spec); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(daemon.StateDir(), bundlesDir, testNamespace, spec.ID)
	if _, err := os.Stat(filepath.Join(bundle, "config.json")); err != nil {
		t.Fatalf("bundles are elsewhere: %v", err)
	}
	if _, err := b.d.client.TaskService().Delete(within(t), &tasks.DeleteTaskRequest{ContainerID: spec.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(bundle); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("containerd leaves the bundle of a task that it deletes: %v", err)
	}
	rootfs, work := filepath.Join(bundle, "rootfs"), filepath.Join(t.TempDir(), spec.ID)
	for _, dir := range []string{rootfs, work} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files := t.TempDir()
	kept := filepath.Join(files, "kept")
	err := errors.Join(
		os.Symlink(work, filepath.Join(bundle, "work")), os.WriteFile(kept, nil, 0o600),
		unix.Mount(files, rootfs, "", unix.MS_BIND, ""), unix.Mount(files, rootfs, "", unix.MS_BIND, ""),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.d.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bundle, work} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left over: %s, %v", path, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was mounted was removed: %v", err)
	}
}

// A containerd that was killed while it removed the directory of a task can not remove
// another one of the same task, and does not say so.
func TestBundleWhoseRemovalWasCutShortIsRemoved(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	b.d.config.StateDir, b.d.config.RootDir = daemon.StateDir(), daemon.RootDir()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	cut := filepath.Join(daemon.StateDir(), bundlesDir, testNamespace, hidden+spec.ID)
	work := filepath.Join(daemon.RootDir(), bundlesDir, testNamespace, hidden+spec.ID)
	for _, dir := range []string{cut, work} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "init.pid"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.d.Kill(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.d.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{daemon.StateDir(), daemon.RootDir()} {
		if left, err := os.ReadDir(filepath.Join(root, bundlesDir, testNamespace)); err != nil || len(left) > 0 {
			t.Errorf("left over below %s: %v, %v", root, left, err)
		}
	}
	// One that is found later, when nothing else is left, is a trace and goes too.
	if err := os.Mkdir(cut, 0o700); err != nil {
		t.Fatal(err)
	}
	b.traceOf(spec.ID)
	if err := b.d.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(cut); err == nil {
		t.Errorf("left over: %s", cut)
	}
}
