package logger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a logger as containerd starts it.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr *os.File
	log, run       string
}

func start(t *testing.T) *process { return startBeside(t, "") }

// startBeside starts one that looks at a status file.
func startBeside(t *testing.T, statusFile string) *process {
	t.Helper()
	return startWith(t, logger.Config{Status: statusFile})
}

// startWith starts one with a config but for its paths.
func startWith(t *testing.T, config logger.Config) *process {
	t.Helper()
	// A directory whose path is longer than a socket's address may be.
	p := &process{log: filepath.Join(t.TempDir(), "log"), run: filepath.Join(t.TempDir(), strings.Repeat("long", 40))}
	if err := os.Mkdir(p.run, 0o700); err != nil {
		t.Fatal(err)
	}
	config.LogPath, config.RunDir = p.log, p.run
	argument, err := config.Encode()
	if err != nil {
		t.Fatal(err)
	}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
		return r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	readyR, readyW := pipe()
	p.stdout, p.stderr = outW, errW
	p.cmd = exec.Command(guesttest.Build(t), "log", argument)
	p.cmd.ExtraFiles = []*os.File{outR, errR, readyW}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	for _, f := range []*os.File{outR, errR, readyW} {
		_ = f.Close()
	}
	_ = readyR.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.ReadAll(readyR); err != nil {
		t.Fatalf("the logger does not get ready: %v", err)
	}
	return p
}

func (p *process) read(t *testing.T, opts logs.Options) (stdout, stderr string, end logs.End, ended bool) {
	t.Helper()
	r, err := logs.OpenReader(p.log, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out [3]bytes.Buffer
	for {
		c, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			end, ended = r.End()
			return out[logs.Stdout].String(), out[logs.Stderr].String(), end, ended
		}
		if err != nil {
			t.Fatal(err)
		}
		out[c.Stream].Write(c.Data)
	}
}

// The pipes' write ends stay open as they do until containerd deletes a task.
func TestFlushCompletesTheLogWhileThePipesAreOpen(t *testing.T) {
	p := start(t)
	b, err := os.ReadFile(filepath.Join(p.run, logger.PIDFile))
	if err != nil {
		t.Fatal(err)
	}
	if ref, err := pid.Parse(string(b)); err != nil || ref.PID != p.cmd.Process.Pid || !ref.Alive() {
		t.Fatalf("pid file %q: %v", b, err)
	}
	want := strings.Repeat("0123456789\n", 5000)
	if _, err := p.stderr.WriteString("error"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdout.WriteString(want); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdout.WriteString("last"); err != nil {
		t.Fatal(err)
	}
	complete, err := logger.Flush(t.Context(), p.run)
	if err != nil || !complete {
		t.Fatalf("flush: %v, %v", complete, err)
	}
	stdout, _, end, ended := p.read(t, logs.Options{Follow: true})
	if stdout != want+"last" || !ended || !end.Complete {
		t.Fatalf("%d bytes, end %+v, %v", len(stdout), end, ended)
	}
	// It may be asked again, and ends with the pipes.
	if complete, err := logger.Flush(t.Context(), p.run); err != nil || !complete {
		t.Fatalf("second flush: %v, %v", complete, err)
	}
	_ = p.stdout.Close()
	_ = p.stderr.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("logger: %v", err)
	}
	if _, stderr, _, _ := p.read(t, logs.Options{}); stderr != "error" {
		t.Fatalf("stderr %q", stderr)
	}
	if _, err := logger.Flush(t.Context(), p.run); !errors.Is(err, logger.ErrNoLogger) {
		t.Fatalf("flush without a logger: %v", err)
	}
}

// What stands in the pipes when the request comes is in the log before the end mark.
func TestFlushReadsThePipesDryFirst(t *testing.T) {
	p := start(t)
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// More than one read takes; the logger has widened the pipes to 1 MiB.
	want := strings.Repeat("0123456789\n", 50_000)
	if _, err := p.stdout.WriteString(want); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		complete bool
		err      error
	}
	answers := make(chan answer, 1)
	go func() {
		complete, err := logger.Flush(t.Context(), p.run)
		answers <- answer{complete, err}
	}()
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.err != nil || !a.complete {
		t.Fatalf("flush: %v, %v", a.complete, a.err)
	}
	if stdout, _, _, _ := p.read(t, logs.Options{}); stdout != want {
		t.Fatalf("%d bytes of %d", len(stdout), len(want))
	}
}

// socketOf is the address of a run directory's socket, which is short while the test lasts.
func socketOf(t *testing.T, runDir string) string {
	t.Helper()
	dir, err := os.Open(runDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), logger.Socket)
}

// A client that gets no processor after it has connected is waited for, and holds up no
// output meanwhile.
func TestLoggerWaitsForAClientThatIsSlowToSpeak(t *testing.T) {
	p := start(t)
	slow, err := net.Dial("unix", socketOf(t, p.run))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	// More than the pipe holds, so it is written only if it is read.
	want := strings.Repeat("0123456789\n", 200_000)
	if _, err := p.stdout.WriteString(want); err != nil {
		t.Fatal(err)
	}
	time.Sleep(600 * time.Millisecond) // the slowness itself
	if _, err := slow.Write([]byte(logger.FlushRequest)); err != nil {
		t.Fatal(err)
	}
	if err := slow.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(slow); err != nil || string(answer) != "complete\n" {
		t.Errorf("it answers %q, %v", answer, err)
	}
	if stdout, _, end, ended := p.read(t, logs.Options{}); stdout != want || !ended || !end.Complete {
		t.Errorf("%d bytes of %d, end %+v, %t", len(stdout), len(want), end, ended)
	}
}

