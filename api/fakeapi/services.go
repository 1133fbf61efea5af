package fakeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type (
	runService   Server
	nodeService  Server
	imageService Server
)

func fail(code connect.Code, format string, arguments ...any) error {
	return connect.NewError(code, fmt.Errorf(format, arguments...))
}

// Fail makes an error with the detail that those of the API carry.
func Fail(class connect.Code, code, text string, fields ...*errandv1.FieldViolation) error {
	made := connect.NewError(class, errors.New(text))
	if detail, err := connect.NewErrorDetail(&errandv1.ErrorInfo{Code: code, Fields: fields}); err == nil {
		made.AddDetail(detail)
	}
	return made
}

func ended(run *errandv1.Run) bool { return run.GetStatus() >= errandv1.Status_STATUS_SUCCEEDED }

func (r *runService) Create(ctx context.Context, request *errandv1.CreateRunRequest) (*errandv1.CreateRunResponse, error) {
	s := (*Server)(r)
	if s.CreateError != nil {
		if err := s.CreateError(); err != nil {
			return nil, err
		}
	}
	if name := request.GetName(); strings.ContainsAny(name, "\n/") {
		return nil, Fail(connect.CodeInvalidArgument, "INVALID_FIELD", "name: has a character that is not allowed; spec.env[\"A\"]: is bad",
			&errandv1.FieldViolation{Field: "name", Text: "has a character that is not allowed"},
			&errandv1.FieldViolation{Field: `spec.env["A"]`, Text: "is bad"})
	}
	if request.GetSpec().GetImage() == "" && request.GetSpec().GetDriver() == "" {
		return nil, fail(connect.CodeInvalidArgument, "spec.image: is empty, and the containerd driver wants one")
	}
	s.mu.Lock()
	key := request.GetIdempotencyKey()
	live, known := s.byKey[key]
	if !known {
		app := request.GetApp()
		if app == "" {
			app = "default"
		}
		now := timestamppb.Now()
		live = &Live{s: s, canceled: make(chan struct{}), run: &errandv1.Run{
			Id: randomID(app), App: app, Name: request.GetName(), Labels: request.GetLabels(), Trigger: request.GetTrigger(),
			Spec: request.GetSpec(), Status: errandv1.Status_STATUS_PENDING, CreatedAt: now, QueuedAt: now,
		}}
		live.run.Id = strings.ToLower(live.run.GetId())
		s.runs = append(s.runs, live)
		s.note(live.run)
		if key != "" {
			s.byKey[key] = live
		}
		if s.Script != nil {
			s.scripts.Go(func() { s.Script(live) })
		}
		s.announce()
	}
	s.creating++
	lost := s.creating <= s.LoseAnswers
	s.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler)
	}
	if wait := request.GetWait().AsDuration(); wait > 0 {
		waiting, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_ = s.Await(waiting, func() bool { return ended(live.Run()) }) // or the time is up
	}
	return &errandv1.CreateRunResponse{Run: live.Run(), Created: !known}, nil
}

func (r *runService) find(id string) (*Live, error) {
	var found *Live
	for _, live := range (*Server)(r).Runs() {
		run := live.Run()
		if run.GetId() == id {
			return live, nil
		}
		last := run.GetId()[strings.LastIndexByte(run.GetId(), '.')+1:]
		if strings.HasPrefix(run.GetId(), id) || strings.HasPrefix(last, id) {
			if found != nil {
				return nil, fail(connect.CodeInvalidArgument, "id: several runs begin with %q", id)
			}
			found = live
		}
	}
	if found == nil {
		return nil, fail(connect.CodeNotFound, "no run has the id %q", id)
	}
	return found, nil
}

func (r *runService) Get(_ context.Context, request *errandv1.GetRunRequest) (*errandv1.GetRunResponse, error) {
	live, err := r.find(request.GetId())
	if err != nil {
		return nil, err
	}
	response := &errandv1.GetRunResponse{Run: live.Run()}
	if request.GetHistory() {
		response.History = r.Histories[live.Run().GetId()]
	}
	return response, nil
}

func (r *runService) List(_ context.Context, request *errandv1.ListRunsRequest) (*errandv1.ListRunsResponse, error) {
	position := (*Server)(r).position()
	all := (*Server)(r).Runs()
	skip, _ := strconv.Atoi(request.GetPageToken())
	size := int(request.GetPageSize())
	if size == 0 {
		size = 50
	}
	if size < 0 || size > 500 {
		return nil, fail(connect.CodeInvalidArgument, "page_size: must be 1 to 500")
	}
	var matching []*errandv1.Run
	for _, wantEnded := range []bool{false, true} {
		for i := len(all) - 1; i >= 0; i-- {
			if run := all[i].Run(); ended(run) == wantEnded && matches(run, request) {
				matching = append(matching, run)
			}
		}
	}
	response := &errandv1.ListRunsResponse{Position: position, Examined: int64(len(all))}
	if pageMax := (*Server)(r).PageMax; pageMax > 0 {
		size = min(size, pageMax)
	}
	if examined := (*Server)(r).Examined; examined > 0 {
		response.Examined = examined
	}
	end := min(skip+size, len(matching))
	response.Runs = matching[min(skip, len(matching)):end]
	if end < len(matching) {
		response.NextPageToken = strconv.Itoa(end)
	}
	return response, nil
}

