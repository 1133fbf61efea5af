package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Attach is somebody who gives a run's command input. What the command writes is in
// the run's log.
type Attach struct {
	// Run is its id or a beginning of it that no other run's has.
	Run string
	// Take takes the input from whoever has it.
	Take bool
	// Stdin is nil for none. At its end the command sees the end of its input, for good,
	// unless it has a terminal. Another error ends the call with it and tells the command
	// nothing: when the command has taken what was read before, or after two seconds; what
	// it has not taken by then is an InputLostError. It may still be read of when the call
	// has returned, until it ends.
	Stdin io.Reader
	// Typed is for a person, who sees what was lost: the call goes on after a break in
	// which the last of the input may have been. Without, it ends with InputLostError.
	Typed bool
	// Resizes bring the size of the terminal when it changes, the first of them the size
	// that it has; Signals what the command's process group is sent. Either may be nil.
	Resizes <-chan *errandv1.TerminalSize
	Signals <-chan int32
	// Open is called when the command can be given something: when it runs, and after
	// each break, with how many bytes may have been lost. It may be nil.
	Open func(again bool, unsure int64)
}

// flushMax is how long the command is waited for to take the rest of an input that ends
// the call.
const flushMax = 2 * time.Second

// errLeaving ends the connections of a call whose input ends it.
var errLeaving = errors.New("the input ends the call")

// InputLostError says that a connection broke, or the call ended, when input was on its
// way.
type InputLostError struct {
	// Unsure is how many of the last bytes the command may have been given, or not. Where the
	// input of an Exec has failed there may be none.
	Unsure int64
	// Err is how the connection broke, or why the input ended.
	Err error
}

// Error implements error.
func (e *InputLostError) Error() string {
	return fmt.Sprintf("the last %d bytes of the input may not have reached the command: %v", e.Unsure, e.Err)
}

// Unwrap returns Err.
func (e *InputLostError) Unwrap() error { return e.Err }

// Attach gives the run's command input from when it runs until the run has ended, and
// returns nil then. It goes on after lost connections and restarts of the node. When
// the context ends the run goes on, unless it is a CONSOLE one and nobody attaches again
// within 15 s. The connection must speak HTTP/2, as a node does.
func (c *Client) Attach(ctx context.Context, attach Attach) error {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attaching{
		c: c, t: c.trial("attach to run " + attach.Run), attach: attach,
		start: &errandv1.AttachStart{Id: attach.Run, Client: rand.Text(), Take: attach.Take},
		feed:  newFeed(ctx, attach.Stdin, attach.Resizes, attach.Signals),
	}
	var leaving sync.WaitGroup
	defer leaving.Wait()
	defer cancel(nil)
	leaving.Go(func() { a.leaveInTime(ctx, cancel) })
	for {
		err := a.once(ctx)
		switch {
		case err == nil, a.failed != nil:
			return a.failed
		case errors.Is(context.Cause(ctx), errLeaving):
			return a.left()
		case ctx.Err() != nil:
			return ended(ctx, a.t.op, err)
		}
		a.unsure += a.feed.unsure()
		a.feed.begin(0)
		if a.unsure > 0 && !attach.Typed {
			return &InputLostError{Unsure: a.unsure, Err: c.failure(a.t.op, err)}
		}
		err = a.t.next(ctx, err)
		if a.opened && CodeOf(err) == codes.RunTerminal {
			return nil // it ended when nobody was connected
		}
		if err != nil && errors.Is(context.Cause(ctx), errLeaving) {
			return a.left()
		}
		if err != nil {
			return err
		}
	}
}

// leaveInTime ends the call a while after its input has.
func (a *attaching) leaveInTime(ctx context.Context, leave context.CancelCauseFunc) {
	select {
	case <-a.feed.leaving:
	case <-ctx.Done():
		return
	}
	if a.feed.brought.Load() > 0 {
		flushing := time.NewTimer(flushMax)
		defer flushing.Stop()
		select {
		case <-flushing.C:
		case <-ctx.Done():
			return
		}
	}
	leave(errLeaving)
}

// left says why the input has ended, and how much of it may not have reached the command.
func (a *attaching) left() error {
	if lost := a.unsure + a.feed.lost(); lost > 0 {
		return &InputLostError{Unsure: lost, Err: a.feed.left}
	}
	return a.feed.left
}

// attaching is a call of Attach over as many connections as it takes.
type attaching struct {
	c      *Client
	t      *trial
	attach Attach
	start  *errandv1.AttachStart
	feed   *feed
	// opened: there was an open before.
	opened bool
	// size is the last one that was brought, over: the input has had its end.
	size *errandv1.TerminalSize
	over bool
	// failed is why the input ended, if that ends the call: stopped, once the command has
	// taken all that came before.
	failed, stopped error
	// unsure are the bytes of earlier connections that may be on their way to the command.
	unsure int64
}

// once is attached over one connection. It returns nil when the run has ended.
func (a *attaching) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.c.duplex.Attach(ctx)
	if err != nil {
		return err
	}
	defer endWith(ctx, stream)()
	var feeding sync.WaitGroup
	defer func() { cancel(); feeding.Wait(); _ = stream.CloseResponse() }()
	// What can not be sent shows in what is received.
	_ = stream.Send(&errandv1.AttachRequest{Start: a.start})
	for {
		message, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		a.t.heard()
		switch {
		case message.GetEnded():
			return nil
		case message.GetOpen():
			if a.attach.Open != nil {
				a.attach.Open(a.opened, a.unsure)
			}
			a.unsure = 0
			// Only the first one takes it: who has taken it since has it.
			a.opened, a.start.Take = true, false
			a.feed.begin(message.GetWindow())
			feeding.Go(func() {
				if a.give(ctx, stream) {
					cancel()
				}
			})
		case message.GetTaken() > 0:
			a.feed.take(message.GetTaken())
		}
	}
}

type attachStream = connect.BidiStreamForClientSimple[errandv1.AttachRequest, errandv1.AttachResponse]

// give sends what there is to send until the connection or the context ends. It returns
// true when the input has ended in a way that ends the call.
func (a *attaching) give(ctx context.Context, stream *attachStream) bool {
	if a.size != nil && stream.Send(&errandv1.AttachRequest{Resize: a.size}) != nil {
		return false
	}
	if a.over && stream.Send(&errandv1.AttachRequest{End: true}) != nil {
		return false
	}
	for {
		if a.stopped != nil {
			if a.feed.flush(ctx) {
				a.failed = a.stopped
			}
			return a.failed != nil
		}
		g, ok := a.feed.next(ctx)
		if !ok {
			return false
		}
		if g.resize != nil {
			a.size = g.resize
		}
		if err := g.piece.err; err != nil {
			if a.over = errors.Is(err, io.EOF); !a.over {
				a.stopped = err
				continue
			}
		}
		if stream.Send(&errandv1.AttachRequest{Stdin: g.piece.data, End: g.piece.err != nil, Resize: g.resize, Signal: g.signal}) != nil {
			return false
		}
	}
}
