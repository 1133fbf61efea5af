package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Changes returns what becomes of runs from the request's position on: that of a List,
// so that nothing is missed in between, or from now on without one. Each answer has the
// position after it, and some have nothing else. Over a connection that breaks and a
// node that restarts it goes on from there: no change is missed, and none comes twice.
// Where that can not be promised any more the error is codes.ListAgain; then List, and go
// on from its position. An error is the last element. The reading ends with the loop.
func (c *Client) Changes(ctx context.Context, request *errandv1.RunChangesRequest) iter.Seq2[*errandv1.RunChangesResponse, error] {
	return func(yield func(*errandv1.RunChangesResponse, error) bool) {
		asked := proto.CloneOf(request)
		t := c.trial("watch runs")
		for {
			done, err := c.changesOnce(ctx, t, asked, yield)
			if done {
				return
			}
			if err == nil {
				err = errCut // a stream of changes has no end
			}
			if err := t.next(ctx, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// changesOnce reads one stream and keeps its position in the request; done tells that
// nothing more is wanted.
func (c *Client) changesOnce(
	ctx context.Context, t *trial, request *errandv1.RunChangesRequest, yield func(*errandv1.RunChangesResponse, error) bool,
) (done bool, err error) {
	heed := c.attend(ctx)
	defer heed.end()
	stream, err := c.services.Runs.Changes(heed.ctx, request)
	if err != nil {
		return false, heed.why(err)
	}
	defer func() { _ = stream.Close() }() // all that it said was read
	for stream.Receive() {
		t.heard()
		request.Position = stream.Msg().GetPosition()
		if !yield(stream.Msg(), nil) {
			return true, nil
		}
	}
	return false, heed.why(stream.Err())
}
