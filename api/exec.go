package api

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Sandboxes are those of this node that run, for whoever looks into them.
type Sandboxes interface {
	// Exec is that of the driver's sandbox.Execs; a driver that can not is of
	// records.ClassInvalid.
	Exec(ctx context.Context, driver, id string, exec sandbox.Exec) (sandbox.ExecEnd, error)
	// RootOf is that of the driver's sandbox.Roots, likewise.
	RootOf(ctx context.Context, driver, id string) (string, error)
	// OpenInput is that of the driver's sandbox.Inputs, likewise.
	OpenInput(ctx context.Context, driver, id string) (sandbox.Input, error)
}

const (
	// execMessageMax bounds one message of the caller.
	execMessageMax = 4 << 20
	// execPieceMax bounds the output in one message.
	execPieceMax = 32 << 10
	// terminalMax bounds a terminal's rows and columns.
	terminalMax = 10_000
	// signalMax is the last of Linux's signals.
	signalMax = 64
)

// runningSandbox is where a run's command runs on this node.
func (s *Server) runningSandbox(ctx context.Context, text string) (driver, id string, err error) {
	found, err := s.find(ctx, text)
	if err != nil {
		return "", "", err
	}
	run := found.run
	placement := run.GetPlacement()
	switch {
	case run.GetStatus() != recordv1.Status_STATUS_RUNNING || placement == nil:
		return "", "", fail(codes.RunNotRunning, "run %s is %s: only a run that is RUNNING has a sandbox", run.GetId(), found.public().GetStatus().String()[len("STATUS_"):])
	case placement.GetNode() != s.config.Node:
		return "", "", fail(codes.RunElsewhere, "run %s runs on node %s: ask that node", run.GetId(), placement.GetNode())
	case s.config.Sandboxes == nil:
		return "", "", fail(codes.NotSupported, "this node lets nobody into its sandboxes")
	}
	return run.GetSpec().GetDriver(), records.SandboxID(run.GetId(), run.GetAttempt(), placement.GetNumber()), nil
}

// insideError explains what went wrong in a sandbox.
func insideError(ctx context.Context, err error) error {
	switch records.ClassOf(err) {
	case records.ClassConflict, records.ClassNotFound:
		return fail(codes.RunNotRunning, "the run has just ended")
	case records.ClassInvalid:
		return fail(codes.NotSupported, "%w", err)
	default:
		return storeError(ctx, "look into the sandbox", err)
	}
}

// checkExec returns what is wrong with the first message.
func checkExec(start *errandv1.ExecStart) []Violation {
	c := &checker{}
	if len(start.GetCommand()) == 0 {
		c.add("start.command", "is missing")
	}
	c.command(driverProcess, start.GetCommand())
	c.env(start.GetEnv())
	c.workingDir(start.GetWorkingDir())
	c.user(start.GetUser())
	c.terminal("start.terminal", start.GetTerminal())
	for i := range c.violations {
		if rest, ok := strings.CutPrefix(c.violations[i].Field, "spec."); ok {
			c.violations[i].Field = "start." + rest
		}
	}
	return slices.CompactFunc(c.violations, func(a, b Violation) bool { return a.Field == b.Field })
}

func (c *checker) terminal(field string, size *errandv1.TerminalSize) {
	if size.GetRows() > terminalMax || size.GetColumns() > terminalMax {
		c.add(field, "has more than %d rows or columns", terminalMax)
	}
}

