package api

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

const (
	// attendEvery is how often a run that ends with its client is told that somebody is
	// attached to it. Several may be lost before its actor gives the client up.
	attendEvery = 3 * time.Second
	// openEvery is how often the input is looked for of a command that runs and whose
	// driver does not know it, or not any more.
	openEvery = 500 * time.Millisecond
	// attachStdinMax bounds the input in one message.
	attachStdinMax = 64 << 10
	// attachClientMax bounds the name of a caller.
	attachClientMax = 64
)

// input checks what the command is given of an input.
func (c *checker) input(trigger errandv1.Trigger, spec *recordv1.Spec) {
	field := ""
	switch {
	case spec.GetStdin():
		field = "spec.stdin"
	case spec.GetTerminal():
		field = "spec.terminal"
	case trigger == errandv1.Trigger_TRIGGER_CONSOLE:
		c.add("spec.stdin", "is missing: a CONSOLE run ends with the client that is attached to its input, and has stdin or terminal")
		return
	default:
		return
	}
	if spec.GetDriver() == driverNull {
		c.add(field, "can not be given with the null driver, which runs no command")
	}
	if spec.GetRetry() != nil && unattended(trigger) {
		c.add(field, "can not be given together with spec.retry: what one attempt has read is gone for the next")
	}
}

// inputs are the calls of Attach that have the input of a run on this node, one for
// each run. The zero value has none.
type inputs struct {
	mu   sync.Mutex
	held map[string]*inputHolder
}

type inputHolder struct {
	client string
	since  time.Time
	// leave ends the call, gone is closed when it does nothing more.
	leave context.CancelCauseFunc
	gone  chan struct{}
}

var errTaken = errors.New("another has taken the input")

// hold gives the caller the input of a run until release is called. Who has it already
// keeps it, unless the caller takes it or is the same client, come again over another
// connection; then hold returns when the earlier call does nothing more.
func (i *inputs) hold(ctx context.Context, run string, holder *inputHolder, take bool) (release func(), err error) {
	for {
		i.mu.Lock()
		other := i.held[run]
		if other == nil {
			if i.held == nil {
				i.held = map[string]*inputHolder{}
			}
			i.held[run] = holder
			i.mu.Unlock()
			return func() { i.release(run, holder) }, nil
		}
		i.mu.Unlock()
		if !take && (holder.client == "" || other.client != holder.client) {
			return nil, fail(codes.RunAttached, "somebody is attached to run %s since %s, and only one gives it input: take it from them, or follow the log",
				run, other.since.UTC().Format(time.RFC3339))
		}
		other.leave(errTaken)
		select {
		case <-other.gone:
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
	}
}

func (i *inputs) release(run string, holder *inputHolder) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.held, run)
	close(holder.gone)
}

// attachable returns what keeps a run from being attached to.
func (s *Server) attachable(run *recordv1.Run) error {
	placement := run.GetPlacement()
	switch {
	case records.Terminal(run.GetStatus()):
		return fail(codes.RunTerminal, "run %s has ended already: it is %s", run.GetId(), statusWord(publicStatus(run.GetStatus())))
	case !run.GetSpec().GetStdin() && !run.GetSpec().GetTerminal():
		return fail(codes.RunNoInput, "the command of run %s has no input: it was made without stdin and terminal", run.GetId())
	case placement != nil && placement.GetNode() != s.config.Node:
		return fail(codes.RunElsewhere, "run %s is on node %s: ask that node", run.GetId(), placement.GetNode())
	case s.config.Sandboxes == nil:
		return fail(codes.NotSupported, "this node lets nobody into its sandboxes")
	}
	return nil
}

// Attach implements errandv1connect.RunServiceHandler.
func (s *runService) Attach(ctx context.Context, stream *connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return invalid([]Violation{{Field: "start", Text: "is missing: the first message has it"}})
	}
	c := &checker{}
	if c.words("start.client", start.GetClient(), attachClientMax); len(c.violations) > 0 {
		return invalid(c.violations)
	}
	found, watch, err := s.findAndWatch(ctx, start.GetId())
	if err != nil {
		return err
	}
	defer watch.stop()
	if err := s.attachable(found.run); err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	holder := &inputHolder{client: start.GetClient(), since: s.config.Now(), leave: leave, gone: make(chan struct{})}
	release, err := s.inputs.hold(ctx, found.run.GetId(), holder, start.GetTake())
	if err != nil {
		return err
	}
	defer release()
	call := &attachCall{server: s.Server, stream: stream, leave: leave, opened: make(chan struct{}), backlog: newBacklog()}
	err = call.run(ctx, found, watch)
	var refused *connect.Error
	switch cause := context.Cause(ctx); {
	case err == nil:
		return call.send(&errandv1.AttachResponse{Ended: true})
	case errors.Is(cause, errTaken):
		return fail(codes.RunAttached, "another has taken the input of run %s", found.run.GetId())
	case errors.As(cause, &refused):
		return refused // what the caller has sent
	default:
		return err
	}
}

// attachCall is one call of Attach that has the run's input.
type attachCall struct {
	server *Server
	stream *connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]
	leave  context.CancelCauseFunc
	// input is set when opened is closed.
	input  sandbox.Input
	opened chan struct{}
	// backlog is what the command has not been given yet.
	backlog *backlog

	mu sync.Mutex
}

