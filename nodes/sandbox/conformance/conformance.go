// Package conformance is the one suite that every sandbox driver passes. It uses
// real commands wherever the driver runs any.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Harness is a driver under test.
type Harness struct {
	// Open opens the driver on the harness' state, again after Close.
	Open func(t *testing.T) sandbox.Driver
	// Prepare completes a spec: image, user. It may be nil.
	Prepare func(spec *sandbox.Spec)
	// LogRoot is a directory for logs.
	LogRoot string
	// Programmed is set by the null driver: there are no commands, see package null.
	Programmed bool
	// LimitsMemory and LimitsPids tell that limits work here.
	LimitsMemory, LimitsPids bool
	// NotExecutable is the path of a plain file in the sandbox, NoInterpreter that of
	// an executable whose interpreter is missing, NoFormat that of an executable in
	// no known format.
	NotExecutable, NoInterpreter, NoFormat string
	// Leaks lists what is left on the machine of this harness' sandboxes, logs aside:
	// processes, cgroups, mounts, files. It may be nil.
	Leaks func(t *testing.T) []string
}

// deadline bounds every single call; it is reached only by a defect.
const deadline = 30 * time.Second

// Run runs the suite. make is called once per test, and its harness serves only it.
func Run(t *testing.T, make func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*suite)
		// real tests need a command, and memory and pids a working limit.
		real, memory, pids bool
	}{
		{name: "exit codes are those of the command", test: (*suite).exitCodes},
		{name: "a death by signal is not an exit code", test: (*suite).signals},
		{name: "a command that can not start has a reason and no code", test: (*suite).startErrors, real: true},
		{name: "a sandbox that could not start leaves nothing", test: (*suite).failedStart},
		{name: "a sandbox starts once", test: (*suite).startsOnce},
		{name: "unknown sandboxes", test: (*suite).unknown},
		{name: "TERM ends a plain sleep", test: (*suite).term},
		{name: "Kill ends a command that ignores TERM", test: (*suite).kill},
		{name: "Kill before the start", test: (*suite).killCreated},
		{name: "Wait ends with its context", test: (*suite).waitContext},
		{name: "Wait answers many and again", test: (*suite).waitMany},
		{name: "Remove may be repeated", test: (*suite).removeAgain},
		{name: "List tells state and proof", test: (*suite).list},
		{name: "sandboxes survive the driver", test: (*suite).survive},
		{name: "environment, arguments and working directory arrive", test: (*suite).environment, real: true},
		{name: "the log is byte-exact", test: (*suite).logExact, real: true},
		{name: "a long binary line is byte-exact", test: (*suite).logBinary, real: true},
		{name: "output of 300,000 lines is complete", test: (*suite).logLarge, real: true},
		{name: "a short log is complete and has an end mark", test: (*suite).logShort},
		{name: "a process that outlives the command is left over and dies", test: (*suite).leftover, real: true},
		{name: "a command is given input", test: (*suite).inputPlain, real: true},
		{name: "a command has a terminal", test: (*suite).inputTerminal, real: true},
		{name: "signals and sizes do not wait for input that is not read", test: (*suite).inputUnread, real: true},
		{name: "a command beside runs like the sandbox's own", test: (*suite).execPlain, real: true},
		{name: "a command beside has a terminal", test: (*suite).execTerminal, real: true},
		{name: "a command beside ends with whoever asked and with the sandbox", test: (*suite).execEnds, real: true},
		{name: "a command beside after the driver's restart", test: (*suite).execAfterRestart, real: true},
		{name: "the root of a sandbox is seen", test: (*suite).root, real: true},
		{name: "a stopped command dies", test: (*suite).stopped, real: true},
		{name: "a fork bomb dies", test: (*suite).forkBomb, real: true, pids: true},
		{name: "a kill for want of memory is told", test: (*suite).oom, real: true, memory: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := make(t)
			if (c.real && h.Programmed) || (c.memory && !h.LimitsMemory) || (c.pids && !h.LimitsPids) {
				t.Skip("not a capability of this driver here")
			}
			s := &suite{t: t, h: h, d: h.Open(t)}
			defer s.finish()
			c.test(s)
		})
	}
}

type suite struct {
	t *testing.T
	h Harness
	d sandbox.Driver
	// ids are the sandboxes that were created.
	ids []string
}

var sequence atomic.Int64

// finish removes what the test left and counts what stays.
func (s *suite) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for _, id := range s.ids {
		if _, err := s.d.Kill(ctx, id); err != nil {
			s.t.Errorf("kill at the end: %v", err)
		}
		if err := s.d.Remove(ctx, id); err != nil {
			s.t.Errorf("remove at the end: %v", err)
		}
	}
	infos, err := s.d.List(ctx)
	if err != nil || len(infos) != 0 {
		s.t.Errorf("at the end List has %v, %v", infos, err)
	}
	if err := s.d.Close(); err != nil {
		s.t.Errorf("close: %v", err)
	}
	if s.h.Leaks == nil {
		return
	}
	for _, leak := range s.h.Leaks(s.t) {
		s.t.Errorf("left over: %s", leak)
	}
}

