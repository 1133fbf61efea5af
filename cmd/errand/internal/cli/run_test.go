package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

const (
	toStdout = errandv1.Stream_STREAM_STDOUT
	toStderr = errandv1.Stream_STREAM_STDERR
)

func seventeen(l *fakeapi.Live) {
	l.Start()
	l.Write(toStdout, "out\n")
	l.Write(toStderr, "err\n")
	l.Exit(17)
}

func TestRunGivesOutputAndExitCodeOfTheCommand(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	newInvocation(t, s.URL()).run("run", "busybox", "--", "sh", "-c", "echo out; echo err >&2; exit 17").
		want(t, 17, "out\n", "err\n")
	spec := s.Runs()[0].Run()
	if got := spec.GetSpec().GetCommand(); len(got) != 3 || got[2] != "echo out; echo err >&2; exit 17" {
		t.Errorf("command %q", got)
	}
	if spec.GetTrigger() != errandv1.Trigger_TRIGGER_MANUAL {
		t.Errorf("trigger %s", spec.GetTrigger())
	}
}

func TestRunShowsOutputWithoutALineEndByteForByte(t *testing.T) {
	for name, output := range map[string]struct{ stdout, stderr string }{
		"last line without its end": {"a\nlast", ""},
		"stderr only":               {"", "x"},
		"nothing":                   {"", ""},
		"binary":                    {"\x00\xff\x1b[31m\r\n\xc3", "\xfe"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, func(s *fakeapi.Server) {
				s.Script = func(l *fakeapi.Live) {
					l.Start()
					for _, line := range strings.SplitAfter(output.stdout, "\n") {
						l.Write(toStdout, line)
					}
					l.Write(toStderr, output.stderr)
					l.Exit(0)
				}
			})
			newInvocation(t, s.URL()).run("run", "busybox").want(t, 0, output.stdout, output.stderr)
		})
	}
}

func TestRunLosesAndDoublesNothingWhenConnectionsAreCut(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 11))
	var mu sync.Mutex
	cuts := 0
	var out, err bytes.Buffer
	s := startFake(t, func(s *fakeapi.Server) {
		s.Cut = func(procedure string) int {
			mu.Lock()
			defer mu.Unlock()
			if procedure != errandv1connect.RunServiceLogsProcedure {
				return -1
			}
			cuts++
			return random.IntN(900)
		}
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			source := rand.New(rand.NewPCG(1, 2))
			for range 400 {
				line := make([]byte, source.IntN(120))
				for i := range line {
					line[i] = byte(source.Uint32())
				}
				if source.IntN(3) == 0 {
					err.Write(line)
					l.Write(toStderr, string(line))
				} else {
					out.Write(line)
					l.Write(toStdout, string(line))
				}
			}
			l.Exit(3)
		}
	})
	got := newInvocation(t, s.URL()).run("run", "busybox")
	if got.code != 3 {
		t.Errorf("exit code %d, want 3: %q", got.code, got.stderr)
	}
	if sha256.Sum256([]byte(got.stdout)) != sha256.Sum256(out.Bytes()) {
		t.Errorf("stdout has %d bytes, want %d, or others", len(got.stdout), out.Len())
	}
	if sha256.Sum256([]byte(got.stderr)) != sha256.Sum256(err.Bytes()) {
		t.Errorf("stderr has %d bytes, want %d, or others", len(got.stderr), err.Len())
	}
	if cuts < 20 {
		t.Errorf("only %d connections: the test cut nothing", cuts)
	}
}

func TestRunMakesOneRunWhenAnswersToItsCreationAreLost(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script, s.LoseAnswers = seventeen, 3 })
	newInvocation(t, s.URL()).run("run", "busybox").want(t, 17, "out\n", "err\n")
	if runs := len(s.Runs()); runs != 1 {
		t.Errorf("%d runs were made, want 1", runs)
	}
	if calls := s.Calls(errandv1connect.RunServiceCreateProcedure); calls != 4 {
		t.Errorf("%d creations, want 4", calls)
	}
}