func matches(run *errandv1.Run, request *errandv1.ListRunsRequest) bool {
	ok := len(request.GetStatuses()) == 0
	for _, status := range request.GetStatuses() {
		ok = ok || run.GetStatus() == status
	}
	for key, value := range request.GetLabels() {
		ok = ok && run.GetLabels()[key] == value
	}
	return ok && (request.GetApp() == "" || request.GetApp() == run.GetApp()) &&
		(request.GetName() == "" || request.GetName() == run.GetName())
}

func (r *runService) Watch(ctx context.Context, request *errandv1.WatchRunRequest, stream *connect.ServerStream[errandv1.WatchRunResponse]) error {
	live, err := r.find(request.GetId())
	if err != nil {
		return err
	}
	for {
		run := live.Run()
		if run.GetRevision() != request.GetRevision() {
			response := &errandv1.WatchRunResponse{Run: run}
			if request.GetHistory() {
				response.History = r.Histories[run.GetId()]
			}
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		if ended(run) {
			return nil
		}
		if err := (*Server)(r).Await(ctx, func() bool { return live.Run().GetRevision() > run.GetRevision() }); err != nil {
			return err
		}
	}
}

func (r *runService) Cancel(_ context.Context, request *errandv1.CancelRunRequest) (*errandv1.CancelRunResponse, error) {
	live, err := r.find(request.GetId())
	if err != nil {
		return nil, err
	}
	if run := live.Run(); ended(run) {
		return nil, fail(connect.CodeFailedPrecondition, "run %s has ended already", run.GetId())
	}
	live.change(func() {
		if live.run.GetStopping() == errandv1.Reason_REASON_UNSPECIFIED {
			live.run.Stopping, live.canceledBy = errandv1.Reason_REASON_CANCELED, request.GetBy()
			close(live.canceled)
		}
	})
	return &errandv1.CancelRunResponse{Run: live.Run()}, nil
}

func (r *runService) Wait(ctx context.Context, request *errandv1.WaitRunRequest) (*errandv1.WaitRunResponse, error) {
	live, err := r.find(request.GetId())
	if err != nil {
		return nil, err
	}
	if request.GetTimeout() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, request.GetTimeout().AsDuration())
		defer cancel()
	}
	_ = (*Server)(r).Await(ctx, func() bool { return ended(live.Run()) })
	run := live.Run()
	return &errandv1.WaitRunResponse{Run: run, Terminal: ended(run)}, nil
}

