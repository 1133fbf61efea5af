package logger_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

// TestLoggerKillsItsSandboxAtTheFence has neither a daemon nor a guard that would, and a
// disk that hangs.
func TestLoggerKillsItsSandboxAtTheFence(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("needs root for cgroups")
	}
	dir, err := os.MkdirTemp("/dev/shm", "errand-logger-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fence, err := page.Open(dir, "u")
	if err != nil {
		t.Fatal(err)
	}
	defer fence.Close()
	const window = 500 * time.Millisecond
	state := page.State{BootID: "boot", Session: 7, Deadline: page.Boottime() + time.Hour, Window: window}
	fence.Arm(state)
	parent, err := cgroup.Open(cgroup.Root, "errand-test-logger")
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]chan struct{}{}
	for _, id := range []string{"ours", "others"} {
		group, command := parent.Group(id), exec.Command("sleep", "3600")
		if err := group.Create(cgroup.Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		if err := group.Add(command.Process.Pid); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ended[id] = done
		go func() {
			defer close(done)
			_ = command.Wait()
		}()
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if _, err := group.Kill(ctx); err != nil {
				t.Error(err)
			}
			<-done
			if err := group.Remove(ctx); err != nil {
				t.Error(err)
			}
			_ = parent.Remove()
		}()
	}
	p := startWith(t, logger.Config{Fence: fence.Path(), CgroupRoot: cgroup.Root, Parent: parent.Name(), Group: "ours"})
	// The log is a pipe that nobody reads: who opens it to write waits.
	pipe := p.log + ".log"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdout.WriteString("before\n"); err != nil {
		t.Fatal(err)
	}
	guesttest.AwaitSyscall(t, p.cmd.Process.Pid, unix.SYS_OPENAT)
	state.Deadline = page.Boottime() + window
	fence.Arm(state)
	select {
	case <-ended["ours"]:
	case <-time.After(2 * time.Minute):
		t.Fatal("its sandbox outlives the fence")
	}
	if now := page.Boottime(); now < state.Deadline {
		t.Errorf("killed %s early", state.Deadline-now)
	}
	if held, ok := fence.Load(); !ok || held.FencedAt < state.Deadline {
		t.Errorf("the fence holds %+v, %t: the end could pass for the command's own", held, ok)
	}
	select {
	case <-ended["others"]:
		t.Error("another sandbox was killed")
	default:
	}
	// It is a logger still, once the disk answers.
	disk, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	_ = p.stdout.Close()
	_ = p.stderr.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("logger: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(p.run, logger.PIDFile)); err != nil || len(b) == 0 {
		t.Errorf("pid file %q, %v", b, err)
	}
}