func TestRunSurvivesARestartOfTheAPI(t *testing.T) {
	written, restarted := make(chan struct{}), make(chan struct{})
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			l.Write(toStdout, "before\n")
			close(written)
			<-restarted
			l.Write(toStdout, "after\n")
			l.Exit(17)
		}
	})
	done := make(chan result, 1)
	go func() { done <- newInvocation(t, s.URL()).run("run", "busybox") }()
	<-written
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.Await(ctx, func() bool { return s.Calls(errandv1connect.RunServiceLogsProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	close(restarted)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	(<-done).want(t, 17, "before\nafter\n", "")
}

func TestRunExitCodeForEveryEnd(t *testing.T) {
	code := func(c int32) *int32 { return &c }
	type end struct {
		status errandv1.Status
		reason errandv1.Reason
		code   *int32
		want   int
		told   string // part of stderr; empty means nothing at all
	}
	ends := []end{
		{errandv1.Status_STATUS_SUCCEEDED, errandv1.Reason_REASON_UNSPECIFIED, code(0), 0, ""},
		{errandv1.Status_STATUS_SUCCEEDED, errandv1.Reason_REASON_UNSPECIFIED, code(0), 0, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE, code(17), 17, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE, code(124), 124, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE, code(255), 255, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE, code(256), 125, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE, code(0), 125, ""},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_SIGNAL, code(139), 139, "SIGNAL"},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_OOM_KILLED, code(137), 137, "OOM_KILLED"},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_NOT_FOUND, nil, 127, "NOT_FOUND"},
		{errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_NOT_EXECUTABLE, nil, 126, "NOT_EXECUTABLE"},
		{errandv1.Status_STATUS_TIMED_OUT, errandv1.Reason_REASON_TIMEOUT, code(143), 124, "TIMED_OUT: TIMEOUT"},
		{errandv1.Status_STATUS_TIMED_OUT, errandv1.Reason_REASON_START_DEADLINE, nil, 125, "START_DEADLINE"},
		{errandv1.Status_STATUS_CANCELED, errandv1.Reason_REASON_CANCELED, code(0), 130, "CANCELED"},
		{errandv1.Status_STATUS_SKIPPED, errandv1.Reason_REASON_UNSPECIFIED, nil, 125, "SKIPPED"},
	}
	for number := range errandv1.Reason_name {
		switch reason := errandv1.Reason(number); reason {
		case errandv1.Reason_REASON_NOT_FOUND, errandv1.Reason_REASON_NOT_EXECUTABLE:
		default:
			ends = append(ends, end{errandv1.Status_STATUS_FAILED, reason, nil, 125, "FAILED"})
		}
	}
	for _, e := range ends {
		t.Run(fmt.Sprintf("%s %s", e.status, e.reason), func(t *testing.T) {
			s := startFake(t, func(s *fakeapi.Server) {
				s.Script = func(l *fakeapi.Live) {
					if e.code != nil {
						l.Start()
						l.Write(toStdout, "out")
					}
					l.End(e.status, e.reason, "", e.code)
				}
			})
			got := newInvocation(t, s.URL()).run("run", "busybox")
			if got.code != e.want {
				t.Errorf("exit code %d, want %d", got.code, e.want)
			}
			if e.told == "" && got.stderr != "" || !strings.Contains(got.stderr, e.told) {
				t.Errorf("stderr %q, want %q", got.stderr, e.told)
			}
			if e.code != nil && got.stdout != "out" {
				t.Errorf("stdout %q", got.stdout)
			}
		})
	}
}

func TestRunTellsWhyACommandDidNotRun(t *testing.T) {
	script := func(l *fakeapi.Live) {
		l.End(errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_NOT_FOUND, "exec \"nope\": not found\x1b[2J", nil)
	}
	s := startFake(t, func(s *fakeapi.Server) { s.Script = script })
	got := newInvocation(t, s.URL()).run("run", "busybox", "--", "nope")
	id := s.Runs()[0].Run().GetId()
	got.want(t, 127, "", "errand: run "+id+" FAILED: NOT_FOUND: exec \"nope\": not found\ufffd[2J\n")

	got = newInvocation(t, s.URL()).run("run", "-o", "json", "busybox", "--", "nope")
	got.wantError(t, 127, `{"error":{"code":"NOT_FOUND","message":"run r.default.`)
}

func TestRunDetachedPrintsOnlyTheID(t *testing.T) {
	s := startFake(t, nil)
	got := newInvocation(t, s.URL()).run("run", "-d", "busybox", "--", "sleep", "60")
	got.want(t, 0, s.Runs()[0].Run().GetId()+"\n", "")
}