func (r *runService) Logs(ctx context.Context, request *errandv1.LogsRequest, stream *connect.ServerStream[errandv1.LogsResponse]) error {
	live, err := r.find(request.GetId())
	if err != nil {
		return err
	}
	if request.GetTailLines() != 0 && request.GetOffset() != 0 {
		return fail(connect.CodeInvalidArgument, "tail_lines: not together with an offset")
	}
	if request.GetAttempt() > 1 {
		return fail(connect.CodeNotFound, "run %s has no attempt %d", request.GetId(), request.GetAttempt())
	}
	s := (*Server)(r)
	if s.LogError != nil {
		if err := s.LogError(); err != nil {
			return err
		}
	}
	position := request.GetOffset()
	first := true
	for {
		var response *errandv1.LogsResponse
		ready := func() bool {
			response = live.from(position, request, first)
			return len(response.GetChunks()) > 0 || response.GetEnd() != nil || !request.GetFollow() || ended(live.Run())
		}
		if err := s.Await(ctx, ready); err != nil {
			return err
		}
		first = false
		if len(response.GetChunks()) == 0 && response.GetEnd() == nil {
			return nil
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		if response.GetEnd() != nil {
			return nil
		}
		position = response.GetChunks()[len(response.GetChunks())-1].GetNextOffset()
	}
}

// chunksPerMessage is small, so that a cut falls between messages often.
const chunksPerMessage = 3

// from returns the next chunks from an offset on.
func (l *Live) from(position int64, request *errandv1.LogsRequest, first bool) *errandv1.LogsResponse {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	response := &errandv1.LogsResponse{}
	if len(l.run.GetAttempts()) > 0 {
		response.Attempt = 1
	}
	begin := 0
	if lines := int(request.GetTailLines()); first && lines > 0 {
		begin = len(l.log)
		for count := 0; begin > 0; begin-- {
			if strings.HasSuffix(string(l.log[begin-1].chunk.GetData()), "\n") || begin == len(l.log) {
				if count++; count > lines {
					break
				}
			}
		}
	}
	next := begin
	for i := begin; i < len(l.log) && len(response.GetChunks()) < chunksPerMessage; i++ {
		if l.log[i].at < position {
			next = i + 1
			continue
		}
		next = i + 1
		if since := request.GetSince(); since != nil && l.log[i].chunk.GetAt().AsTime().Before(since.AsTime()) {
			continue
		}
		response.Chunks = append(response.Chunks, proto.Clone(l.log[i].chunk).(*errandv1.LogChunk))
	}
	if next == len(l.log) && l.end != nil {
		response.End = l.end
	}
	return response
}

func (n *nodeService) List(context.Context, *errandv1.ListNodesRequest) (*errandv1.ListNodesResponse, error) {
	return &errandv1.ListNodesResponse{Nodes: n.Nodes}, nil
}

func (n *nodeService) Get(_ context.Context, request *errandv1.GetNodeRequest) (*errandv1.GetNodeResponse, error) {
	for _, node := range n.Nodes {
		if node.GetId() == request.GetId() {
			return &errandv1.GetNodeResponse{Node: node, Pulls: n.NodePulls}, nil
		}
	}
	return nil, fail(connect.CodeNotFound, "no node %s is registered", request.GetId())
}

func (i *imageService) Import(_ context.Context, stream *connect.ClientStream[errandv1.ImportImageRequest]) (*errandv1.ImportImageResponse, error) {
	s := (*Server)(i)
	var archive []byte
	name := ""
	for stream.Receive() {
		if len(stream.Msg().GetData()) > 1<<20 {
			return nil, fail(connect.CodeInvalidArgument, "data: more than 1 MiB")
		}
		if stream.Msg().GetName() != "" {
			name = stream.Msg().GetName()
		}
		archive = append(archive, stream.Msg().GetData()...)
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if len(archive) == 0 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the archive is empty"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imports = append(s.imports, archive)
	return &errandv1.ImportImageResponse{Images: []*errandv1.Image{{
		Name: name, Digest: "sha256:feed", SizeBytes: int64(len(archive)), ImportedAt: timestamppb.New(time.Unix(1700000000, 0)),
	}}}, nil
}

func (i *imageService) List(context.Context, *errandv1.ListImagesRequest) (*errandv1.ListImagesResponse, error) {
	return &errandv1.ListImagesResponse{Images: i.Images}, nil
}

func (i *imageService) Pull(_ context.Context, request *errandv1.PullImageRequest, stream *connect.ServerStream[errandv1.PullImageResponse]) error {
	s := (*Server)(i)
	s.mu.Lock()
	s.pulls = append(s.pulls, request)
	s.mu.Unlock()
	for _, response := range s.PullAnswers {
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	return s.PullError
}

func (i *imageService) Remove(_ context.Context, request *errandv1.RemoveImageRequest) (*errandv1.RemoveImageResponse, error) {
	for at, image := range i.Images {
		if image.GetName() == request.GetName() {
			i.Images = append(i.Images[:at:at], i.Images[at+1:]...)
			return &errandv1.RemoveImageResponse{Name: request.GetName()}, nil
		}
	}
	return nil, fail(connect.CodeNotFound, "there is no image %s", request.GetName())
}

func (r *runService) Explain(_ context.Context, request *errandv1.ExplainRunRequest) (*errandv1.ExplainRunResponse, error) {
	live, err := r.find(request.GetId())
	if err != nil {
		return nil, err
	}
	run := live.Run()
	causes, known := r.Causes[run.GetId()]
	if !known {
		causes = r.Causes[""]
	}
	if len(causes) > 0 {
		return &errandv1.ExplainRunResponse{Run: run, Causes: causes}, nil
	}
	return &errandv1.ExplainRunResponse{Run: run, Causes: []*errandv1.Cause{{Code: run.GetStatus().String(), Message: run.GetMessage()}}}, nil
}

func (n *nodeService) Check(_ context.Context, request *errandv1.CheckNodeRequest) (*errandv1.CheckNodeResponse, error) {
	if n.NodeCheck == nil || request.GetId() != "" && request.GetId() != n.NodeCheck.GetId() {
		return nil, fail(connect.CodeNotFound, "node %s can be checked at its own address only", request.GetId())
	}
	return n.NodeCheck, nil
}

func (n *nodeService) Remove(_ context.Context, request *errandv1.RemoveNodeRequest) (*errandv1.RemoveNodeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range n.Nodes {
		if node.GetId() == request.GetId() && !node.GetAway() {
			return nil, Fail(connect.CodeFailedPrecondition, "NODE_HAS_SESSION", "node "+request.GetId()+" has a session")
		}
	}
	lost := n.Removals[request.GetId()]
	if lost == nil {
		return nil, Fail(connect.CodeNotFound, "NODE_NOT_FOUND", "no node "+request.GetId()+" was ever registered")
	}
	if request.GetDead() && lost.GetRemovedAt() == nil {
		lost.RemovedAt, lost.RemovedBy = timestamppb.Now(), request.GetBy()
	}
	return proto.CloneOf(lost), nil
}
