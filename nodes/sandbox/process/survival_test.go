package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start creates and starts a sandbox that the test's end removes.
func start(t *testing.T, d sandbox.Driver, spec sandbox.Spec) {
	t.Helper()
	if err := d.Create(bounded(t), spec); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(bounded(t), spec.ID); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, d sandbox.Driver, id string) {
	t.Helper()
	if err := d.Remove(bounded(t), id); err != nil {
		t.Error(err)
	}
}

func supervisorOf(t *testing.T, dir, id string) pid.Ref {
	t.Helper()
	b := fileOf(t, dir, id)
	lines := strings.Split(string(b[status.Size:]), "\n")
	supervisor, err := pid.Parse(lines[2])
	if err != nil {
		t.Fatal(err)
	}
	return supervisor
}

// fileOf returns the content of a sandbox's file.
func fileOf(t *testing.T, dir, id string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte(`"ID":"`+id+`"`)) {
			return b
		}
	}
	t.Fatalf("no file of sandbox %s", id)
	return nil
}

// pids returns the supervisor of a sandbox and its command.
func pids(t *testing.T, dir, id string) (supervisor, command pid.Ref) {
	t.Helper()
	supervisor = supervisorOf(t, dir, id)
	all := children(t, supervisor)
	if len(all) != 1 {
		t.Fatalf("the supervisor has children %v", all)
	}
	return supervisor, all[0]
}

// children returns the children of a supervisor, dead ones included.
func children(t *testing.T, supervisor pid.Ref) (all []pid.Ref) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor.PID))
	for _, file := range files {
		// A thread may have ended.
		b, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(b)) {
			number, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if ref, err := pid.Of(number); err == nil {
				all = append(all, ref)
			}
		}
	}
	return all
}

func TestLostSupervisorTakesTheCommandAlongAndLeavesNoCode(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		t.Run(fmt.Sprintf("adopted=%v", adopted), func(t *testing.T) {
			c := config(t)
			d := open(t, c)
			defer func() { _ = d.Close() }()
			run := fmt.Sprintf("r.lost.%d", os.Getpid())
			spec := specOf(t.TempDir(), run, "sh", "-c", "sleep 3600 & sleep 3600")
			spec.Spec.Env = append(spec.Spec.Env, sandbox.EnvRunID+"="+run, sandbox.EnvAttempt+"=1")
			start(t, d, spec)
			supervisor, command := pids(t, c.Dir, spec.ID)
			if adopted {
				_ = d.Close()
			}
			if err := supervisor.Signal(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if adopted {
				d = open(t, c)
			}
			exit, err := d.Wait(bounded(t), spec.ID)
			if err != nil || exit.Code != nil || exit.Reason != recordv1.Reason_REASON_SANDBOX_LOST {
				t.Fatalf("exit %+v, %v", exit, err)
			}
			if command.Alive() {
				t.Error("the command lives on")
			}
			if complete, err := d.Flush(bounded(t), spec.ID); err != nil || complete {
				t.Errorf("a log without an end is complete: %v, %v", complete, err)
			}
			remove(t, d, spec.ID)
			if left := leaks(t, c); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// No daemon is there to clean up after it.
func TestLostSupervisorTakesTheCommandAlongByItself(t *testing.T) {
	c := config(t)
	d := open(t, c)
	spec := specOf(t.TempDir(), "r.alone.2", "sleep", "3600")
	start(t, d, spec)
	supervisor, command := pids(t, c.Dir, spec.ID)
	fd, err := command.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_ = d.Close()
	if err := supervisor.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 {
			t.Errorf("the command lives on: %d, %v", n, err)
		}
		break
	}
	d = open(t, c)
	remove(t, d, spec.ID)
	_ = d.Close()
}

func TestKillOfTheCommandByOthersIsToldAsOne(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.killed.1", "sleep", "3600")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	_, command := pids(t, c.Dir, spec.ID)
	if err := command.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code == nil || *exit.Code != 137 || exit.Signal != 9 {
		t.Fatalf("exit %+v, %v", exit, err)
	}
}

// What ends other programs, a service manager's TERM to all of a service included,
// must not lose a run.
func TestSupervisorOutlivesSignals(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.deaf.1", "sh", "-c", "read x < /dev/null; sleep 0.2; exit 7")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	supervisor, _ := pids(t, c.Dir, spec.ID)
	for _, number := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGPIPE} {
		if err := supervisor.Signal(number); err != nil {
			t.Fatal(err)
		}
	}
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code == nil || *exit.Code != 7 {
		t.Fatalf("exit %+v, %v", exit, err)
	}
}

func TestOrphansAreReapedWhileTheCommandRuns(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.orphans.1", "sh", "-c", "read x < /dev/null; (sleep 0.1 &); (sleep 0.1 &); sleep 3600")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	supervisor := supervisorOf(t, c.Dir, spec.ID)
	await := func(count int) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); len(children(t, supervisor)) != count; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the supervisor has children %v, want %d", children(t, supervisor), count)
			}
		}
	}
	await(3)
	await(1)
}

