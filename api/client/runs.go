package client

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// pageSize is how many runs All asks for at a time, the most that a node sends.
const pageSize = 500

// Terminal tells whether a run of this status has ended.
func Terminal(status errandv1.Status) bool { return status >= errandv1.Status_STATUS_SUCCEEDED }

// Submit records a run and returns once it is durable; it does not wait for its end.
// The same idempotency key with the same request gives the same run. A request without
// a key gets a new one, so that repeating it over a lost answer makes no second run;
// a caller that may be killed and ask again brings a key of its own.
func (c *Client) Submit(ctx context.Context, request *errandv1.CreateRunRequest) (*errandv1.Run, error) {
	response, err := call(ctx, c, "submit run", c.services.Runs.Create, keyed(request, nil))
	return response.GetRun(), err
}

// Run submits a run and returns it once it has ended: Submit and Wait in one call where
// the node has one. It is repeated as they are, and a run that the key has already is
// waited for, or returned at once if it has ended. When ctx ends first, Run returns the
// context's error and the run goes on; Cancel ends it, for which a key of the caller's
// own and Submit give its id.
func (c *Client) Run(ctx context.Context, request *errandv1.CreateRunRequest) (*errandv1.Run, error) {
	waiting := keyed(request, durationpb.New(waitSlice))
	var response *errandv1.CreateRunResponse
	err := c.trial("run").persist(ctx, waitSlice+callTimeout, func(ctx context.Context) (err error) {
		response, err = c.services.Runs.Create(ctx, waiting)
		return err
	})
	if run := response.GetRun(); err != nil || Terminal(run.GetStatus()) {
		return run, err
	}
	return c.Wait(ctx, response.GetRun().GetId())
}

// keyed is a request that can be sent again, waiting for as long as it is told.
func keyed(request *errandv1.CreateRunRequest, wait *durationpb.Duration) *errandv1.CreateRunRequest {
	if request.GetIdempotencyKey() != "" && request.GetWait() == nil && wait == nil {
		return request
	}
	// What it holds is only read: the values of its fields are shared.
	made := &errandv1.CreateRunRequest{}
	fields := made.ProtoReflect()
	request.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		fields.Set(field, value)
		return true
	})
	made.Wait = wait
	if made.GetIdempotencyKey() == "" {
		made.IdempotencyKey = "client-" + rand.Text()
	}
	return made
}

// Get returns a run by its id, or by a beginning of it that no other run's has.
func (c *Client) Get(ctx context.Context, id string) (*errandv1.Run, error) {
	response, err := call(ctx, c, "get run "+id, c.services.Runs.Get, &errandv1.GetRunRequest{Id: id})
	return response.GetRun(), err
}

// Explain says why a run is where it is, or how it came to its end: the first cause says
// where the run is, those that follow why.
func (c *Client) Explain(ctx context.Context, id string) (*errandv1.ExplainRunResponse, error) {
	return call(ctx, c, "explain run "+id, c.services.Runs.Explain, &errandv1.ExplainRunRequest{Id: id})
}

// History returns a run and what became of it, oldest first.
func (c *Client) History(ctx context.Context, id string) (*errandv1.GetRunResponse, error) {
	return call(ctx, c, "get history of run "+id, c.services.Runs.Get, &errandv1.GetRunRequest{Id: id, History: true})
}

// List returns one page of runs. The next one has the answer's NextPageToken as its
// PageToken and everything else the same.
func (c *Client) List(ctx context.Context, request *errandv1.ListRunsRequest) (*errandv1.ListRunsResponse, error) {
	return call(ctx, c, "list runs", c.services.Runs.List, request)
}

// All returns the runs of all pages, each page asked for when its first run is. The
// page size of the request, if it has one, is used. An error is the last element.
func (c *Client) All(ctx context.Context, request *errandv1.ListRunsRequest) iter.Seq2[*errandv1.Run, error] {
	return func(yield func(*errandv1.Run, error) bool) {
		asked := &errandv1.ListRunsRequest{}
		proto.Merge(asked, request)
		if asked.GetPageSize() == 0 {
			asked.PageSize = pageSize
		}
		for {
			page, err := c.List(ctx, asked)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, run := range page.GetRuns() {
				if !yield(run, nil) {
					return
				}
			}
			if asked.PageToken = page.GetNextPageToken(); asked.GetPageToken() == "" {
				return
			}
		}
	}
}

