package api

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The waits between the tries to read a run whose changes may have been missed.
const (
	lookMin = 100 * time.Millisecond
	lookMax = 2 * time.Second
)

// runWatch follows one run's record and keeps its newest state, so that a reader
// that is slow misses intermediate states and holds no others in memory.
type runWatch struct {
	server *Server
	id     string
	key    string
	// changed holds a token while there is something that next has not returned.
	changed chan struct{}

	mu      sync.Mutex
	newest  records.KV
	deleted bool
	// missed tells that changes may have been.
	missed bool
	// returned is the revision that next returned last.
	returned int64
}

func (s *Server) newWatch(id string) *runWatch {
	return &runWatch{server: s, id: id, key: s.config.Keys.Run(id), changed: make(chan struct{}, 1)}
}

// watchRun follows a run from a state that its caller knows already. The caller
// calls stop in the end.
func (s *Server) watchRun(known foundRun) *runWatch {
	w := s.newWatch(known.run.GetId())
	w.returned = known.at.Mod
	if s.watches.join(w) {
		// What came between the state and now was not heard.
		w.look()
	}
	return w
}

// findAndWatch finds a run and follows it from the state that it returns. The caller
// calls stop in the end, unless there is an error.
func (s *Server) findAndWatch(ctx context.Context, text string) (foundRun, *runWatch, error) {
	if _, err := records.AppOfRun(text); err != nil {
		found, err := s.find(ctx, text)
		if err != nil {
			return foundRun{}, nil, err
		}
		return found, s.watchRun(found), nil
	}
	// Most name the run by its whole id: who listens first need not look twice.
	w := s.newWatch(text)
	s.watches.join(w)
	found, err := s.find(ctx, text)
	if err != nil {
		w.stop()
		return foundRun{}, nil, err
	}
	if found.run.GetId() != text {
		w.stop()
		return found, s.watchRun(found), nil
	}
	w.know(found.at.Mod)
	return found, w, nil
}

func (w *runWatch) stop() { w.server.watches.leave(w) }

func (w *runWatch) know(mod int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.returned = mod
}

// hear takes a change of the run.
func (w *runWatch) hear(event records.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case event.Deleted:
		w.deleted = true
	case event.KV.Mod > w.newest.Mod:
		w.newest = event.KV
	}
	w.wake()
}

// look has the run read again, since changes may have been missed.
func (w *runWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = true
	w.wake()
}

// wake lets next go on; the caller holds w.mu.
func (w *runWatch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// next waits for a newer state than the one that was known or returned last.
func (w *runWatch) next(ctx context.Context) (foundRun, error) {
	kv, err := w.newer(ctx)
	if err != nil {
		return foundRun{}, err
	}
	return decodeFound(kv)
}

// newer is next without reading the record.
func (w *runWatch) newer(ctx context.Context) (records.KV, error) {
	for {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return records.KV{}, contextError(ctx)
		}
		kv, deleted, missed := w.take()
		if missed {
			if err := w.read(ctx); err != nil {
				return records.KV{}, err
			}
			kv, deleted, _ = w.take()
		}
		switch {
		case kv.Mod > 0:
			if deleted {
				// That it is gone is told next.
				w.mu.Lock()
				w.wake()
				w.mu.Unlock()
			}
			return kv, nil
		case deleted:
			return records.KV{}, fail(codes.RunDeleted, "run %s was deleted", w.id)
		}
	}
}

// end waits for the terminal state. With an error it returns the newest one that came,
// if any did. Of the states between it looks at nothing but what they are.
func (w *runWatch) end(ctx context.Context) (newest foundRun, err error) {
	var last records.KV
	for {
		kv, err := w.newer(ctx)
		switch {
		case err != nil && last.Mod == 0:
			return foundRun{}, err
		case err != nil:
			// What can not be read is not told: why the wait has ended is.
			newest, _ = decodeFound(last)
			return newest, err
		}
		last = kv
		status, err := records.StatusOfRun(kv)
		if err != nil {
			return foundRun{}, fail(codes.Internal, "%w", err)
		}
		if records.Terminal(status) {
			return decodeFound(kv)
		}
	}
}

// take returns the newest state if it has not been returned yet, unless the run is to
// be read first.
func (w *runWatch) take() (kv records.KV, deleted, missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.missed {
		w.missed = false
		return records.KV{}, false, true
	}
	if w.newest.Mod > w.returned {
		w.returned = w.newest.Mod
		kv = w.newest
	}
	return kv, w.deleted, false
}

// read takes what the store has of the run, however often that must be tried.
func (w *runWatch) read(ctx context.Context) error {
	for pause := lookMin; ; pause = min(2*pause, lookMax) {
		results, err := w.server.read(ctx, "watch run", []records.Op{records.Get(w.key)})
		switch {
		case err == nil && len(results[0].KVs) == 0:
			w.hear(records.Event{KV: records.KV{Key: w.key}, Deleted: true})
			return nil
		case err == nil:
			w.hear(records.Event{KV: results[0].KVs[0]})
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return contextError(ctx)
		}
	}
}

// Watch implements errandv1connect.RunServiceHandler.
func (s *runService) Watch(ctx context.Context, request *errandv1.WatchRunRequest, stream *connect.ServerStream[errandv1.WatchRunResponse]) error {
	found, watch, err := s.findAndWatch(ctx, request.GetId())
	if err != nil {
		return err
	}
	defer watch.stop()
	for {
		// One that the caller has is not sent again. A revision that the run does not have,
		// of another store perhaps, is as good as none: the state says it all.
		if found.at.Mod != request.GetRevision() {
			response := &errandv1.WatchRunResponse{Run: found.public()}
			if request.GetHistory() {
				response.History = publicHistory(found.run)
			}
			if err := stream.Send(response); err != nil {
				return err
			}
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
	found, watch, err := s.findAndWatch(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	defer watch.stop()
	if records.Terminal(found.run.GetStatus()) {
		return &errandv1.WaitRunResponse{Run: found.public(), Terminal: true}, nil
	}
	newest, err := watch.end(waiting)
	if err != nil && (waiting.Err() == nil || ctx.Err() != nil) {
		return nil, err
	}
	if newest.run != nil {
		found = newest
	}
	return &errandv1.WaitRunResponse{Run: found.public(), Terminal: err == nil}, nil
}