func TestStoppedSupervisorDoesNotHoldUpKill(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.hung.1", "sleep", "3600")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	supervisor, command := pids(t, c.Dir, spec.ID)
	if err := supervisor.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	if leftover, err := d.Kill(bounded(t), spec.ID); err != nil || !leftover {
		t.Fatalf("kill: %v, %v", leftover, err)
	}
	// Well below what one that may yet answer is given, and above what a busy machine takes.
	if took := time.Since(asked); took > 4*time.Second {
		t.Errorf("a supervisor that is stopped was waited for: %v", took)
	}
	if command.Alive() {
		t.Error("the command lives on")
	}
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code != nil || exit.Message != "its processes were killed; nobody saw an exit code" {
		t.Fatalf("exit %+v, %v: nobody saw it", exit, err)
	}
}

func TestManySurvivorsKeepTheirCodes(t *testing.T) {
	const runs = 40
	c, root := config(t), t.TempDir()
	d := open(t, c)
	for i := range runs {
		start(t, d, specOf(root, fmt.Sprintf("r.many.%d", i), "sh", "-c", fmt.Sprintf("sleep 0.%d; exit %d", i%5, i)))
	}
	_ = d.Close()
	d = open(t, c)
	defer d.Close()
	for i := range runs {
		spec := specOf(root, fmt.Sprintf("r.many.%d", i), "true")
		exit, err := d.Wait(bounded(t), spec.ID)
		if err != nil || exit.Code == nil || int(*exit.Code) != i {
			t.Fatalf("run %d: exit %+v, %v", i, exit, err)
		}
		remove(t, d, spec.ID)
	}
	if left := leaks(t, c); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestHalfMadeSandboxesAreCleared(t *testing.T) {
	c := config(t)
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	slots := strings.Repeat("\x00", status.Size)
	for name, content := range map[string]string{
		"empty": "", "cut": "\x00", "slots": slots, "line": slots + `{"Info":{"ID":"line"}}`, "json": slots + "{\n",
		"nobody": slots + `{"Info":{"ID":""}}` + "\n", "file-7": strings.Repeat("\x00", 4096),
	} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, c)
	defer d.Close()
	if infos, err := d.List(t.Context()); err != nil || len(infos) != 0 {
		t.Errorf("list: %v, %v", infos, err)
	}
	if left := leaks(t, c); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestAnEndIsOnTheDiskAndSettledOnlyWhereTheSupervisorSaysSo(t *testing.T) {
	c, root := config(t), t.TempDir()
	d := open(t, c)
	ordinary := specOf(root, "r.settled.1", "sh", "-c", "sleep 3600 & echo hello; exit 7")
	start(t, d, ordinary)
	exit, err := d.Wait(bounded(t), ordinary.ID)
	if err != nil || !exit.Durable || !exit.Settled || !exit.Leftover || !exit.LogComplete {
		t.Errorf("the end is %+v, %v", exit, err)
	}
	lost := specOf(root, "r.settled.2", "sleep", "3600")
	start(t, d, lost)
	if err := supervisorOf(t, c.Dir, lost.ID).Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit, err := d.Wait(bounded(t), lost.ID); err != nil || exit.Durable || exit.Settled {
		t.Errorf("the end is %+v, %v", exit, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// Who finds the file only knows that it was written.
	d = open(t, c)
	defer d.Close()
	if exit, err := d.Wait(bounded(t), ordinary.ID); err != nil || exit.Durable || exit.Settled || *exit.Code != 7 {
		t.Errorf("the end is %+v, %v", exit, err)
	}
	remove(t, d, ordinary.ID)
	remove(t, d, lost.ID)
}

func TestAFileCountsForTheSandboxThatIsNamedInItOnly(t *testing.T) {
	c, root := config(t), t.TempDir()
	d := open(t, c)
	first := specOf(root, "r.owner.1", "sh", "-c", "exit 7")
	start(t, d, first)
	if _, err := d.Wait(bounded(t), first.ID); err != nil {
		t.Fatal(err)
	}
	earlier := fileOf(t, c.Dir, first.ID)
	remove(t, d, first.ID)
	second := specOf(root, "r.owner.2", "sleep", "3600")
	start(t, d, second)
	files, err := filepath.Glob(filepath.Join(c.Dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the second sandbox has not got the file of the first: %v, %v", files, err)
	}
	supervisor := supervisorOf(t, c.Dir, second.ID)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// A loss of power: the second's words, but the slots as the first has left them.
	if err := supervisor.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for supervisor.Alive() {
		time.Sleep(time.Millisecond)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(earlier[:status.Size], 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, c)
	defer d.Close()
	exit, err := d.Wait(bounded(t), second.ID)
	if err != nil || exit.Code != nil {
		t.Errorf("the end of an earlier sandbox passes for this one's: %+v, %v", exit, err)
	}
	remove(t, d, second.ID)
}
