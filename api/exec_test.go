package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// inside is a node's sandboxes, in which commands are Go functions.
type inside struct {
	root string

	mu     sync.Mutex
	driver string
	id     string
	last   sandbox.Exec
	do     func(context.Context, sandbox.Exec) (sandbox.ExecEnd, error)
	open   func() (sandbox.Input, error)
}

func (i *inside) Exec(ctx context.Context, driver, id string, exec sandbox.Exec) (sandbox.ExecEnd, error) {
	i.mu.Lock()
	i.driver, i.id, i.last = driver, id, exec
	do := i.do
	i.mu.Unlock()
	return do(ctx, exec)
}

// OpenInput gives the input of a sandbox: what is given it is noted.
func (i *inside) OpenInput(_ context.Context, driver, id string) (sandbox.Input, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.driver, i.id = driver, id
	if i.open == nil {
		return nil, records.Errorf(records.ClassInvalid, "the driver gives commands no input")
	}
	return i.open()
}

func (i *inside) RootOf(context.Context, string, string) (string, error) { return i.root, nil }

const insideRun = "r.shop.inside"

// newInsideRig has a run that runs on this node, and a client of the API.
func newInsideRig(t *testing.T) (*rig, *inside, *client.Client) {
	t.Helper()
	in := &inside{root: t.TempDir()}
	r := newRig(t, func(config *api.Config) { config.Sandboxes = in })
	r.put(insideRun, func(run *recordv1.Run) {
		run.Status, run.Attempt = recordv1.Status_STATUS_RUNNING, 2
		run.Spec.Driver = "process"
		placed("n1", 3)(run)
	})
	c, err := client.New(client.Config{Address: r.url, Token: testToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return r, in, c
}

func start(command ...string) *errandv1.ExecStart {
	return &errandv1.ExecStart{Id: insideRun, Command: command}
}

func TestExecGivesTheCommandWhatTheCallerSends(t *testing.T) {
	r, in, c := newInsideRig(t)
	in.do = func(_ context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
		e.Started()
		size, signal := <-e.Control, <-e.Control
		if size.Resize == nil || *size.Resize != (sandbox.TerminalSize{Rows: 5, Columns: 6}) || signal.Signal != 15 {
			t.Errorf("control brought %+v and %+v", size, signal)
		}
		input, err := io.ReadAll(e.Stdin)
		if err != nil {
			t.Errorf("stdin: %v", err)
		}
		_, _ = e.Stdout.Write(bytes.ToUpper(input))
		_, _ = io.WriteString(e.Stderr, "aside")
		return sandbox.ExecEnd{Code: 143, Signal: 15}, nil
	}
	var stdout, stderr bytes.Buffer
	text := strings.Repeat("input ", 100_000)
	reader, writer := io.Pipe()
	resizes, signals := make(chan *errandv1.TerminalSize), make(chan int32)
	request := start("cat", "-")
	request.Env = map[string]string{"B": "2", "A": "1"}
	request.WorkingDir, request.User = "/srv", "www:www"
	request.Terminal = &errandv1.TerminalSize{Rows: 24, Columns: 80}
	exited, err := c.Exec(r.ctx, client.Exec{
		Start: request, Stdin: reader, Stdout: &stdout, Stderr: &stderr, Resizes: resizes, Signals: signals,
		Started: func() {
			go func() {
				resizes <- &errandv1.TerminalSize{Rows: 5, Columns: 6}
				signals <- 15
				_, _ = io.WriteString(writer, text)
				_ = writer.Close()
			}()
		},
	})
	if err != nil || exited.GetCode() != 143 || exited.GetSignal() != 15 {
		t.Fatalf("exec: %v, %v", exited, err)
	}
	if stdout.String() != strings.ToUpper(text) || stderr.String() != "aside" {
		t.Errorf("%d bytes of stdout, stderr %q", stdout.Len(), stderr.String())
	}
	if in.driver != "process" || in.id != records.SandboxID(insideRun, 2, 3) {
		t.Errorf("it ran in sandbox %s of driver %s", in.id, in.driver)
	}
	if e := in.last; strings.Join(e.Env, " ") != "A=1 B=2" || e.WorkingDir != "/srv" || e.User != "www:www" || *e.Terminal != (sandbox.TerminalSize{Rows: 24, Columns: 80}) {
		t.Errorf("the driver was given %+v", e)
	}
}

// TestExecEndsWithItsCaller: what runs beside a run is nobody's once its caller has
// gone, or once the node stops.
func TestExecEndsWithItsCaller(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(r *rig, leave context.CancelFunc)
		code codes.Code
	}{
		{name: "the caller leaves", end: func(_ *rig, leave context.CancelFunc) { leave() }},
		{name: "the caller leaves when nothing is said", end: func(_ *rig, leave context.CancelFunc) { time.AfterFunc(50*time.Millisecond, leave) }},
		{name: "the node stops", end: func(r *rig, _ context.CancelFunc) { r.server.Stop() }, code: "NODE_STOPPING"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, in, c := newInsideRig(t)
			killed := make(chan struct{})
			in.do = func(ctx context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
				e.Started()
				<-ctx.Done()
				close(killed)
				return sandbox.ExecEnd{Code: 137}, nil
			}
			ctx, leave := context.WithCancel(r.ctx)
			defer leave()
			_, err := c.Exec(ctx, client.Exec{Start: start("sleep", "1h"), Started: func() { test.end(r, leave) }})
			select {
			case <-killed:
			case <-r.ctx.Done():
				t.Fatal("the command goes on")
			}
			if err == nil || test.code != "" && client.CodeOf(err) != test.code {
				t.Errorf("the caller was told %v", err)
			}
		})
	}
}

