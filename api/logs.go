package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// errMoved ends the reading of a log when the record says that the attempt has
// ended or is placed elsewhere.
var errMoved = errors.New("the attempt has moved")

// place is where an attempt's log is, as far as the record knows.
type place struct {
	// placed is false while the attempt was never given to a node.
	placed    bool
	node      string
	placement int32
	// ended tells that nothing more will be written. A log is complete before its
	// record says so.
	ended bool
}

// placeOf finds the log of one attempt of a run.
func placeOf(run *recordv1.Run, attempt int32) place {
	at := place{ended: records.Terminal(run.GetStatus()) || attempt < run.GetAttempt()}
	for _, made := range run.GetAttempts() {
		if made.GetNumber() == attempt && made.GetNode() != "" {
			at.placed, at.node, at.placement = true, made.GetNode(), made.GetPlacement()
		}
	}
	if now := run.GetPlacement(); attempt == run.GetAttempt() && now != nil {
		at.placed, at.node, at.placement = true, now.GetNode(), now.GetNumber()
	}
	return at
}

// started tells whether the command of an attempt was started, as far as the record
// knows.
func started(run *recordv1.Run, attempt int32) bool {
	for _, made := range run.GetAttempts() {
		if made.GetNumber() == attempt && made.GetStartedAt() > 0 {
			return true
		}
	}
	return attempt == run.GetAttempt() && run.GetStartedAt() > 0
}

func checkLogs(request *errandv1.LogsRequest) []Violation {
	c := &checker{}
	if request.GetAttempt() < 0 {
		c.add("attempt", "must not be below 0, is %d", request.GetAttempt())
	}
	if request.GetOffset() < 0 {
		c.add("offset", "must not be below 0, is %d", request.GetOffset())
	}
	switch {
	case request.GetTailLines() < 0:
		c.add("tail_lines", "must not be below 0, is %d", request.GetTailLines())
	case request.GetTailLines() > 0 && request.GetOffset() > 0:
		c.add("tail_lines", "can not be given together with an offset")
	}
	if since := request.GetSince(); since != nil && since.CheckValid() != nil {
		c.add("since", "is not a time")
	}
	return c.violations
}

// Logs implements errandv1connect.RunServiceHandler.
func (s *runService) Logs(ctx context.Context, request *errandv1.LogsRequest, stream *connect.ServerStream[errandv1.LogsResponse]) error {
	if violations := checkLogs(request); len(violations) > 0 {
		return invalid(violations)
	}
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return err
	}
	attempt := request.GetAttempt()
	if attempt == 0 {
		attempt = found.run.GetAttempt()
	}
	if attempt > found.run.GetAttempt() {
		return fail(codes.AttemptNotFound, "run %s has no attempt %d: its last is %d", found.run.GetId(), attempt, found.run.GetAttempt())
	}
	l := &logCopy{
		server: s.Server, stream: stream, known: found, attempt: attempt, follow: request.GetFollow(),
		from: LogRequest{Run: found.run.GetId(), Attempt: attempt, Offset: request.GetOffset(), TailLines: request.GetTailLines()},
	}
	if since := request.GetSince(); since != nil {
		l.from.Since = since.AsTime()
	}
	if l.follow {
		l.watch = s.watchRun(found)
		defer l.watch.stop()
	}
	return l.run(ctx)
}

// logCopy copies one attempt's log to a client.
type logCopy struct {
	server  *Server
	stream  *connect.ServerStream[errandv1.LogsResponse]
	attempt int32
	follow  bool
	// from is where to go on reading.
	from LogRequest
	// watch is nil unless following.
	watch *runWatch
	known foundRun
}

// run copies what is there and, when following, what comes until the record says
// that the attempt has ended. An end mark alone is no end: that of a placement
// which never started the command is followed by another placement's output.
func (l *logCopy) run(ctx context.Context) error {
	for {
		at := placeOf(l.known.run, l.attempt)
		if at.placed {
			if at.node != l.server.config.Node {
				return fail(codes.LogElsewhere, "the log of run %s is on node %s: ask that node", l.from.Run, at.node)
			}
			switch done, err := l.copy(ctx, at); {
			case errors.Is(err, ErrNoLog):
				if at.ended && started(l.known.run, l.attempt) {
					return l.lost(at)
				}
			case done || err != nil:
				return err
			case l.follow && placeOf(l.known.run, l.attempt) != at:
				continue
			}
		}
		if at.ended {
			return l.sendEnd(&errandv1.LogEnd{})
		}
		if !l.follow {
			return nil
		}
		var err error
		if l.known, err = l.watch.next(ctx); err != nil {
			return err
		}
	}
}