// Who hangs up without an answer has said nothing of the log: it is asked again.
func TestFlushAsksALoggerAgainThatHangsUp(t *testing.T) {
	for _, test := range []struct {
		name, second string
		complete     bool
		is           error
	}{
		{"and then answers", "complete\n", true, nil},
		{"and is gone", "", false, logger.ErrNoLogger},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := t.TempDir()
			listener, err := net.Listen("unix", socketOf(t, run))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				defer listener.Close()
				if first, err := listener.Accept(); err != nil || first.Close() != nil || test.second == "" {
					return
				}
				second, err := listener.Accept()
				if err != nil {
					return // it was not asked again
				}
				defer second.Close()
				if _, err := io.ReadFull(second, make([]byte, len(logger.FlushRequest))); err == nil {
					_, _ = io.WriteString(second, test.second)
				}
			}()
			complete, err := logger.Flush(t.Context(), run)
			if complete != test.complete || !errors.Is(err, test.is) {
				t.Errorf("flush gave %t, %v; want %t, %v", complete, err, test.complete, test.is)
			}
		})
	}
}

func TestFlushDoesNotWaitForAHungLogger(t *testing.T) {
	p := start(t)
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var state unix.WaitStatus
	if _, err := unix.Wait4(p.cmd.Process.Pid, &state, unix.WUNTRACED, nil); err != nil || !state.Stopped() {
		t.Fatalf("stop: %v, %v", state, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if complete, err := logger.Flush(ctx, p.run); err == nil || complete {
		t.Fatalf("flush: %v, %v", complete, err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Fatalf("it took %v", took)
	}
}

func TestFollowerSeesOutputAtOnce(t *testing.T) {
	p := start(t)
	r, err := logs.OpenReader(p.log, logs.Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 5 {
		written := time.Now()
		if _, err := p.stdout.WriteString("tick\n"); err != nil {
			t.Fatal(err)
		}
		c, err := r.Next(t.Context())
		if err != nil || string(c.Data) != "tick\n" {
			t.Fatalf("%+v, %v", c, err)
		}
		if late := time.Since(written); late > time.Minute {
			t.Errorf("seen after %v", late)
		}
	}
}

// The command must not die by SIGPIPE because its log can not be written.
func TestLoggerLivesOnWhenTheLogCanNotBeWritten(t *testing.T) {
	p := start(t)
	if err := os.RemoveAll(filepath.Dir(p.log)); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE} {
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	block := bytes.Repeat([]byte("lost\n"), 200_000)
	for range 5 {
		if _, err := p.stdout.Write(block); err != nil {
			t.Fatalf("the command sees: %v", err)
		}
	}
	if complete, err := logger.Flush(t.Context(), p.run); !errors.Is(err, logger.ErrUnwritten) || complete {
		t.Fatalf("flush: %v, %v", complete, err)
	}
}

func TestTermEndsALoggerThatHasReadAll(t *testing.T) {
	p := start(t)
	if _, err := p.stdout.WriteString("before\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdout.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	_ = p.stdout.Close()
	_ = p.stderr.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("logger: %v", err)
	}
	stdout, _, end, ended := p.read(t, logs.Options{})
	if stdout != "before\nafter\n" || !ended || !end.Complete {
		t.Fatalf("%q, end %+v, %v", stdout, end, ended)
	}
}

func TestConfigReadsBackAndRefusesNonsense(t *testing.T) {
	want := logger.Config{LogPath: "/var/log/a b=c&?", RunDir: "/run/x", SegmentBytes: 1 << 20, Segments: 3}
	s, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := logger.ParseConfig(s); err != nil || got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	want.Fence, want.CgroupRoot, want.Parent, want.Group = "/run/errand/fence-u", "/sys/fs/cgroup", "errand-u", "e1"
	if s, err = want.Encode(); err != nil {
		t.Fatal(err)
	}
	if got, err := logger.ParseConfig(s); err != nil || got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	want.Group = "../others"
	if _, err := want.Encode(); err == nil {
		t.Error("a path is taken for the name of a cgroup")
	}
	for _, bad := range []string{"", "log=relative\nrun=/x", "log=/x", "log=/x\nrun=/y\nsegment=many", "other=1"} {
		if c, err := logger.ParseConfig(bad); err == nil {
			t.Errorf("%q gives %+v", bad, c)
		}
	}
	if _, err := (logger.Config{LogPath: "/a\nrun=/b", RunDir: "/c"}).Encode(); err == nil {
		t.Error("a path with a line break is taken")
	}
}

// The runtime has the command's pipes too, and says there why it can not start init.
func TestOutputFromBeforeInitIsNotLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	if err := status.Create(file, os.Geteuid(), os.Getegid()); err != nil {
		t.Fatal(err)
	}
	p := startBeside(t, file)
	if _, err := p.stderr.WriteString("runc create failed\n"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		unread, err := unix.IoctlGetInt(int(p.stderr.Fd()), unix.TIOCINQ)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d bytes are not read: %v", unread, err)
		}
		if unread == 0 {
			break
		}
	}
	init, err := status.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	// The end of the read that is going on is awaited by the next.
	if _, err := p.stdout.WriteString("also before\n"); err != nil {
		t.Fatal(err)
	}
	for {
		unread, err := unix.IoctlGetInt(int(p.stdout.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		if unread == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := init.Write(status.Status{State: status.Starting, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stderr.WriteString("mine\n"); err != nil {
		t.Fatal(err)
	}
	complete, err := logger.Flush(t.Context(), p.run)
	if err != nil || !complete {
		t.Fatalf("flush: %v, %v", complete, err)
	}
	// What was read in the moment before init's word may be taken for the command's.
	stdout, stderr, _, _ := p.read(t, logs.Options{Follow: true})
	if stderr != "mine\n" || stdout != "" && stdout != "also before\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}
