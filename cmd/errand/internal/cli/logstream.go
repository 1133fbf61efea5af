package cli

import (
	"context"
	"time"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// stalledMax is how often in a row a followed log may end without an end mark
// and without a byte once its run has ended.
const stalledMax = 3

// logStream reads one attempt's log across lost connections. Each message that
// arrived moves the offset at which the next connection goes on, so that no
// chunk is lost or shown twice.
type logStream struct {
	c       *connection
	request *errandv1.LogsRequest
	// show takes the chunks in order; it may block. Its error ends the reading.
	show func([]*errandv1.LogChunk) error
	// persistent keeps trying when the node can not be reached.
	persistent bool
}

// read returns the log's end, which is nil when the log has none: the attempt
// goes on and was not to be followed, or there never was one. After it,
// request.Attempt is the attempt that was read.
func (s *logStream) read(ctx context.Context, o *outage) (*errandv1.LogEnd, error) {
	for stalled := 0; ; {
		end, moved, err := s.once(ctx, o)
		if end != nil {
			return end, nil
		}
		if moved {
			stalled = 0
		}
		if err == nil && !s.request.GetFollow() {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		switch {
		case err == nil, s.request.GetFollow() && s.request.GetAttempt() == 0 && noLogYet(err):
			ended, waitErr := s.ended(ctx, o)
			if waitErr != nil {
				return nil, waitErr
			}
			if ended {
				if stalled++; stalled >= stalledMax {
					return nil, s.c.explain(err)
				}
			}
		case !s.persistent:
			return nil, s.c.explain(err)
		default:
			if err := o.next(ctx, err); err != nil {
				return nil, err
			}
			// A log that lies on a node which is gone does not come back soon. Once
			// the run has ended there is nothing else to stay for.
			if connect.IsWireError(err) && !o.began.IsZero() && time.Since(o.began) > endGrace && s.over(ctx) {
				return nil, s.c.explain(err)
			}
		}
	}
}

// once reads until the end mark or the end of the connection.
func (s *logStream) once(ctx context.Context, o *outage) (end *errandv1.LogEnd, moved bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.c.runs.Logs(ctx, s.request)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = stream.Close() }() // all that it said was read
	for stream.Receive() {
		o.over()
		message := stream.Msg()
		if message.GetAttempt() != 0 {
			// A later connection must not slip to a later attempt.
			s.request.Attempt = message.GetAttempt()
		}
		if chunks := message.GetChunks(); len(chunks) > 0 {
			if err := s.show(chunks); err != nil {
				return nil, true, err
			}
			moved = true
			s.request.Offset = chunks[len(chunks)-1].GetNextOffset()
			s.request.TailLines = 0
		}
		if message.GetEnd() != nil {
			return message.GetEnd(), moved, nil
		}
	}
	return nil, moved, stream.Err()
}

// ended waits a little for the run's end: a log that ends early belongs to a run
// that has no attempt yet, or to a node that is about to stop.
func (s *logStream) ended(ctx context.Context, o *outage) (bool, error) {
	run, err := waitRun(ctx, o, s.request.GetId(), time.Second)
	if err != nil {
		return false, err
	}
	if !terminal(run.GetStatus()) {
		return false, pause(ctx, s.c.patience.pauseMin)
	}
	return true, nil
}

// over tells whether the run is known to have ended.
func (s *logStream) over(ctx context.Context) bool {
	found, err := call(ctx, s.c, s.c.runs.Get, &errandv1.GetRunRequest{Id: s.request.GetId()})
	return err == nil && terminal(found.GetRun().GetStatus())
}

// noLogYet tells whether the node said that the run has no log, or none yet.
func noLogYet(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	code := connect.CodeOf(err)
	return code == connect.CodeNotFound || code == connect.CodeFailedPrecondition
}
