package api

import (
	"bufio"
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox/files"
)

// copyPieceMax is how much of an archive one message holds.
const copyPieceMax = 256 << 10

// CopyFrom implements errandv1connect.RunServiceHandler.
func (s *runService) CopyFrom(ctx context.Context, request *errandv1.CopyFromRequest, stream *connect.ServerStream[errandv1.CopyFromResponse]) error {
	c := &checker{}
	switch path := request.GetPath(); {
	case !c.text("path", path):
	case len(path) > pathBytesMax:
		c.add("path", "is %d bytes long, the most is %d", len(path), pathBytesMax)
	case path == "" || path[0] != '/':
		c.add("path", "must be an absolute path, is %s", quoteShort(path))
	}
	if len(c.violations) > 0 {
		return invalid(c.violations)
	}
	driver, id, err := s.runningSandbox(ctx, request.GetId())
	if err != nil {
		return err
	}
	root, err := s.config.Sandboxes.RootOf(ctx, driver, id)
	if err != nil {
		return insideError(ctx, err)
	}
	var broken error
	pieces := bufio.NewWriterSize(writerFunc(func(p []byte) (int, error) {
		for piece := range slices.Chunk(p, copyPieceMax) {
			if broken = stream.Send(&errandv1.CopyFromResponse{Data: piece}); broken != nil {
				return 0, broken
			}
		}
		return len(p), nil
	}), copyPieceMax)
	if err = files.Archive(ctx, root, request.GetPath(), pieces); err == nil {
		err = pieces.Flush()
	}
	switch {
	case err == nil || broken != nil:
		return broken
	case errors.Is(err, files.ErrNotFound):
		return fail(codes.FileNotFound, "copy out of the run: %w", err)
	case contextError(ctx) != nil:
		return contextError(ctx)
	}
	// A sandbox that has ended has no root any more, which shows as any error.
	if _, _, gone := s.runningSandbox(ctx, request.GetId()); gone != nil {
		return gone
	}
	return fail(codes.FileUnreadable, "copy out of the run: %w", err)
}
