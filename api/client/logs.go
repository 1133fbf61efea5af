package client

import (
	"context"
	"iter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// stalledMax is how often in a row a followed log may end without an end mark
	// and without a byte once its run has ended.
	stalledMax = 3
	// endGrace is how long the rest of a log is looked for after its run has ended
	// and the log could not be read.
	endGrace = 5 * time.Second
)

// Logs returns what an attempt wrote, a few chunks at a time and in order, each with
// the number of the attempt; the last element has the end. With Follow it goes on until
// the attempt has ended, waits for a run that has no attempt yet, and survives lost
// connections and restarts of the node without losing a chunk or showing one twice.
// Without Follow it ends where the log ends now, perhaps without an end. An error is
// the last element. The reading ends with the loop; a chunk is the caller's.
func (c *Client) Logs(ctx context.Context, request *errandv1.LogsRequest) iter.Seq2[*errandv1.LogsResponse, error] {
	return func(yield func(*errandv1.LogsResponse, error) bool) {
		l := &logReading{c: c, t: c.trial("read log of run " + request.GetId()), request: &errandv1.LogsRequest{}, yield: yield}
		proto.Merge(l.request, request)
		if err := l.read(ctx); err != nil {
			yield(nil, err)
		}
	}
}

// logReading reads one attempt's log across lost connections. Each message that
// arrived moves the offset at which the next connection goes on.
type logReading struct {
	c       *Client
	t       *trial
	request *errandv1.LogsRequest
	yield   func(*errandv1.LogsResponse, error) bool
	// moved tells that the connection brought chunks, done that nothing more is
	// wanted: there was the end, or the loop was left.
	moved, done bool
}

func (l *logReading) read(ctx context.Context) error {
	for stalled := 0; ; {
		err := l.once(ctx)
		switch {
		case l.done, err == nil && !l.request.GetFollow():
			return nil
		case ctx.Err() != nil:
			return ended(ctx, l.t.op, err)
		}
		if l.moved {
			stalled = 0
		}
		if err != nil && !(l.request.GetFollow() && l.request.GetAttempt() == 0 && noLogYet(err)) {
			if err := l.again(ctx, err); err != nil {
				return err
			}
			continue
		}
		over, waitErr := l.runEnded(ctx)
		if waitErr != nil {
			return waitErr
		}
		if !over {
			continue
		}
		if stalled++; stalled >= stalledMax {
			if err == nil {
				return nil
			}
			return l.c.failure(l.t.op, err)
		}
	}
}

// again returns nil when reading is worth another try. A log that lies on a node which
// is gone does not come back soon: once the run has ended there is nothing to stay for.
func (l *logReading) again(ctx context.Context, err error) error {
	if failed := l.t.next(ctx, err); failed != nil {
		return failed
	}
	if !connect.IsWireError(err) || l.t.began.IsZero() || time.Since(l.t.began) <= endGrace {
		return nil
	}
	run, getErr := l.c.Once().Get(ctx, l.request.GetId())
	if getErr == nil && Terminal(run.GetStatus()) {
		return l.c.failure(l.t.op, err)
	}
	return nil
}

// once reads until the end mark or the end of the connection.
func (l *logReading) once(ctx context.Context) error {
	heed := l.c.attend(ctx)
	defer heed.end()
	l.moved = false
	stream, err := l.c.services.Runs.Logs(heed.ctx, l.request)
	if err != nil {
		return heed.why(err)
	}
	defer func() { _ = stream.Close() }() // all that it said was read
	for stream.Receive() {
		l.t.heard()
		message := stream.Msg()
		if message.GetAttempt() != 0 {
			// A later connection must not slip to a later attempt.
			l.request.Attempt = message.GetAttempt()
		}
		if chunks := message.GetChunks(); len(chunks) > 0 {
			l.moved = true
			l.request.Offset = chunks[len(chunks)-1].GetNextOffset()
			l.request.TailLines = 0
		}
		if !l.yield(message, nil) || message.GetEnd() != nil {
			l.done = true
			return nil
		}
	}
	return heed.why(stream.Err())
}

// runEnded waits a little for the run's end: a log that ends early belongs to a run
// that has no attempt yet, or to a node that is about to stop.
func (l *logReading) runEnded(ctx context.Context) (bool, error) {
	response, err := l.c.wait(ctx, l.t, &errandv1.WaitRunRequest{Id: l.request.GetId(), Timeout: durationpb.New(time.Second)})
	if err != nil {
		return false, err
	}
	if !response.GetTerminal() && !pause(ctx, PatienceDefault.PauseMin) {
		return false, ended(ctx, l.t.op, nil)
	}
	return response.GetTerminal(), nil
}

// noLogYet tells whether the node said that the run has no log, or none yet.
func noLogYet(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	code := connect.CodeOf(err)
	return code == connect.CodeNotFound || code == connect.CodeFailedPrecondition
}