// run gives the command what the caller sends until the run has ended.
func (c *attachCall) run(ctx context.Context, found foundRun, watch *runWatch) error {
	var under sync.WaitGroup
	under.Go(func() { c.receive(ctx) })
	under.Go(func() { c.give(ctx) })
	if found.run.GetTrigger() == recordv1.Trigger_TRIGGER_CONSOLE {
		under.Go(func() { c.attend(ctx, found.run.GetId()) })
	}
	err := c.follow(ctx, found, watch)
	c.leave(err)
	if c.input != nil {
		_ = c.input.Close() // which ends a write that the command does not read
	}
	c.backlog.close()
	endOfBody(ctx)
	under.Wait()
	return err
}

// follow opens the input when the command runs, and returns when the run has ended.
func (c *attachCall) follow(ctx context.Context, found foundRun, watch *runWatch) error {
	for !records.Terminal(found.run.GetStatus()) {
		if c.input == nil && found.run.GetStatus() == recordv1.Status_STATUS_RUNNING {
			if err := c.open(ctx, found.run); err != nil {
				return err
			}
		}
		looking, cancel := ctx, context.CancelFunc(func() {})
		if c.input == nil && found.run.GetStatus() == recordv1.Status_STATUS_RUNNING {
			looking, cancel = context.WithTimeout(ctx, openEvery)
		}
		newer, err := watch.next(looking)
		again := looking.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			found = newer
		case !again:
			return err
		}
	}
	return nil
}

// open opens the input, unless the command has ended by now or is not known yet.
func (c *attachCall) open(ctx context.Context, run *recordv1.Run) error {
	if err := c.server.attachable(run); err != nil {
		return err
	}
	id := records.SandboxID(run.GetId(), run.GetAttempt(), run.GetPlacement().GetNumber())
	input, err := c.server.config.Sandboxes.OpenInput(ctx, run.GetSpec().GetDriver(), id)
	switch class := records.ClassOf(err); {
	case err == nil:
	case class == records.ClassConflict, class == records.ClassNotFound:
		return nil
	case class == records.ClassInvalid:
		return fail(codes.NotSupported, "%w", err)
	default:
		return storeError(ctx, "open the input", err)
	}
	c.input = input
	context.AfterFunc(ctx, func() { _ = input.Close() })
	if err := c.send(&errandv1.AttachResponse{Open: true, Window: inputWindow}); err != nil {
		return err
	}
	close(c.opened)
	return nil
}

// receive takes what the caller sends. Sizes and signals it gives to the command, input to
// the backlog: a caller who sends more than the command reads, and more than the window,
// waits.
func (c *attachCall) receive(ctx context.Context) {
	for {
		message, err := c.stream.Receive()
		if errors.Is(err, io.EOF) {
			return // nothing more is sent; the caller is there still
		}
		if err == nil {
			err = checkAttach(message)
		}
		if err != nil {
			c.leave(err)
			return
		}
		select {
		case <-c.opened:
		case <-ctx.Done():
			return
		}
		// Whatever fails, the command has ended, as the record is about to say.
		_, _ = c.backlog.Write(message.GetStdin())
		if size := sizeOf(message.GetResize()); size != nil {
			_ = c.input.Resize(size.Rows, size.Columns)
		}
		if signal := message.GetSignal(); signal > 0 {
			_ = c.input.Signal(int(signal))
		}
		if message.GetEnd() {
			c.backlog.end()
		}
	}
}

// give gives the command what is in the backlog, and tells the caller how much that was.
func (c *attachCall) give(ctx context.Context) {
	select {
	case <-c.opened:
	case <-ctx.Done():
		return
	}
	taken := int64(0)
	for buffer := make([]byte, attachStdinMax); ; {
		n, err := c.backlog.Read(buffer)
		if errors.Is(err, io.EOF) {
			_ = c.input.End()
		}
		if err != nil {
			return
		}
		if _, err := c.input.Write(buffer[:n]); err != nil {
			continue
		}
		taken += int64(n)
		if c.send(&errandv1.AttachResponse{Taken: taken}) != nil {
			return
		}
	}
}

// checkAttach refuses what no client of this API sends after its first message.
func checkAttach(message *errandv1.AttachRequest) error {
	c := &checker{}
	if message.GetStart() != nil {
		c.add("start", "is for the first message")
	}
	if n := len(message.GetStdin()); n > attachStdinMax {
		c.add("stdin", "has %d bytes, the most is %d", n, attachStdinMax)
	}
	c.terminal("resize", message.GetResize())
	if signal := message.GetSignal(); signal < 0 || signal > signalMax {
		c.add("signal", "must be 1 to %d, is %d", signalMax, signal)
	}
	if len(c.violations) > 0 {
		return invalid(c.violations)
	}
	return nil
}

// attend tells the run's actor that its client is there, until the call ends.
func (c *attachCall) attend(ctx context.Context, run string) {
	again := time.NewTicker(attendEvery)
	defer again.Stop()
	for {
		c.server.config.Router.Tell(actors.KindRun, run, &actorv1.Attended{Run: run})
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *attachCall) send(message *errandv1.AttachResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.stream.Send(message)
	if err != nil {
		c.leave(err)
	}
	return err
}
