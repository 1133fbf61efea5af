package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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
		for deadline := time.Now().Add(20 * time.Second); len(children(t, supervisor)) != count; time.Sleep(time.Millisecond) {
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
	// Half of what one that may yet answer is given.
	if took := time.Since(asked); took > time.Second {
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

func TestStartRefusesWhatCanNotRun(t *testing.T) {
	c, root := config(t), t.TempDir()
	d := open(t, c)
	defer d.Close()
	for name, change := range map[string]func(*recordv1.Spec){
		"empty command":       func(s *recordv1.Spec) { s.Command = nil },
		"NUL in argument":     func(s *recordv1.Spec) { s.Command = append(s.Command, "a\x00b") },
		"NUL in environment":  func(s *recordv1.Spec) { s.Env = append(s.Env, "A=secret\x00b") },
		"variable of no name": func(s *recordv1.Spec) { s.Env = append(s.Env, "=secret") },
		"huge environment":    func(s *recordv1.Spec) { s.Env = append(s.Env, "A=secret"+strings.Repeat("x", 10<<20)) },
		"unknown user":        func(s *recordv1.Spec) { s.User = "no-such-user" },
		"unknown group":       func(s *recordv1.Spec) { s.User = "0:no-such-group" },
		"read-only root":      func(s *recordv1.Spec) { s.ReadOnlyRoot = true },
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(root, "r.refused."+strings.ReplaceAll(name, " ", "-"), "true")
			change(spec.Spec)
			err := d.Create(bounded(t), spec)
			if err == nil {
				_, err = d.Start(bounded(t), spec.ID)
			}
			var start *sandbox.StartError
			if !errors.As(err, &start) || !start.Permanent || start.Reason != recordv1.Reason_REASON_START_ERROR || strings.Contains(start.Message, "secret") {
				t.Errorf("got %.200v", err)
			}
			remove(t, d, spec.ID)
		})
	}
	if left := leaks(t, c); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestCreateMakesADirectoryThatSomebodyRemoved(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	spec := specOf(t.TempDir(), "r.removed.1", "sh", "-c", "exit 7")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code == nil || *exit.Code != 7 {
		t.Fatalf("exit %+v, %v", exit, err)
	}
	if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
}

func TestCommandSeesOnlyItself(t *testing.T) {
	guesttest.NeedRoot(t, "only root isolates")
	c, root := config(t), t.TempDir()
	d := open(t, c)
	defer d.Close()
	spec := specOf(root, "r.alone.1", "sh", "-c", "set -- /proc/[0-9]*; echo $#; id -u; ls /proc/self/fd | wc -l")
	spec.Spec.User = "nobody"
	start(t, d, spec)
	if _, err := d.Wait(bounded(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	r, err := logs.OpenReader(spec.LogPath, logs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	for {
		chunk, err := r.Next(t.Context())
		if err != nil {
			break
		}
		got = append(got, strings.Fields(string(chunk.Data))...)
	}
	// The supervisor and the shell; nobody; three streams and the directory.
	if len(got) != 3 || got[0] != "2" || got[1] != "65534" || got[2] != "4" {
		t.Errorf("got %q", got)
	}
	remove(t, d, spec.ID)
}

// The rule is that of images: an entry's group, else the group of the same number.
func TestUserByNumberWithoutAGroup(t *testing.T) {
	guesttest.NeedRoot(t, "only root can become another user")
	c, root := config(t), t.TempDir()
	d := open(t, c)
	defer d.Close()
	for user, gid := range map[string]string{"99999": "99999", "65534": "65534", "0": "0"} {
		spec := specOf(root, "r.user."+user, "sh", "-c", `test "$(id -g)" = `+gid)
		spec.Spec.User = user
		start(t, d, spec)
		if exit, err := d.Wait(bounded(t), spec.ID); err != nil || exit.Code == nil || *exit.Code != 0 {
			t.Errorf("user %s: %+v, %v", user, exit, err)
		}
		remove(t, d, spec.ID)
	}
}

// A limit that nobody would hold is not ignored. Run without root by TestWithoutRoot.
func TestLimitsThatCanNotBeEnforcedAreRefused(t *testing.T) {
	c, root := config(t), t.TempDir()
	if os.Geteuid() == 0 {
		// What a host without cgroups has there.
		c.CgroupRoot = t.TempDir()
	}
	d := open(t, c)
	defer d.Close()
	for name, limit := range map[string]func(*recordv1.Spec){
		"memory": func(s *recordv1.Spec) { s.MemoryBytes = 64 << 20 },
		"cpu":    func(s *recordv1.Spec) { s.CpuMillis = 500 },
		"pids":   func(s *recordv1.Spec) { s.PidsLimit = 40 },
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(root, "r.limit."+name, "true")
			limit(spec.Spec)
			err := d.Create(bounded(t), spec)
			var start *sandbox.StartError
			if !errors.As(err, &start) || !start.Permanent || start.Reason != recordv1.Reason_REASON_START_ERROR || !strings.Contains(start.Message, "the "+name+" limit") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// The same without root, in a process of its own.
func TestWithoutRoot(t *testing.T) {
	guesttest.NeedRoot(t, "the other tests run without root")
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "process.test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-test.run", "^(TestConformance|TestLostSupervisor.*|TestManySurvivors.*|TestLimits.*|TestKillOf.*|TestStopped.*|TestSupervisorOutlives.*|TestOrphans.*)$", "-test.timeout", "120s")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, guesttest.Env+"="+config(t).Helper, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
