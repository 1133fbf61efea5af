package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// Direct returns clients for callers in the process of a server. What is answered once
// goes to the server's handlers without a connection, on the goroutine of the caller;
// streams go over the clients that are given.
//
// Such a call is what it is over a connection: its messages are copies of what they would
// be after their way, it has the same bounds, is counted, is refused and waited for when
// the server stops, and fails with the same codes, texts and details. The values of its
// context stay with the caller. Only who calls is known: there is no token.
//
// server returns the server to call, or why there is none; it is asked by each call. A
// server that has been stopped is client.ErrGone.
func Direct(server func() (*Server, error), over client.Services) client.Services {
	return client.Services{
		Runs:   &directRuns{over.Runs, server},
		Nodes:  &directNodes{over.Nodes, server},
		Images: &directImages{over.Images, server},
	}
}

type directRuns struct {
	errandv1connect.RunServiceClient // its streams
	server                           func() (*Server, error)
}

func runsOf(s *Server) *runService { return &runService{s} }

// Create implements errandv1connect.RunServiceClient.
func (d *directRuns) Create(ctx context.Context, request *errandv1.CreateRunRequest) (*errandv1.CreateRunResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceCreateProcedure, request, runsOf, (*runService).Create)
}

// Get implements errandv1connect.RunServiceClient.
func (d *directRuns) Get(ctx context.Context, request *errandv1.GetRunRequest) (*errandv1.GetRunResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceGetProcedure, request, runsOf, (*runService).Get)
}

// List implements errandv1connect.RunServiceClient.
func (d *directRuns) List(ctx context.Context, request *errandv1.ListRunsRequest) (*errandv1.ListRunsResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceListProcedure, request, runsOf, (*runService).List)
}

// Cancel implements errandv1connect.RunServiceClient.
func (d *directRuns) Cancel(ctx context.Context, request *errandv1.CancelRunRequest) (*errandv1.CancelRunResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceCancelProcedure, request, runsOf, (*runService).Cancel)
}

// Wait implements errandv1connect.RunServiceClient.
func (d *directRuns) Wait(ctx context.Context, request *errandv1.WaitRunRequest) (*errandv1.WaitRunResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceWaitProcedure, request, runsOf, (*runService).Wait)
}

// Explain implements errandv1connect.RunServiceClient.
func (d *directRuns) Explain(ctx context.Context, request *errandv1.ExplainRunRequest) (*errandv1.ExplainRunResponse, error) {
	return direct(ctx, d.server, errandv1connect.RunServiceExplainProcedure, request, runsOf, (*runService).Explain)
}

type directNodes struct {
	errandv1connect.NodeServiceClient
	server func() (*Server, error)
}

func nodesOf(s *Server) *nodeService { return &nodeService{s} }

// List implements errandv1connect.NodeServiceClient.
func (d *directNodes) List(ctx context.Context, request *errandv1.ListNodesRequest) (*errandv1.ListNodesResponse, error) {
	return direct(ctx, d.server, errandv1connect.NodeServiceListProcedure, request, nodesOf, (*nodeService).List)
}

// Get implements errandv1connect.NodeServiceClient.
func (d *directNodes) Get(ctx context.Context, request *errandv1.GetNodeRequest) (*errandv1.GetNodeResponse, error) {
	return direct(ctx, d.server, errandv1connect.NodeServiceGetProcedure, request, nodesOf, (*nodeService).Get)
}

// Check implements errandv1connect.NodeServiceClient.
func (d *directNodes) Check(ctx context.Context, request *errandv1.CheckNodeRequest) (*errandv1.CheckNodeResponse, error) {
	return direct(ctx, d.server, errandv1connect.NodeServiceCheckProcedure, request, nodesOf, (*nodeService).Check)
}

// Remove implements errandv1connect.NodeServiceClient.
func (d *directNodes) Remove(ctx context.Context, request *errandv1.RemoveNodeRequest) (*errandv1.RemoveNodeResponse, error) {
	return direct(ctx, d.server, errandv1connect.NodeServiceRemoveProcedure, request, nodesOf, (*nodeService).Remove)
}

type directImages struct {
	errandv1connect.ImageServiceClient // its streams
	server                             func() (*Server, error)
}

func imagesOf(s *Server) *imageService { return &imageService{s} }