// context bounds one test.
func (s *suite) context() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), deadline)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *suite) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// spec makes a spec for a command.
func (s *suite) spec(command ...string) sandbox.Spec {
	run := fmt.Sprintf("r.conformance.%d-%d", time.Now().UnixNano(), sequence.Add(1))
	spec := sandbox.Spec{
		ID: records.SandboxID(run, 1, 1), Run: run, App: "conformance", Attempt: 1, Placement: 1,
		NodeUUID:   "5f0c1d7e-0000-4000-8000-000000000000",
		StartToken: []byte("token of " + run), SpecHash: []byte("hash of " + run),
		LogPath: logs.Path(s.h.LogRoot, run, 1),
		Spec: &recordv1.Spec{
			Command: command,
			Env:     []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	}
	if s.h.Prepare != nil {
		s.h.Prepare(&spec)
	}
	return spec
}

// create creates a sandbox for a spec.
func (s *suite) create(spec sandbox.Spec) {
	s.t.Helper()
	s.check("make directory of logs", os.MkdirAll(filepath.Dir(spec.LogPath), 0o700))
	s.ids = append(s.ids, spec.ID)
	s.check("create", s.d.Create(s.context(), spec))
}

// start creates and starts a sandbox.
func (s *suite) start(spec sandbox.Spec) {
	s.t.Helper()
	s.create(spec)
	before := time.Now()
	at, err := s.d.Start(s.context(), spec.ID)
	s.check("start", err)
	if at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		s.t.Errorf("started at %v, asked at %v", at, before)
	}
}

func (s *suite) wait(id string) sandbox.Exit {
	s.t.Helper()
	exit, err := s.d.Wait(s.context(), id)
	s.check("wait", err)
	return exit
}

// sh is a shell script, or for a programmed driver the words.
func (s *suite) sh(script string, words ...string) sandbox.Spec {
	if s.h.Programmed {
		return s.spec(words...)
	}
	return s.spec("sh", "-c", script)
}

// sleep is a plain command that takes an hour.
func (s *suite) sleep() sandbox.Spec {
	if s.h.Programmed {
		return s.spec("after=1h")
	}
	return s.spec("sleep", "3600")
}

// isExit checks an exit by code or by signal.
func (s *suite) isExit(exit sandbox.Exit, code, signal int32) {
	s.t.Helper()
	if exit.Code == nil || *exit.Code != code || exit.Signal != signal {
		s.t.Fatalf("exit is %s, want code %d, signal %d", show(exit), code, signal)
	}
	if exit.At.IsZero() || exit.StartedAt.IsZero() || exit.At.Before(exit.StartedAt) {
		s.t.Errorf("started %v, ended %v", exit.StartedAt, exit.At)
	}
}

func show(exit sandbox.Exit) string {
	code := "none"
	if exit.Code != nil {
		code = fmt.Sprint(*exit.Code)
	}
	return fmt.Sprintf("{code %s, signal %d, oom %v, reason %v, %q, source %q}", code, exit.Signal, exit.OOMKilled, exit.Reason, exit.Message, exit.Source)
}

// isStartError checks for a StartError of a reason.
func (s *suite) isStartError(err error, reason recordv1.Reason) {
	s.t.Helper()
	var start *sandbox.StartError
	if !errors.As(err, &start) {
		s.t.Fatalf("error is %v, want a StartError", err)
	}
	if start.Reason != reason || !start.Permanent || start.Message == "" {
		s.t.Fatalf("error is %+v, want %v for good, with a message", start, reason)
	}
}

// teardown is what a node does after an exit, up to the report.
func (s *suite) teardown(id string) (leftover bool) {
	s.t.Helper()
	leftover, err := s.d.Kill(s.context(), id)
	s.check("kill", err)
	complete, err := s.d.Flush(s.context(), id)
	s.check("flush", err)
	if !complete {
		s.t.Error("the log is not complete")
	}
	if exit, err := s.d.Wait(s.context(), id); err == nil && exit.Settled && (exit.Leftover != leftover || exit.LogComplete != complete) {
		s.t.Errorf("exit is settled with leftover %v and log complete %v, kill and flush say %v and %v", exit.Leftover, exit.LogComplete, leftover, complete)
	}
	return leftover
}

// log returns what a sandbox wrote.
func (s *suite) log(spec sandbox.Spec) (stdout, stderr []byte) {
	s.t.Helper()
	r, err := logs.OpenReader(spec.LogPath, logs.Options{Follow: true})
	s.check("open log", err)
	defer func() { _ = r.Close() }() // it was only read
	ctx := s.context()
	for {
		chunk, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		s.check("read log", err)
		if chunk.Stream == logs.Stderr {
			stderr = append(stderr, chunk.Data...)
		} else {
			stdout = append(stdout, chunk.Data...)
		}
	}
	if end, ok := r.End(); !ok || !end.Complete || end.Dropped != 0 {
		s.t.Errorf("end mark %+v, %v", end, ok)
	}
	return stdout, stderr
}
