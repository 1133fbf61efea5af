package fakeapi

import (
	"context"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// store is how the server's store is called in positions.
const store = "fake."

// note gives a state its revision and keeps it for Changes; the lock is held.
func (s *Server) note(run *errandv1.Run) {
	run.Revision = int64(len(s.past)) + 1
	s.past = append(s.past, proto.CloneOf(run))
}

// Forget lets go of all changes so far: who was told up to before is to list again.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten = len(s.past)
	s.announce()
}

// position is where Changes goes on.
func (s *Server) position() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store + strconv.Itoa(len(s.past))
}

// since returns the changes from a place on, unless they are forgotten.
func (s *Server) since(at int) ([]*errandv1.Run, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at < s.forgotten || at > len(s.past) {
		return nil, false
	}
	return s.past[at:], true
}

func (r *runService) Changes(ctx context.Context, request *errandv1.RunChangesRequest, stream *connect.ServerStream[errandv1.RunChangesResponse]) error {
	s := (*Server)(r)
	position := request.GetPosition()
	if position == "" {
		position = s.position()
	}
	at, err := strconv.Atoi(strings.TrimPrefix(position, store))
	if err != nil {
		return Fail(connect.CodeInvalidArgument, "INVALID_FIELD", "position: is not one", &errandv1.FieldViolation{Field: "position", Text: "is not one"})
	}
	wanted := &errandv1.ListRunsRequest{App: request.GetApp(), Name: request.GetName(), Labels: request.GetLabels()}
	told := &errandv1.RunChangesResponse{Position: position}
	for {
		if err := stream.Send(told); err != nil {
			return err
		}
		changed := func() bool { news, known := s.since(at); return !known || len(news) > 0 }
		if err := s.Await(ctx, changed); err != nil {
			return err
		}
		news, known := s.since(at)
		if !known {
			return Fail(connect.CodeOutOfRange, "LIST_AGAIN", "the changes since then are not known any more: list again")
		}
		told = &errandv1.RunChangesResponse{}
		for _, run := range news {
			if matches(run, wanted) {
				told.Changes = append(told.Changes, &errandv1.RunChange{Run: run})
			}
		}
		at += len(news)
		told.Position = store + strconv.Itoa(at)
	}
}