// Cancel records the wish to end a run and returns once the wish is durable, not when
// the run has ended. A run that has ended gives codes.RunTerminal.
func (c *Client) Cancel(ctx context.Context, request *errandv1.CancelRunRequest) (*errandv1.Run, error) {
	response, err := call(ctx, c, "cancel run "+request.GetId(), c.services.Runs.Cancel, request)
	return response.GetRun(), err
}

// Wait returns a run once it has ended, whatever becomes of the node meanwhile. When
// ctx ends first, it returns the context's error.
func (c *Client) Wait(ctx context.Context, id string) (*errandv1.Run, error) {
	t := c.trial("wait for run " + id)
	for {
		response, err := c.wait(ctx, t, &errandv1.WaitRunRequest{Id: id, Timeout: durationpb.New(waitSlice)})
		if err != nil || response.GetTerminal() {
			return response.GetRun(), err
		}
	}
}

// wait waits for as long as the request says.
func (c *Client) wait(ctx context.Context, t *trial, request *errandv1.WaitRunRequest) (*errandv1.WaitRunResponse, error) {
	var response *errandv1.WaitRunResponse
	err := t.persist(ctx, request.GetTimeout().AsDuration()+callTimeout, func(ctx context.Context) (err error) {
		response, err = c.services.Runs.Wait(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Watch returns a run as it is and then each newer state, the terminal one last. A
// reader that is slower than the run misses states between; the connection may break,
// the order stays and no state comes twice. An error is the last element. The reading
// ends with the loop.
func (c *Client) Watch(ctx context.Context, id string) iter.Seq2[*errandv1.Run, error] {
	return func(yield func(*errandv1.Run, error) bool) {
		for told, err := range c.watch(ctx, &errandv1.WatchRunRequest{Id: id}) {
			if !yield(told.GetRun(), err) {
				return
			}
		}
	}
}

// WatchHistory is Watch with the run's history beside each state: all that became of it
// up to there, oldest first. What is known late may come before what is told already.
func (c *Client) WatchHistory(ctx context.Context, id string) iter.Seq2[*errandv1.WatchRunResponse, error] {
	return c.watch(ctx, &errandv1.WatchRunRequest{Id: id, History: true})
}

func (c *Client) watch(ctx context.Context, request *errandv1.WatchRunRequest) iter.Seq2[*errandv1.WatchRunResponse, error] {
	return func(yield func(*errandv1.WatchRunResponse, error) bool) {
		w := watching{c: c, t: c.trial("watch run " + request.GetId()), request: request, yield: yield}
		for {
			done, err := w.once(ctx)
			if done {
				return
			}
			if err == nil {
				// The node ended the stream before the run.
				err = errCut
			}
			if err := w.t.next(ctx, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// errCut is what a stream comes to that ended without an end.
var errCut = errors.New("the stream was cut")

type watching struct {
	c        *Client
	t        *trial
	request  *errandv1.WatchRunRequest
	yield    func(*errandv1.WatchRunResponse, error) bool
	revision int64
}

// once reads one stream; done tells that nothing more is wanted.
func (w *watching) once(ctx context.Context) (done bool, err error) {
	heed := w.c.attend(ctx)
	defer heed.end()
	stream, err := w.c.services.Runs.Watch(heed.ctx, &errandv1.WatchRunRequest{Id: w.request.GetId(), Revision: w.revision, History: w.request.GetHistory()})
	if err != nil {
		return false, heed.why(err)
	}
	defer func() { _ = stream.Close() }() // all that it said was read
	for stream.Receive() {
		w.t.heard()
		run := stream.Msg().GetRun()
		if run.GetRevision() > w.revision {
			w.revision = run.GetRevision()
			if !w.yield(stream.Msg(), nil) {
				return true, nil
			}
		}
		if Terminal(run.GetStatus()) {
			return true, nil
		}
	}
	return false, heed.why(stream.Err())
}