func TestRunSendsEveryFlag(t *testing.T) {
	s := startFake(t, nil)
	i := newInvocation(t, s.URL())
	i.environ = append(i.environ, "MINE=own")
	file := writeFile(t, "env", "# comment\nA=file\nB=b c=d \nMINE\n")
	got := i.run("run", "-d", "--name", "nightly", "--app", "shop", "--env", "A=flag", "--env-file", file, "--workdir", "/w",
		"--user", "1:2", "--cpu", "0.5", "--memory", "64MiB", "--timeout", "1h30m", "--start-deadline", "2m", "--stop-grace", "0s",
		"--label", "commit=1=2", "--driver", "containerd", "--idempotency-key", "k1", "--pids-limit", "9", "--read-only",
		"busybox", "--", "sh", "-c", "a --name b")
	if got.code != 0 {
		t.Fatal(got.stderr)
	}
	run := s.Runs()[0].Run()
	spec := run.GetSpec()
	checks := map[string]bool{
		"name": run.GetName() == "nightly", "app": run.GetApp() == "shop", "label": run.GetLabels()["commit"] == "1=2",
		"env": fmt.Sprint(spec.GetEnv()) == "map[A:flag B:b c=d  MINE:own]", "workdir": spec.GetWorkingDir() == "/w",
		"user": spec.GetUser() == "1:2", "cpu": spec.GetCpuMillis() == 500, "memory": spec.GetMemoryBytes() == 64<<20,
		"timeout":        spec.GetTimeout().AsDuration() == 90*time.Minute,
		"start deadline": spec.GetStartDeadline().AsDuration() == 2*time.Minute,
		"stop grace":     spec.GetStopGrace() != nil && spec.GetStopGrace().AsDuration() == 0,
		"driver":         spec.GetDriver() == "containerd", "pids": spec.GetPidsLimit() == 9, "read-only": spec.GetReadOnlyRoot(),
		"image": spec.GetImage() == "busybox", "command": strings.Join(spec.GetCommand(), "|") == "sh|-c|a --name b",
	}
	for what, ok := range checks {
		if !ok {
			t.Errorf("%s was not sent: %v", what, run)
		}
	}
	again := i.run("run", "-d", "--idempotency-key", "k1", "busybox")
	again.want(t, 0, got.stdout, "")
}

func TestRunWithDriverProcessTakesNoImage(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	newInvocation(t, s.URL()).run("run", "--driver", "process", "--", "echo", "hi").want(t, 17, "out\n", "err\n")
	spec := s.Runs()[0].Run().GetSpec()
	if spec.GetImage() != "" || strings.Join(spec.GetCommand(), " ") != "echo hi" {
		t.Errorf("spec %v", spec)
	}
}

func TestRunSaysWhenTheLogIsIncomplete(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			l.Write(toStdout, "x\n")
			l.EndLog(&errandv1.LogEnd{DroppedBytes: 42})
			l.Exit(0)
		}
	})
	got := newInvocation(t, s.URL()).run("run", "busybox")
	if got.code != 0 || got.stdout != "x\n" || !strings.Contains(got.stderr, "not complete: 42 bytes") {
		t.Errorf("%+v", got)
	}
}

// closedPipe is a reader that went away.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestRunSaysHowToFindTheRunWhenNobodyReadsItsOutput(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			l.Write(toStdout, "x\n")
			<-l.Closed()
		}
	})
	var stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	code := Execute(ctx, []string{"run", "--address", s.URL(), "busybox"}, strings.NewReader(""), closedPipe{}, &stderr, nil)
	if code != ExitPipe || !strings.Contains(stderr.String(), "goes on") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

func TestRunReportsAFailingStdout(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	var stderr bytes.Buffer
	code := Execute(t.Context(), []string{"run", "--address", s.URL(), "busybox"}, strings.NewReader(""), failingWriter{}, &stderr, nil)
	if code != ExitErrand || !strings.Contains(stderr.String(), "no space") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

var _ io.Writer = failingWriter{}

func TestRunTellsWhereOutputIsMissing(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			l.Write(toStdout, "x\n")
			l.Drop(42)
			l.Write(toStdout, "y\n")
			l.EndLog(&errandv1.LogEnd{DroppedBytes: 42})
			l.Exit(0)
		}
	})
	got := newInvocation(t, s.URL()).run("run", "busybox")
	got.want(t, 0, "x\ny\n", "errand: up to 42 bytes of the output are missing here: dropped by the log's size limit or a full disk, or removed since\n")
}

