package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

// openFence makes a fence that supervisors look at, on a tmpfs of the test's own.
func openFence(t *testing.T) *page.File {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "errand-supervisor-")
	if err != nil {
		t.Fatal(err)
	}
	f, err := page.Open(dir, "u")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestSupervisorKillsItsCommandAtTheFence has neither a daemon nor a guard that would.
func TestSupervisorKillsItsCommandAtTheFence(t *testing.T) {
	const window = 500 * time.Millisecond
	fence, c := openFence(t), config(t)
	c.Fence = fence.Path()
	state := page.State{BootID: "boot", Session: 7, Deadline: page.Boottime() + time.Hour, Window: window}
	fence.Arm(state)
	d := open(t, c)
	defer d.Close()
	start(t, d, sandbox.Spec{
		ID: "fenced", Run: "r.default.fenced", Attempt: 1, Placement: 1, LogPath: filepath.Join(t.TempDir(), "log"),
		Spec: &recordv1.Spec{Command: []string{"sh", "-c", "trap '' TERM; sleep 3600 & wait; sleep 3600"}},
	})
	state.Deadline = page.Boottime() + window
	fence.Arm(state)
	exit, err := d.Wait(bounded(t), "fenced")
	if err != nil {
		t.Fatal(err)
	}
	if now := page.Boottime(); now < state.Deadline {
		t.Errorf("killed %s early", state.Deadline-now)
	}
	if held, ok := fence.Load(); !ok || held.FencedAt < state.Deadline {
		t.Errorf("the fence holds %+v, %t: the end could pass for the command's own", held, ok)
	}
	if exit.Code == nil || *exit.Code != 137 {
		t.Errorf("exit %+v", exit)
	}
	remove(t, d, "fenced")
}

// TestSupervisorOfARunThatWaitsLetsItGoOnAtTheFence, and its group says so to the daemon
// and the guard.
func TestSupervisorOfARunThatWaitsLetsItGoOnAtTheFence(t *testing.T) {
	const window = 500 * time.Millisecond
	fence, c := openFence(t), config(t)
	c.Fence = fence.Path()
	state := page.State{BootID: "boot", Session: 7, Deadline: page.Boottime() + time.Hour, Window: window}
	fence.Arm(state)
	d := open(t, c)
	defer d.Close()
	end := filepath.Join(t.TempDir(), "end")
	script := "until [ -e " + end + " ]; do sleep 0.02; done; exit 3"
	specs := map[bool]sandbox.Spec{}
	for unfenced, id := range map[bool]string{false: "fenced", true: "waits"} {
		spec := specOf(t.TempDir(), "r.default."+id, "sh", "-c", script)
		spec.Unfenced = unfenced
		specs[unfenced] = spec
		start(t, d, spec)
	}
	parent, err := cgroup.Open(cgroup.Root, c.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	for unfenced, spec := range specs {
		if got := parent.Group(spec.ID).Unfenced(); got != unfenced {
			t.Errorf("the group of %s is unfenced: %t", spec.Run, got)
		}
	}
	waits := supervisorOf(t, c.Dir, specs[true].ID)
	state.Deadline = page.Boottime() + window
	fence.Arm(state)
	if exit, err := d.Wait(bounded(t), specs[false].ID); err != nil || exit.Code == nil || *exit.Code != 137 {
		t.Errorf("what does not wait ended with %+v, %v", exit, err)
	}
	// Both would be killed at the same moment, and a kill takes no time.
	time.Sleep(200 * time.Millisecond) // nothing is to happen
	if !waits.Alive() {
		t.Error("what waits has ended too")
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if exit, err := d.Wait(bounded(t), specs[true].ID); err != nil || exit.Code == nil || *exit.Code != 3 {
		t.Errorf("what waits ended with %+v, %v", exit, err)
	}
	for _, spec := range specs {
		remove(t, d, spec.ID)
	}
}

// TestSupervisorKillsThoughItsDiskHangs, and tells of the end when the disk answers.
func TestSupervisorKillsThoughItsDiskHangs(t *testing.T) {
	const window = 500 * time.Millisecond
	fence, c := openFence(t), config(t)
	c.Fence = fence.Path()
	state := page.State{BootID: "boot", Session: 7, Deadline: page.Boottime() + time.Hour, Window: window}
	fence.Arm(state)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.default.hangs", "sh", "-c", "trap '' TERM; echo output; sleep 3600 & wait; sleep 3600")
	// The log is a pipe that nobody reads: who opens it to write waits.
	if err := unix.Mkfifo(spec.LogPath+".log", 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, d, spec)
	supervisor := supervisorOf(t, c.Dir, spec.ID)
	guesttest.AwaitSyscall(t, supervisor.PID, unix.SYS_OPENAT)
	state.Deadline = page.Boottime() + window
	fence.Arm(state)
	awaitNoneAlive(t, supervisor)
	if now := page.Boottime(); now < state.Deadline {
		t.Errorf("killed %s early", state.Deadline-now)
	}
	disk, err := os.Open(spec.LogPath + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code == nil || *exit.Code != 137 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	remove(t, d, spec.ID)
}

func TestSupervisorWithoutItsFenceStartsNothing(t *testing.T) {
	c := config(t)
	c.Fence = filepath.Join(t.TempDir(), "fence-u")
	d := open(t, c)
	defer d.Close()
	spec := sandbox.Spec{
		ID: "unfenced", Run: "r.default.unfenced", Attempt: 1, Placement: 1, LogPath: filepath.Join(t.TempDir(), "log"),
		Spec: &recordv1.Spec{Command: []string{"true"}},
	}
	if err := d.Create(bounded(t), spec); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(bounded(t), spec.ID); err == nil || !strings.Contains(err.Error(), "watch fence") {
		t.Errorf("started: %v", err)
	}
	remove(t, d, spec.ID)
}
