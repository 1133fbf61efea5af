package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// inputPieceMax is how much of the input one message holds.
const inputPieceMax = 32 << 10

// Exec is a command to run beside that of a run which is running.
type Exec struct {
	// Start names the run and the command. Its Stdin is set if there is one here.
	Start *errandv1.ExecStart
	// Stdin is nil for none. It may still be read of when the call has returned, until
	// it ends.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resizes bring the size of the terminal when it changes, Signals what the command
	// is sent. Either may be nil.
	Resizes <-chan *errandv1.TerminalSize
	Signals <-chan int32
	// Started is called when the command runs; it may be nil.
	Started func()
}

// Exec runs a command beside that of a run and returns how it ended. The command is
// killed when the context ends or the connection breaks. A call is never repeated. The
// connection must speak HTTP/2, as a node does.
func (c *Client) Exec(ctx context.Context, exec Exec) (*errandv1.ExecExited, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.duplex.Exec(ctx)
	if err != nil {
		return nil, c.failure("run the command", err)
	}
	defer endWith(ctx, stream)()
	exec.Start.Stdin = exec.Stdin != nil
	call := &execCall{stream: stream}
	if err := call.send(&errandv1.ExecRequest{Start: exec.Start}); err != nil {
		_, err = stream.Receive() // which has what the node has said
		return nil, c.failure("run the command", err)
	}
	var controlling sync.WaitGroup
	controlling.Go(func() { call.control(ctx, exec) })
	defer func() { cancel(); controlling.Wait(); _ = stream.CloseResponse() }()
	go call.input(exec.Stdin)
	for {
		message, err := stream.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, c.failure("run the command", err)
		}
		if message.GetStarted() && exec.Started != nil {
			exec.Started()
		}
		if err := errors.Join(write(exec.Stdout, message.GetStdout()), write(exec.Stderr, message.GetStderr())); err != nil {
			return nil, err
		}
		if exited := message.GetExited(); exited != nil {
			return exited, nil
		}
	}
}

// endWith ends a call's request when the context ends. The transport looks at the
// context only between two pieces of the request, and of a caller who sends nothing none
// comes.
func endWith(ctx context.Context, stream interface{ CloseRequest() error }) (stop func()) {
	release := context.AfterFunc(ctx, func() { _ = stream.CloseRequest() }) // which also ends a Send
	return func() { release() }
}

func write(w io.Writer, p []byte) error {
	if len(p) == 0 || w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

type execCall struct {
	stream *connect.BidiStreamForClientSimple[errandv1.ExecRequest, errandv1.ExecResponse]

	mu sync.Mutex
}

func (c *execCall) send(message *errandv1.ExecRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream.Send(message)
}

// input sends what there is to read, and its end. What can not be sent shows in what
// is received.
func (c *execCall) input(from io.Reader) {
	if from != nil {
		buffer := make([]byte, inputPieceMax)
		for {
			n, err := from.Read(buffer)
			if n > 0 && c.send(&errandv1.ExecRequest{Stdin: append([]byte(nil), buffer[:n]...)}) != nil {
				return
			}
			if err != nil {
				break
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.stream.CloseRequest()
	}
}

// control sends sizes and signals until the context ends.
func (c *execCall) control(ctx context.Context, exec Exec) {
	for {
		var message *errandv1.ExecRequest
		select {
		case size, ok := <-exec.Resizes:
			if !ok {
				exec.Resizes = nil
				continue
			}
			message = &errandv1.ExecRequest{Resize: size}
		case signal, ok := <-exec.Signals:
			if !ok {
				exec.Signals = nil
				continue
			}
			message = &errandv1.ExecRequest{Signal: signal}
		case <-ctx.Done():
			return
		}
		if c.send(message) != nil {
			return
		}
	}
}

// CopyFrom writes a tar archive of what lies at an absolute path of a run that is
// running. A call is never repeated.
func (c *Client) CopyFrom(ctx context.Context, id, path string, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const op = "copy out of the run"
	stream, err := c.services.Runs.CopyFrom(ctx, &errandv1.CopyFromRequest{Id: id, Path: path})
	if err != nil {
		return c.failure(op, err)
	}
	defer func() { _ = stream.Close() }() // it was only read
	for stream.Receive() {
		if _, err := w.Write(stream.Msg().GetData()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return c.failure(op, err)
	}
	return nil
}
