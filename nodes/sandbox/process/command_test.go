package process_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

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

// The node has it again later: that start costs the run no attempt.
func TestStartWithoutFilesToOpenMayBeTriedAgain(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.files.1", "true")
	if err := d.Create(bounded(t), spec); err != nil {
		t.Fatal(err)
	}
	defer remove(t, d, spec.ID)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	used, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for few := limit; ; few.Cur++ {
		// With each file more the start comes a step further, until it succeeds.
		if few.Cur == limit.Cur {
			few.Cur = uint64(len(used))
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		_, err := d.Start(bounded(t), spec.ID)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			return
		}
		var start *sandbox.StartError
		if !errors.As(err, &start) || start.Permanent || !strings.Contains(start.Message, "too many open files") {
			t.Fatalf("with %d files: %v", few.Cur, err)
		}
		remove(t, d, spec.ID)
		if err := d.Create(bounded(t), spec); err != nil {
			t.Fatal(err)
		}
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