// TestExecThatDoesNotReadItsInputEnds: nobody waits for somebody to read.
func TestExecThatDoesNotReadItsInputEnds(t *testing.T) {
	r, in, c := newInsideRig(t)
	in.do = func(_ context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
		e.Started()
		_, _ = io.CopyN(io.Discard, e.Stdin, 10)
		return sandbox.ExecEnd{Code: 1}, nil
	}
	exited, err := c.Exec(r.ctx, client.Exec{Start: start("true"), Stdin: endless{}})
	if err != nil || exited.GetCode() != 1 {
		t.Fatalf("exec: %v, %v", exited, err)
	}
}

// A command is not left to go by a part of its input, nor its caller to think that it had all.
func TestExecWhoseInputFailsIsEndedAndSaysSo(t *testing.T) {
	r, in, c := newInsideRig(t)
	ended := make(chan struct{})
	in.do = func(ctx context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
		e.Started()
		<-ctx.Done()
		close(ended)
		return sandbox.ExecEnd{Code: 137}, nil
	}
	failed := errors.New("input/output error")
	_, err := c.Exec(r.ctx, client.Exec{Start: start("tee", "file"), Stdin: io.MultiReader(strings.NewReader("a part"), iotest.ErrReader(failed))})
	var lost *client.InputLostError
	if !errors.As(err, &lost) || !errors.Is(err, failed) || lost.Unsure != int64(len("a part")) {
		t.Errorf("the caller was told %v", err)
	}
	select {
	case <-ended:
	case <-r.ctx.Done():
		t.Error("the command goes on")
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestExecIsRefusedInWords(t *testing.T) {
	r, in, c := newInsideRig(t)
	in.do = func(context.Context, sandbox.Exec) (sandbox.ExecEnd, error) {
		return sandbox.ExecEnd{}, records.Errorf(records.ClassConflict, "sandbox does not run")
	}
	r.put("r.shop.elsewhere", func(run *recordv1.Run) {
		run.Status = recordv1.Status_STATUS_RUNNING
		placed("n2", 1)(run)
	})
	r.put("r.shop.waiting", func(*recordv1.Run) {})
	for _, test := range []struct {
		name  string
		start *errandv1.ExecStart
		code  codes.Code
		says  string
	}{
		{name: "no command", start: &errandv1.ExecStart{Id: insideRun}, code: "INVALID_FIELD", says: "start.command"},
		{name: "no run", start: &errandv1.ExecStart{Command: []string{"true"}}, code: "INVALID_FIELD", says: "id"},
		{name: "unknown run", start: &errandv1.ExecStart{Id: "r.shop.nosuch", Command: []string{"true"}}, code: "RUN_NOT_FOUND"},
		{name: "a run that waits", start: &errandv1.ExecStart{Id: "r.shop.waiting", Command: []string{"true"}}, code: "RUN_NOT_RUNNING", says: "PENDING"},
		{name: "a run elsewhere", start: &errandv1.ExecStart{Id: "r.shop.elsewhere", Command: []string{"true"}}, code: "RUN_ELSEWHERE", says: "n2"},
		{name: "a run that has just ended", start: start("true"), code: "RUN_NOT_RUNNING", says: "just ended"},
		{name: "relative directory", start: &errandv1.ExecStart{Id: insideRun, Command: []string{"true"}, WorkingDir: "tmp"}, code: "INVALID_FIELD", says: "start.working_dir"},
		{name: "bad variable", start: &errandv1.ExecStart{Id: insideRun, Command: []string{"true"}, Env: map[string]string{"A B": ""}}, code: "INVALID_FIELD", says: "start.env"},
		{name: "terminal of a million rows", start: &errandv1.ExecStart{Id: insideRun, Command: []string{"true"}, Terminal: &errandv1.TerminalSize{Rows: 1 << 20}}, code: "INVALID_FIELD", says: "start.terminal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.Exec(r.ctx, client.Exec{Start: test.start})
			var failed *client.Error
			if !errors.As(err, &failed) || failed.Code != test.code {
				t.Fatalf("got %v; want %s", err, test.code)
			}
			text := failed.Message
			for _, field := range failed.Fields {
				text += " " + field.GetField() + " " + field.GetText()
			}
			if !strings.Contains(text, test.says) {
				t.Errorf("got %q; want %q in it", text, test.says)
			}
		})
	}
	stream, err := r.runs.Exec(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&errandv1.ExecRequest{Stdin: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a call that begins with input: %v", err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
}

func TestCopyFromSendsAnArchiveOrSaysWhyNot(t *testing.T) {
	r, in, c := newInsideRig(t)
	content := bytes.Repeat([]byte("errand"), 100_000)
	if err := os.WriteFile(filepath.Join(in.root, "report"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := c.CopyFrom(r.ctx, insideRun, "/report", &archive); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(archive.Bytes(), content) {
		t.Errorf("an archive of %d bytes without the file", archive.Len())
	}
	for path, code := range map[string]codes.Code{"/absent": "FILE_NOT_FOUND", "report": "INVALID_FIELD", "": "INVALID_FIELD"} {
		if err := c.CopyFrom(r.ctx, insideRun, path, io.Discard); client.CodeOf(err) != code {
			t.Errorf("%q: %v; want %s", path, err, code)
		}
	}
	r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, time.Now().UnixMilli())
	if err := c.CopyFrom(r.ctx, insideRun, "/report", io.Discard); client.CodeOf(err) != "RUN_NOT_RUNNING" {
		t.Errorf("out of a run that has ended: %v", err)
	}
}
