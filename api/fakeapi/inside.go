package fakeapi

import (
	"context"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// A fake node has no sandboxes: whoever looks into one finds what Server.Inside says.

func (r *runService) Exec(_ context.Context, stream *connect.BidiStream[errandv1.ExecRequest, errandv1.ExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	if err := r.noSandbox(first.GetStart().GetId()); err != nil {
		return err
	}
	if err := stream.Send(&errandv1.ExecResponse{Started: true, Stdout: r.Inside}); err != nil {
		return err
	}
	return stream.Send(&errandv1.ExecResponse{Exited: &errandv1.ExecExited{}})
}

func (r *runService) Attach(_ context.Context, stream *connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	if _, err := r.find(first.GetStart().GetId()); err != nil {
		return err
	}
	if r.Attached != nil {
		return r.Attached(stream)
	}
	return fail(connect.CodeUnimplemented, "this node gives runs no input")
}

func (r *runService) CopyFrom(_ context.Context, request *errandv1.CopyFromRequest, stream *connect.ServerStream[errandv1.CopyFromResponse]) error {
	if err := r.noSandbox(request.GetId()); err != nil {
		return err
	}
	return stream.Send(&errandv1.CopyFromResponse{Data: r.Inside})
}

func (r *runService) noSandbox(id string) error {
	if _, err := r.find(id); err != nil {
		return err
	}
	if r.Inside == nil {
		return fail(connect.CodeUnimplemented, "this node lets nobody into its sandboxes")
	}
	return nil
}
