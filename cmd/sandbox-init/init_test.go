package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// initCommand makes "sandbox-init init" and its status file.
func initCommand(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "status")
	if err := status.Create(file, os.Geteuid(), os.Getegid()); err != nil {
		t.Fatal(err)
	}
	return exec.Command(guesttest.Build(t), append([]string{"init", "--status", file}, args...)...), file
}

// end runs a command to its end and returns code and status.
func end(t *testing.T, cmd *exec.Cmd, file string) (int, status.Status) {
	t.Helper()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	s, err := status.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), s
}

func TestInitTellsHowTheCommandEnded(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		code  int
		state status.State
		value int
		stage status.Stage
	}{
		{"code 0", []string{"--", "true"}, 0, status.Exited, 0, "-"},
		{"code 137", []string{"--", "sh", "-c", "exit 137"}, 137, status.Exited, 137, "-"},
		{"signal 9", []string{"--", "sh", "-c", "kill -9 $$"}, 137, status.Signaled, 9, "-"},
		{"missing", []string{"--", "no-such-command"}, 127, status.ExecFailed, int(unix.ENOENT), status.StageLookup},
		{"empty", []string{"--", ""}, 127, status.ExecFailed, int(unix.ENOENT), status.StageLookup},
		{"no executable", []string{"--", "/etc/passwd"}, 126, status.ExecFailed, int(unix.EACCES), status.StageLookup},
		{"missing directory", []string{"--chdir", "/no/such", "--", "true"}, 127, status.ExecFailed, int(unix.ENOENT), status.StageChdir},
		{"argument that looks like an option", []string{"--", "sh", "-c", `test "$1" = --status`, "x", "--status"}, 0, status.Exited, 0, "-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, file := initCommand(t, c.args...)
			code, s := end(t, cmd, file)
			if code != c.code || s.State != c.state || s.Value != c.value || s.Stage != c.stage {
				t.Fatalf("code %d, status %+v", code, s)
			}
		})
	}
}

func TestInitEndsWith125WhenItCanNotTell(t *testing.T) {
	for name, args := range map[string][]string{
		"no status file":  {"init", "--status", "/no/such/file", "--", "true"},
		"a directory":     {"init", "--status", "/", "--", "true"},
		"no command":      {"init", "--status", "/dev/null"},
		"unknown option":  {"init", "--status", "/dev/null", "--other", "x", "--", "true"},
		"unknown mode":    {"other"},
		"nothing":         {},
		"log: bad config": {"log", "x=y"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(guesttest.Build(t), args...)
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != exitSetup {
				t.Fatalf("code %d", code)
			}
		})
	}
}

func TestInitLooksTheCommandUpInItsOwnPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "first"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Found first, but not executable: the search goes on.
	for _, path := range []string{"first/tool", "second"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "first", "tool"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "second"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "second", "tool"), []byte("#!/bin/sh\nexit 42\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, file := initCommand(t, "--", "tool")
	cmd.Env = []string{"PATH=/no/such:" + dir + "/first:" + dir + "/second"}
	if code, s := end(t, cmd, file); code != 42 {
		t.Fatalf("code %d, %+v", code, s)
	}
	cmd, file = initCommand(t, "--", "tool")
	cmd.Env = []string{"PATH=" + dir + "/first"}
	if code, s := end(t, cmd, file); code != 126 || s.Value != int(unix.EACCES) {
		t.Fatalf("code %d, %+v", code, s)
	}
}

func TestInitForwardsSignalsAndReapsOrphans(t *testing.T) {
	cmd, file := initCommand(t, "--", "sh", "-c", `trap "echo usr1" USR1; trap "echo term; exit 3" TERM; (sleep 0.01 &); echo ready; while :; do sleep 0.05; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await := func(want string) {
		t.Helper()
		b := make([]byte, len(want))
		if _, err := readFull(out, b); err != nil || string(b) != want {
			t.Fatalf("got %q, %v", b, err)
		}
	}
	await("ready\n")
	for _, step := range []struct {
		signal os.Signal
		says   string
	}{{unix.SIGUSR1, "usr1\n"}, {unix.SIGTERM, "term\n"}} {
		if err := cmd.Process.Signal(step.signal); err != nil {
			t.Fatal(err)
		}
		await(step.says)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("ended with %v", err)
	}
	s, err := status.Read(file)
	if err != nil || s.State != status.Exited || s.Value != 3 || s.StartedAt.IsZero() || s.At.Before(s.StartedAt) {
		t.Fatalf("%+v, %v", s, err)
	}
}

func readFull(r interface{ Read([]byte) (int, error) }, b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := r.Read(b[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func TestInitKeepsItsDescriptorsFromTheCommand(t *testing.T) {
	cmd, _ := initCommand(t, "--", "sh", "-c", "ls /proc/self/fd | wc -l")
	// One that whoever started it has not made to be closed.
	_, inherited, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{inherited}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// 0, 1, 2 and the directory itself.
	if got := strings.TrimSpace(string(out)); got != "4" {
		t.Fatalf("the command has %s descriptors", got)
	}
}

func TestInitSwitchesTheUser(t *testing.T) {
	guesttest.NeedRoot(t, "only root can become another user")
	cmd, file := initCommand(t, "--user", "1234:2345,3456", "--", "sh", "-c", `test "$(id -u) $(id -g) $(id -G)" = "1234 2345 2345 3456"`)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if code, s := end(t, cmd, file); code != 0 {
		t.Fatalf("code %d, %+v", code, s)
	}
}

// What the runtime of init says at its own end must not look like the command's.
func TestInitLeavesStderrToTheCommand(t *testing.T) {
	cmd, _ := initCommand(t, "--", "sh", "-c", `readlink /proc/$PPID/fd/2; echo mine >&2`)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "/dev/null\n" || stderr.String() != "mine\n" {
		t.Errorf("init's stderr is %q, the command wrote %q", stdout.String(), stderr.String())
	}
}