// copy copies what is written while the attempt is at its place; done tells that
// the end was sent.
func (l *logCopy) copy(ctx context.Context, at place) (done bool, err error) {
	l.from.Follow = l.follow && !at.ended
	reading, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	reader, err := l.server.config.Logs.Open(reading, l.from)
	if err != nil {
		return false, l.readError(ctx, err)
	}
	defer func() { _ = reader.Close() }() // it was only read
	if l.from.Follow {
		observed := l.observe(reading, leave, at)
		defer func() { leave(nil); <-observed }()
	}
	for {
		batch, err := reader.Next(reading)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return false, nil
		case errors.Is(err, ErrNoLog):
			return false, ErrNoLog
		case errors.Is(err, fs.ErrNotExist):
			return false, l.lost(at)
		case errors.Is(context.Cause(reading), errMoved):
			return false, nil
		case ctx.Err() == nil && reading.Err() != nil:
			return false, context.Cause(reading)
		default:
			return false, l.readError(ctx, err)
		}
		marked := batch.End != nil
		if !at.ended {
			batch.End = nil
		}
		if err := l.send(batch); err != nil || marked {
			return batch.End != nil, err
		}
	}
}

// observe ends the reading when the attempt is not at its place any more. What it
// learns is in l.known once the returned channel is closed.
func (l *logCopy) observe(reading context.Context, leave context.CancelCauseFunc, at place) <-chan struct{} {
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		for {
			newer, err := l.watch.next(reading)
			if err != nil {
				leave(err)
				return
			}
			l.known = newer
			if placeOf(newer.run, l.attempt) != at {
				leave(errMoved)
				return
			}
		}
	}()
	return observed
}

// recorded tells whether the log of an attempt was complete at its end, as far as the
// record knows.
func recorded(run *recordv1.Run, attempt int32) bool {
	return slices.ContainsFunc(run.GetAttempts(), func(made *recordv1.Attempt) bool {
		return made.GetNumber() == attempt && made.GetLogComplete()
	})
}

// lost is the answer where a command was started and there is no log of it. It may
// never have had one: its end was seen by nobody who could have kept one.
func (l *logCopy) lost(at place) error {
	if l.from.Offset == 0 && !recorded(l.known.run, l.attempt) {
		return fail(codes.LogLost, "no output of run %s was recorded: node %s has no log of it, and had no complete one at its end", l.from.Run, at.node)
	}
	return fail(codes.LogLost, "nothing is left of the log of run %s: its files are not on node %s any more", l.from.Run, at.node)
}

func (l *logCopy) readError(ctx context.Context, err error) error {
	if ended := contextError(ctx); ended != nil {
		return ended
	}
	return fail(codes.LogUnreadable, "read the log of run %s: %w", l.from.Run, err)
}

func (l *logCopy) send(batch LogBatch) error {
	if len(batch.Chunks) == 0 && batch.End == nil {
		return nil
	}
	response := &errandv1.LogsResponse{Attempt: l.attempt}
	for _, chunk := range batch.Chunks {
		shown := &errandv1.LogChunk{Stream: chunk.Stream, Data: chunk.Data, NextOffset: chunk.Next, DroppedBytes: chunk.Dropped}
		if !chunk.At.IsZero() {
			shown.At = timestamppb.New(chunk.At)
		}
		response.Chunks = append(response.Chunks, shown)
		l.from.Offset, l.from.TailLines = chunk.Next, 0
	}
	if batch.End != nil {
		response.End = &errandv1.LogEnd{Complete: batch.End.Complete, DroppedBytes: batch.End.DroppedBytes}
	}
	return l.stream.Send(response)
}

func (l *logCopy) sendEnd(end *errandv1.LogEnd) error {
	return l.stream.Send(&errandv1.LogsResponse{Attempt: l.attempt, End: end})
}