func TestRunThatNeverStartedHasNoIncompleteLog(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Place()
			l.EndLog(&errandv1.LogEnd{})
			l.End(errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_IMAGE_NOT_FOUND, "no image", nil)
		}
	})
	got := newInvocation(t, s.URL()).run("run", "nope")
	got.want(t, 125, "", "errand: run "+s.Runs()[0].Run().GetId()+" FAILED: IMAGE_NOT_FOUND: no image\n")
}

func TestRunGivesTheExitCodeAlthoughItsLogCanNotBeRead(t *testing.T) {
	for name, err := range map[string]error{
		"elsewhere":  fakeapi.Fail(connect.CodeUnavailable, "LOG_ELSEWHERE", "the log is on node n2"),
		"unreadable": fakeapi.Fail(connect.CodeInternal, "LOG_UNREADABLE", "the log has a hole"),
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, func(s *fakeapi.Server) { s.Script, s.LogError = seventeen, func() error { return err } })
			got := newInvocation(t, s.URL()).run("run", "busybox")
			got.wantError(t, 17, "could not be read to its end: the log")
			newInvocation(t, s.URL()).run("logs", "-f", s.Runs()[0].Run().GetId()).wantError(t, 125, "errand: the log")
			if calls := s.Calls(errandv1connect.RunServiceLogsProcedure); calls != 2 {
				t.Errorf("the log was asked for %d times, want once by each command", calls)
			}
		})
	}
}

// Somebody at a terminal is told once what a run waits for; a script is not, whose
// stderr is the command's own.
func TestRunThatWaitsSaysWhyAtATerminal(t *testing.T) {
	var s *fakeapi.Server
	s = startFake(t, func(server *fakeapi.Server) {
		server.Script = func(l *fakeapi.Live) {
			l.Hold("node n1: no room:\n8 of 8 sandboxes\x1b[31m")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if len(s.Runs()) == 1 {
				_ = s.Await(ctx, func() bool { return s.Calls(errandv1connect.RunServiceGetProcedure) > 2 })
			}
			seventeen(l)
		}
	})
	i := newInvocation(t, s.URL())
	i.holdPause = time.Millisecond
	got := i.run("run", "busybox")
	id := s.Runs()[0].Run().GetId()
	if note := "errand: run " + id + " waits: node n1: no room: 8 of 8 sandboxes"; got.code != 17 || got.stdout != "out\n" ||
		strings.Count(got.stderr, note) != 1 || strings.Contains(got.stderr, "\x1b") {
		t.Errorf("%+v, want once %q", got, note)
	}
	i.holdPause = 0
	i.run("run", "busybox").want(t, 17, "out\n", "err\n")
}

func TestRunThatWaitsForItsImageSaysHowFarItIsAtATerminal(t *testing.T) {
	var s *fakeapi.Server
	s = startFake(t, func(server *fakeapi.Server) {
		server.Script = func(l *fakeapi.Live) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = s.Await(ctx, func() bool { return s.Calls(errandv1connect.RunServiceExplainProcedure) > 0 })
			// The next look comes once that answer was told.
			looks := s.Calls(errandv1connect.RunServiceGetProcedure)
			_ = s.Await(ctx, func() bool { return s.Calls(errandv1connect.RunServiceGetProcedure) > looks })
			seventeen(l)
		}
	})
	s.Causes = map[string][]*errandv1.Cause{"": {
		{Code: "PLACED", Message: "attempt 1 is on node n1"}, {Code: "PULLING", Message: "node n1 pulls image busybox: 3.0 MiB of 9.0 MiB"},
	}}
	i := newInvocation(t, s.URL())
	i.holdPause = time.Millisecond
	got := i.run("run", "busybox")
	if note := " waits: node n1 pulls image busybox: 3.0 MiB of 9.0 MiB\n"; got.code != 17 || got.stdout != "out\n" || strings.Count(got.stderr, note) != 1 {
		t.Errorf("%+v, want once %q", got, note)
	}
}

func TestHelpAndVersionAreFoundWhereTheyAreLookedFor(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--version"}, "errand "},
		{[]string{"--version", "-o", "json"}, `"version"`},
		{[]string{"help"}, "Available Commands"},
		{[]string{"help", "run"}, "--stop-grace"},
		{[]string{"help", "image", "import"}, "errand image import"},
		{[]string{"completion"}, "bash"},
		{[]string{"completion", "bash"}, "__start_errand"},
	} {
		if got := i.run(c.args...); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, c.want) {
			t.Errorf("%v: code %d, stderr %q, stdout %q; want %q", c.args, got.code, got.stderr, got.stdout, c.want)
		}
	}
}