// Exec implements errandv1connect.RunServiceHandler.
func (s *runService) Exec(ctx context.Context, stream *connect.BidiStream[errandv1.ExecRequest, errandv1.ExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return invalid([]Violation{{Field: "start", Text: "is missing: the first message has it"}})
	}
	if violations := checkExec(start); len(violations) > 0 {
		return invalid(violations)
	}
	driver, id, err := s.runningSandbox(ctx, start.GetId())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := &execCall{stream: stream, cancel: cancel, control: make(chan sandbox.ExecControl, 16), backlog: newBacklog()}
	exec := sandbox.Exec{
		Command: start.GetCommand(), WorkingDir: start.GetWorkingDir(), User: start.GetUser(),
		Stdout:  call.output(func(p []byte) *errandv1.ExecResponse { return &errandv1.ExecResponse{Stdout: p} }),
		Stderr:  call.output(func(p []byte) *errandv1.ExecResponse { return &errandv1.ExecResponse{Stderr: p} }),
		Started: func() { _ = call.send(&errandv1.ExecResponse{Started: true, Window: inputWindow}) },
		Control: call.control, Terminal: sizeOf(start.GetTerminal()),
	}
	for _, name := range slices.Sorted(maps.Keys(start.GetEnv())) {
		exec.Env = append(exec.Env, name+"="+start.GetEnv()[name])
	}
	if start.GetStdin() {
		exec.Stdin = call
	} else {
		call.backlog.close() // what is sent all the same goes nowhere
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		call.receive()
	}()
	end, err := s.config.Sandboxes.Exec(ctx, driver, id, exec)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = insideError(ctx, err)
	}
	call.backlog.close()
	endOfBody(ctx) // which ends the context too
	<-received
	defer call.end() // the driver may read on
	if err != nil {
		return err
	}
	return call.send(&errandv1.ExecResponse{Exited: &errandv1.ExecExited{Code: end.Code, Signal: end.Signal}})
}

// execCall is one call of Exec.
type execCall struct {
	stream  *connect.BidiStream[errandv1.ExecRequest, errandv1.ExecResponse]
	cancel  context.CancelCauseFunc
	control chan sandbox.ExecControl
	backlog *backlog
	// taken is how much of it the driver has read.
	taken int64

	mu sync.Mutex
	// over: the caller is told nothing more.
	over bool
}

// receive takes what the caller sends. The command does not outlive the caller.
func (c *execCall) receive() {
	for {
		message, err := c.stream.Receive()
		if errors.Is(err, io.EOF) {
			c.backlog.end()
			return
		}
		if err != nil {
			c.cancel(err)
			c.backlog.close()
			return
		}
		// A command that has none takes nothing.
		_, _ = c.backlog.Write(message.GetStdin())
		if size := sizeOf(message.GetResize()); size != nil {
			c.tell(sandbox.ExecControl{Resize: size})
		}
		if signal := message.GetSignal(); signal > 0 && signal <= signalMax {
			c.tell(sandbox.ExecControl{Signal: int(signal)})
		}
		if message.GetEnd() {
			c.backlog.end()
		}
	}
}

// Read is the command's stdin: it tells the caller what was read.
func (c *execCall) Read(p []byte) (int, error) {
	n, err := c.backlog.Read(p)
	if n > 0 {
		c.taken += int64(n)
		_ = c.send(&errandv1.ExecResponse{Taken: c.taken}) // which ends the call if it fails
	}
	return n, err
}

// tell drops what comes faster than it can be done: a terminal's size is sent again
// when it changes, and nobody means the seventeenth signal.
func (c *execCall) tell(control sandbox.ExecControl) {
	select {
	case c.control <- control:
	default:
	}
}

func (c *execCall) send(message *errandv1.ExecResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return io.ErrClosedPipe
	}
	c.over = message.GetExited() != nil
	err := c.stream.Send(message)
	if err != nil {
		c.cancel(err)
	}
	return err
}

func (c *execCall) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// output is a writer of one of the command's outputs.
func (c *execCall) output(wrap func([]byte) *errandv1.ExecResponse) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		written := 0
		for piece := range slices.Chunk(p, execPieceMax) {
			if err := c.send(wrap(piece)); err != nil {
				return written, err
			}
			written += len(piece)
		}
		return written, nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func sizeOf(size *errandv1.TerminalSize) *sandbox.TerminalSize {
	if size == nil {
		return nil
	}
	bounded := func(n uint32) uint16 { return uint16(min(n, terminalMax)) }
	return &sandbox.TerminalSize{Rows: bounded(size.GetRows()), Columns: bounded(size.GetColumns())}
}

// bodyKey is the context's key of what ends the reading of a call's request.
type bodyKey struct{}

// withEndOfBody lets the handler of a call end the reading of its request while it
// still answers.
func withEndOfBody(r *http.Request, body *timedBody) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), bodyKey{}, func() { body.deadline(time.Unix(1, 0)) }))
}

// endOfBody makes a read of the call's request return.
func endOfBody(ctx context.Context) {
	if end, ok := ctx.Value(bodyKey{}).(func()); ok {
		end()
	}
}

// openEnded are the calls whose requests last as long as the call.
var openEnded = map[string]bool{errandv1connect.RunServiceExecProcedure: true, errandv1connect.RunServiceAttachProcedure: true}