// List implements errandv1connect.ImageServiceClient.
func (d *directImages) List(ctx context.Context, request *errandv1.ListImagesRequest) (*errandv1.ListImagesResponse, error) {
	return direct(ctx, d.server, errandv1connect.ImageServiceListProcedure, request, imagesOf, (*imageService).List)
}

// Remove implements errandv1connect.ImageServiceClient.
func (d *directImages) Remove(ctx context.Context, request *errandv1.RemoveImageRequest) (*errandv1.RemoveImageResponse, error) {
	return direct(ctx, d.server, errandv1connect.ImageServiceRemoveProcedure, request, imagesOf, (*imageService).Remove)
}

// messageOf is the pointer to a generated message.
type messageOf[T any] interface {
	*T
	proto.Message
}

// direct makes one call.
func direct[Service, Q, R any, Request messageOf[Q], Response messageOf[R]](
	ctx context.Context, find func() (*Server, error), procedure string, request Request,
	of func(*Server) Service, method func(Service, context.Context, Request) (Response, error),
) (Response, error) {
	s, err := find()
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	received, size, err := arrived[Q](request)
	switch {
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("marshal message: %w", err))
	case size > requestBytesMax:
		return nil, asTold(errRequestTooLarge())
	}
	ctx, end, ok := s.direct.begin(ctx)
	if !ok {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: it has stopped", client.ErrGone))
	}
	defer end()
	var response Response
	err = s.unary(ctx, procedure, received, func(ctx context.Context) (err error) {
		response, err = method(of(s), ctx, received)
		return err
	})
	if err != nil {
		return nil, asTold(err)
	}
	told, _, err := arrived[R](response)
	if err != nil {
		return nil, connect.NewWireError(connect.CodeInternal, fmt.Errorf("marshal message: %w", err))
	}
	return told, nil
}

// arrived is a message as it would be after its way over a connection, with its size:
// nothing of it is shared, and what could not travel is an error.
func arrived[T any, Message messageOf[T]](message Message) (Message, int, error) {
	packed, err := proto.Marshal(message)
	if err != nil {
		return nil, 0, err
	}
	made := Message(new(T))
	return made, len(packed), proto.Unmarshal(packed, made)
}

// asTold is an error as it would be after its way: its code, text and details, and nothing
// of what it was made of.
func asTold(err error) error {
	code, text := connect.CodeUnknown, err.Error()
	var details []*connect.ErrorDetail
	var made *connect.Error
	switch {
	case errors.As(err, &made):
		code, text, details = made.Code(), made.Message(), made.Details()
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	}
	told := connect.NewWireError(code, errors.New(strings.ToValidUTF8(text, "\uFFFD")))
	for _, detail := range details {
		told.AddDetail(detail) // it can not be changed: what it shows of itself are copies
	}
	return told
}

// directCalls are those under way of callers in this process.
type directCalls struct {
	// cutting ends all of them.
	cutting context.Context //nolint:containedctx // the root of the calls' contexts
	cut     context.CancelCauseFunc

	mu       sync.Mutex
	underWay int
	closed   bool
	// over is closed once no call is taken any more and none is under way.
	over chan struct{}
}

func newDirectCalls() *directCalls {
	d := &directCalls{over: make(chan struct{})}
	d.cutting, d.cut = context.WithCancelCause(context.Background())
	return d
}

// begin takes a call, unless the server stops, and returns the context that it has on the
// server's side: of the caller's it has the end and the deadline. The caller calls end.
func (d *directCalls) begin(caller context.Context) (ctx context.Context, end func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, false
	}
	d.underWay++
	ctx, leave := context.WithCancelCause(d.cutting)
	unhook := context.AfterFunc(caller, func() { leave(caller.Err()) })
	cancel := context.CancelFunc(func() {})
	if until, limited := caller.Deadline(); limited {
		ctx, cancel = context.WithDeadline(ctx, until)
	}
	return ctx, func() {
		unhook()
		cancel()
		leave(nil)
		d.end()
	}, true
}

func (d *directCalls) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.underWay--; d.underWay == 0 && d.closed {
		close(d.over)
	}
}

// close takes no call more.
func (d *directCalls) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.closed = true; d.underWay == 0 {
		close(d.over)
	}
}

// wait waits, after close, until no call is under way any more. When its context ends
// first, those that are lose theirs, and it returns false, as it does when they are cut.
func (d *directCalls) wait(ctx context.Context) (all bool) {
	select {
	case <-d.over:
		return true
	case <-ctx.Done():
		d.cut(errStopping)
	case <-d.cutting.Done():
	}
	return false
}
