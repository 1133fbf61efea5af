package private

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// need skips on a developer's machine that can not run containerd, and fails where
// CI=true.
func need(t *testing.T) {
	t.Helper()
	_, err := look("containerd")
	if os.Geteuid() == 0 && err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("containerd is needed, and root (uid %d): %v", os.Geteuid(), err)
	}
	t.Skipf("containerd is needed, and root (uid %d): %v", os.Geteuid(), err)
}

func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func begin(t *testing.T, dir string) *Daemon {
	t.Helper()
	d, err := Start(shortly(t), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(shortly(t)); err != nil {
			t.Error(err)
		}
	})
	return d
}

func pidOf(t *testing.T, d *Daemon) int {
	t.Helper()
	proc, ok := find(d.paths)
	if !ok {
		t.Fatal("the pid file names no containerd")
	}
	defer proc.release()
	return proc.pid
}

func TestStopEndsContainerdAndLeavesNoSocket(t *testing.T) {
	need(t)
	d := begin(t, t.TempDir())
	if err := answers(shortly(t), d.Address()); err != nil {
		t.Fatalf("a started containerd does not answer: %v", err)
	}
	if err := d.Stop(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if _, ok := find(d.paths); ok {
		t.Error("containerd lives after Stop")
	}
	if _, err := os.Stat(d.Address()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after Stop: %v", err)
	}
	if err := d.Stop(shortly(t)); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStartAfterLeaveAdoptsTheSameContainerd(t *testing.T) {
	need(t)
	dir := t.TempDir()
	first := begin(t, dir)
	pid := pidOf(t, first)
	if err := first.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if !Left(dir) || Left(t.TempDir()) {
		t.Error("what an earlier daemon left is not told from nothing")
	}
	second := begin(t, dir)
	if got := pidOf(t, second); got != pid {
		t.Errorf("the second daemon's containerd has pid %d, not %d", got, pid)
	}
}

func TestStartInADirectoryThatWasMovedBelowItsContainerdIsRefused(t *testing.T) {
	need(t)
	base, err := os.MkdirTemp("", "m") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	dir, there := filepath.Join(base, "data", "containerd"), filepath.Join(base, "moved", "containerd")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Dir(from), filepath.Dir(to)); err != nil {
			t.Fatal(err)
		}
	}
	first := begin(t, dir)
	pid := pidOf(t, first)
	if err := first.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	move(dir, there)
	if !Left(there) {
		t.Error("the containerd of a directory that was moved is not found")
	}
	d, err := Start(shortly(t), Config{Dir: there})
	if err == nil {
		_ = d.Leave(shortly(t))
		t.Error("a second containerd was started beside the one of a directory that was moved")
	} else if want := "moved here from " + filepath.Dir(dir) + " "; !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not say %q: %v", want, err)
	}
	move(there, dir)
	second := begin(t, dir)
	if got := pidOf(t, second); got != pid {
		t.Errorf("after the directory was put back its containerd has pid %d, not %d", got, pid)
	}
	if err := second.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(dir), filepath.Dir(there)); err != nil {
		t.Fatal(err)
	}
	third := begin(t, there)
	if got := pidOf(t, third); got != pid {
		t.Errorf("by a link to the directory its containerd has pid %d, not %d", got, pid)
	}
}

func TestKilledContainerdIsStartedAgain(t *testing.T) {
	need(t)
	d := begin(t, t.TempDir())
	pid := pidOf(t, d)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx := shortly(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if proc, ok := find(d.paths); ok {
			next := proc.pid
			proc.release()
			if next != pid && answers(ctx, d.Address()) == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal("containerd was not started again")
		case <-tick.C:
		}
	}
}

func TestStartInALongDirectoryUsesAShortSocket(t *testing.T) {
	need(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	d := begin(t, dir)
	if len(d.Address()) > SocketBytesMax {
		t.Errorf("%s has %d bytes", d.Address(), len(d.Address()))
	}
	if places(dir) != d.paths {
		t.Error("the places of one directory differ between two looks")
	}
}

func TestStartSaysWhatToInstallWhenContainerdIsMissing(t *testing.T) {
	_, err := Start(shortly(t), Config{Dir: t.TempDir(), Binary: "containerd-that-is-not-there"})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install containerd runc") {
		t.Errorf("got %v", err)
	}
}

func TestStartSaysWhereTheLogIsWhenContainerdEndsAtOnce(t *testing.T) {
	need(t)
	dir := t.TempDir()
	_, err := Start(shortly(t), Config{Dir: dir, Binary: "/bin/false"})
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), filepath.Join(dir, "containerd.log")) {
		t.Errorf("got %v", err)
	}
}

func TestFindRefusesAPidThatIsAnotherProgram(t *testing.T) {
	p := places(t.TempDir())
	if err := os.WriteFile(p.pid, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if proc, ok := find(p); ok {
		proc.release()
		t.Error("pid 1 was taken for containerd")
	}
	if err := os.WriteFile(p.pid, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if proc, ok := find(p); ok {
		proc.release()
		t.Error("this test was taken for containerd")
	}
}
