package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// process is errand as a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *watchedBuffer
	stderr *watchedBuffer
}

// watchedBuffer lets a test wait for a text.
type watchedBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newWatchedBuffer() *watchedBuffer { return &watchedBuffer{changed: make(chan struct{})} }

func (b *watchedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	close(b.changed)
	b.changed = make(chan struct{})
	return len(p), nil
}

func (b *watchedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *watchedBuffer) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		b.mu.Lock()
		found, changed := strings.Contains(b.text.String(), text), b.changed
		b.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%q never came, only %q", text, b.String())
		}
	}
}

func startProcess(t *testing.T, s *fakeapi.Server, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), stdout: newWatchedBuffer(), stderr: newWatchedBuffer()}
	p.cmd.Env = []string{asErrand + "=1", "ERRAND_ADDRESS=" + s.URL(), "ERRAND_DATA=" + t.TempDir()}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.WaitDelay = 2 * time.Minute
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) exit() int {
	p.t.Helper()
	killer := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer killer.Stop()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// untilCanceled runs until it is canceled and then has some last words.
func untilCanceled(l *fakeapi.Live) {
	l.Start()
	l.Write(toStdout, "begin\n")
	select {
	case <-l.Canceled():
	case <-l.Closed():
		return
	}
	l.Write(toStdout, "last words\n")
	code := int32(143)
	l.End(errandv1.Status_STATUS_CANCELED, errandv1.Reason_REASON_CANCELED, "", &code)
}

func TestInterruptOfRunCancelsItAndShowsTheRestOfItsOutput(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			server := startFake(t, func(s *fakeapi.Server) { s.Script = untilCanceled })
			p := startProcess(t, server, "run", "busybox")
			p.stdout.await(t, "begin\n")
			p.signal(s)
			if code := p.exit(); code != ExitCanceled {
				t.Errorf("exit code %d", code)
			}
			if p.stdout.String() != "begin\nlast words\n" || !strings.Contains(p.stderr.String(), "CANCELED") {
				t.Errorf("stdout %q, stderr %q", p.stdout, p.stderr)
			}
		})
	}
}

func TestSecondInterruptOfRunLeavesItAndSaysHowToFindIt(t *testing.T) {
	server := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			l.Write(toStdout, "begin\n")
			<-l.Closed()
		}
	})
	p := startProcess(t, server, "run", "busybox")
	p.stdout.await(t, "begin\n")
	p.signal(syscall.SIGINT)
	p.stderr.await(t, "interrupt again")
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != ExitCanceled {
		t.Errorf("exit code %d", code)
	}
	run := server.Runs()[0].Run()
	if run.GetStatus() != errandv1.Status_STATUS_RUNNING {
		t.Errorf("status %s: the run was not left", run.GetStatus())
	}
	if !strings.Contains(p.stderr.String(), "errand logs -f "+run.GetId()) {
		t.Errorf("stderr %q", p.stderr)
	}
}

func TestInterruptDuringTheCreationCancelsTheRun(t *testing.T) {
	server := startFake(t, func(s *fakeapi.Server) { s.LoseAnswers, s.Script = 3, untilCanceled })
	p := startProcess(t, server, "run", "busybox")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := server.Await(ctx, func() bool { return server.Calls(errandv1connect.RunServiceCreateProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != ExitCanceled {
		t.Errorf("exit code %d, stderr %q", code, p.stderr)
	}
	if runs := server.Runs(); len(runs) != 1 || runs[0].Run().GetStatus() != errandv1.Status_STATUS_CANCELED {
		t.Errorf("runs %v", runs)
	}
}

func TestInterruptOfADetachedRunOrAWaitCancelsNothing(t *testing.T) {
	server := startFake(t, nil)
	live := server.Add(&errandv1.Run{Id: "r.default.x", Status: errandv1.Status_STATUS_RUNNING})
	p := startProcess(t, server, "wait", "r.default.x")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := server.Await(ctx, func() bool { return server.Calls(errandv1connect.RunServiceWaitProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	if p.exit(); p.cmd.ProcessState.Success() || live.Run().GetStopping() != 0 {
		t.Errorf("state %s, run %v", p.cmd.ProcessState, live.Run())
	}
}

func TestRunIntoAPipeThatCloses(t *testing.T) {
	server := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			for range 20000 {
				l.Write(toStdout, "a line of some length\n")
			}
			<-l.Closed()
		}
	})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0], "run", "busybox"), stderr: newWatchedBuffer()}
	p.cmd.Env = []string{asErrand + "=1", "ERRAND_ADDRESS=" + server.URL()}
	p.cmd.Stdout, p.cmd.Stderr = writer, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if _, err := io.ReadFull(reader, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	reader.Close()
	if code := p.exit(); code != ExitPipe || !strings.Contains(p.stderr.String(), "goes on") {
		t.Errorf("exit code %d, stderr %q", code, p.stderr)
	}
}
