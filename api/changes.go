package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// quietMax is how long a stream of changes is silent at most: then it tells its reader's
// position, which moves on with the store.
const quietMax = time.Minute

// Changes implements errandv1connect.RunServiceHandler.
func (s *runService) Changes(ctx context.Context, request *errandv1.RunChangesRequest, stream *connect.ServerStream[errandv1.RunChangesResponse]) error {
	wanted, _, violations := filterOf(&errandv1.ListRunsRequest{App: request.GetApp(), Name: request.GetName(), Labels: request.GetLabels()})
	since, violation, err := s.since(ctx, request.GetPosition())
	if violation != "" {
		violations = append(violations, Violation{Field: "position", Text: violation})
	}
	switch {
	case len(violations) > 0:
		return invalid(violations)
	case err != nil:
		return err
	}
	l, err := s.watches.listen(ctx, wanted.app, since)
	if err != nil {
		return err
	}
	defer l.leave()
	told := &errandv1.RunChangesResponse{}
	position, last := l.position(), time.Time{}
	for {
		// A reader learns its position at once, with each change, and now and then.
		if len(told.GetChanges()) > 0 || time.Since(last) >= s.quiet {
			if told.Position, err = s.at(ctx, position); err != nil {
				return err
			}
			if err := stream.Send(told); err != nil {
				return err
			}
			last = time.Now()
		}
		var changes []*change
		if changes, position, err = l.next(ctx, s.quiet); err != nil {
			return err
		}
		if told, err = wanted.tell(changes, request.GetHistory()); err != nil {
			return err
		}
	}
}

// since reads a caller's position: the revision, or what is wrong with it.
func (s *Server) since(ctx context.Context, text string) (revision int64, violation string, err error) {
	if text == "" {
		return 0, "", nil
	}
	given, err := parsePosition(text)
	if err != nil {
		return 0, err.Error(), nil
	}
	ours, err := s.at(ctx, given.revision)
	if err == nil && ours != given.String() {
		err = listAgain("the position is another store's, or that of an older copy of this one")
	}
	return given.revision, "", err
}

// tell makes the message of those changes that pass the filter, with the history of each
// run if that is wanted.
func (f filter) tell(changes []*change, history bool) (*errandv1.RunChangesResponse, error) {
	told := &errandv1.RunChangesResponse{}
	for _, c := range changes {
		run, err := c.public()
		if err != nil {
			return nil, fail(codes.Internal, "%w", err)
		}
		if !c.deleted && !f.passes(run) {
			continue
		}
		news := &errandv1.RunChange{Run: run, Deleted: c.deleted}
		if history && !c.deleted {
			if news.History, err = c.history(); err != nil {
				return nil, fail(codes.Internal, "%w", err)
			}
		}
		told.Changes = append(told.Changes, news)
	}
	return told, nil
}
