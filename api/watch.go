package api

import (
	"context"
	"sync"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// runWatch follows one run's record and keeps its newest state, so that a reader
// that is slow misses intermediate states and holds no others in memory.
type runWatch struct {
	id   string
	key  string
	stop func()
	// changed holds a token while there is something that next has not returned.
	changed chan struct{}

	mu      sync.Mutex
	newest  records.KV
	deleted bool
	// returned is the revision that next returned last.
	returned int64
}

// watchRun follows a run from a state that its caller knows already. The caller
// calls stop in the end.
func (s *Server) watchRun(known foundRun) *runWatch {
	id := known.run.GetId()
	w := &runWatch{id: id, key: s.config.Keys.Run(id), changed: make(chan struct{}, 1), returned: known.mod}
	w.stop = s.config.Store.Follow(w.key, w.deliver)
	return w
}

// deliver takes what the store saw. The prefix that is followed may be that of
// longer ids too.
func (w *runWatch) deliver(batch records.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	present := false
	for _, event := range batch.Events {
		switch {
		case event.KV.Key != w.key:
		case event.Deleted:
			w.deleted = true
		default:
			present = true
			if event.KV.Mod > w.newest.Mod {
				w.newest = event.KV
			}
		}
	}
	if batch.Reset && !present {
		w.deleted = true
	}
	if w.deleted || w.newest.Mod > w.returned {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// next waits for a newer state than the one that was known or returned last.
func (w *runWatch) next(ctx context.Context) (foundRun, error) {
	for {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return foundRun{}, contextError(ctx)
		}
		kv, deleted := w.take()
		switch {
		case deleted:
			return foundRun{}, fail(CodeRunDeleted, "run %s was deleted", w.id)
		case kv.Mod > 0:
			run, err := records.DecodeRun(kv)
			if err != nil {
				return foundRun{}, fail(CodeInternal, "%w", err)
			}
			return foundRun{run: run, mod: kv.Mod}, nil
		}
	}
}

// take returns the newest state if it has not been returned yet.
func (w *runWatch) take() (kv records.KV, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest.Mod > w.returned {
		w.returned = w.newest.Mod
		kv = w.newest
	}
	return kv, w.deleted
}

// Watch implements errandv1connect.RunServiceHandler.
func (s *runService) Watch(ctx context.Context, request *errandv1.WatchRunRequest, stream *connect.ServerStream[errandv1.WatchRunResponse]) error {
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return err
	}
	watch := s.watchRun(found)
	defer watch.stop()
	for {
		if err := stream.Send(&errandv1.WatchRunResponse{Run: found.public()}); err != nil {
			return err
		}
		if records.Terminal(found.run.GetStatus()) {
			return nil
		}
		if found, err = watch.next(ctx); err != nil {
			return err
		}
	}
}

// Wait implements errandv1connect.RunServiceHandler.
func (s *runService) Wait(ctx context.Context, request *errandv1.WaitRunRequest) (*errandv1.WaitRunResponse, error) {
	waiting := ctx
	if given := request.GetTimeout(); given != nil {
		if given.CheckValid() != nil || given.AsDuration() < 0 {
			return nil, invalid([]Violation{{Field: "timeout", Text: "must not be below 0, is " + given.AsDuration().String()}})
		}
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, given.AsDuration())
		defer cancel()
	}
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	if records.Terminal(found.run.GetStatus()) {
		return &errandv1.WaitRunResponse{Run: found.public(), Terminal: true}, nil
	}
	watch := s.watchRun(found)
	defer watch.stop()
	for !records.Terminal(found.run.GetStatus()) {
		newer, err := watch.next(waiting)
		switch {
		case err == nil:
			found = newer
		case waiting.Err() != nil && ctx.Err() == nil:
			return &errandv1.WaitRunResponse{Run: found.public()}, nil
		default:
			return nil, err
		}
	}
	return &errandv1.WaitRunResponse{Run: found.public(), Terminal: true}, nil
}
