package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Exec is a command to run beside that of a run which is running.
type Exec struct {
	// Start names the run and the command. Its Stdin is set if there is one here.
	Start *errandv1.ExecStart
	// Stdin is nil for none. At its end the command sees the end of its input; another error
	// ends the call with an InputLostError, and the command is killed as when the context
	// ends: it should not go by a part of its input, but may come to its end just before. It
	// may still be read of when the call has returned, until it ends.
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.duplex.Exec(ctx)
	if err != nil {
		return nil, c.failure("run the command", err)
	}
	defer endWith(ctx, stream)()
	exec.Start.Stdin = exec.Stdin != nil
	if err := stream.Send(&errandv1.ExecRequest{Start: exec.Start}); err != nil {
		_, err = stream.Receive() // which has what the node has said
		return nil, c.failure("run the command", err)
	}
	feed := newFeed(ctx, exec.Stdin, exec.Resizes, exec.Signals)
	var giving sync.WaitGroup
	defer func() { cancel(nil); giving.Wait(); _ = stream.CloseResponse() }()
	for {
		message, err := stream.Receive()
		if err != nil && errors.Is(context.Cause(ctx), errLeaving) {
			return nil, &InputLostError{Unsure: feed.lost(), Err: feed.left}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, c.failure("run the command", err)
		}
		if message.GetStarted() {
			if exec.Started != nil {
				exec.Started()
			}
			feed.begin(message.GetWindow())
			giving.Go(func() { giveExec(ctx, cancel, stream, feed) })
		}
		if taken := message.GetTaken(); taken > 0 {
			feed.take(taken)
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

type execStream = connect.BidiStreamForClientSimple[errandv1.ExecRequest, errandv1.ExecResponse]

// giveExec sends what there is to send until the context ends, or ends it when the input
// fails. What can not be sent shows in what is received.
func giveExec(ctx context.Context, leave context.CancelCauseFunc, stream *execStream, feed *feed) {
	for {
		g, ok := feed.next(ctx)
		end := g.piece.err != nil
		switch {
		case !ok:
			return
		case end && !errors.Is(g.piece.err, io.EOF):
			leave(errLeaving)
			return
		case end && feed.window == 0: // a node that knows no other end
			_ = stream.CloseRequest()
			return
		case stream.Send(&errandv1.ExecRequest{Stdin: g.piece.data, End: end, Resize: g.resize, Signal: g.signal}) != nil:
			return
		}
	}
}

// CopyFrom writes a tar archive of what lies at an absolute path of a run that is
// running. A call is never repeated.
func (c *Client) CopyFrom(ctx context.Context, id, path string, w io.Writer) error {
	heed := c.attend(ctx)
	defer heed.end()
	const op = "copy out of the run"
	stream, err := c.services.Runs.CopyFrom(heed.ctx, &errandv1.CopyFromRequest{Id: id, Path: path})
	if err != nil {
		return c.failure(op, heed.why(err))
	}
	defer func() { _ = stream.Close() }() // it was only read
	for stream.Receive() {
		c.hearing.note()
		if _, err := w.Write(stream.Msg().GetData()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return c.failure(op, heed.why(err))
	}
	return nil
}
