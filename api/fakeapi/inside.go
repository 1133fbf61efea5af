package fakeapi

import (
	"context"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// A fake node has no sandboxes that anybody could look into.

func (r *runService) Exec(_ context.Context, stream *connect.BidiStream[errandv1.ExecRequest, errandv1.ExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	return r.noSandbox(first.GetStart().GetId())
}

func (r *runService) Attach(_ context.Context, stream *connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	return r.noSandbox(first.GetStart().GetId())
}

func (r *runService) CopyFrom(_ context.Context, request *errandv1.CopyFromRequest, _ *connect.ServerStream[errandv1.CopyFromResponse]) error {
	return r.noSandbox(request.GetId())
}

func (r *runService) noSandbox(id string) error {
	if _, err := r.find(id); err != nil {
		return err
	}
	return fail(connect.CodeUnimplemented, "this node lets nobody into its sandboxes")
}
