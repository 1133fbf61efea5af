package api

import (
	"bytes"
	"context"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// runService implements errandv1connect.RunServiceHandler.
type runService struct {
	*Server
}

const (
	// firstWakeMs is when the deadline actor wakes a new run whose Tell was lost. A
	// run that was told has moved its next_wake by then.
	firstWakeMs = 250
	// createTriesMax is how often the transaction of a Create is sent while the store
	// does not say what became of it.
	createTriesMax  = 4
	createRetryWait = 200 * time.Millisecond
)

// Create implements errandv1connect.RunServiceHandler.
func (s *runService) Create(ctx context.Context, request *errandv1.CreateRunRequest) (*errandv1.CreateRunResponse, error) {
	wanted, violations := resolve(request, s.config.Drivers, s.nowMs())
	if len(violations) > 0 {
		return nil, invalid(violations)
	}
	run := wanted.run
	run.Id = s.newRunID(wanted)
	run.RequestHash = wanted.hash
	if wanted.wait <= 0 {
		response, _, err := s.create(ctx, run, wanted.key)
		return response, err
	}
	// Who listens before there is a run need not look for it.
	watch := s.newWatch(run.GetId())
	s.watches.join(watch)
	defer watch.stop()
	creating, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, revision, err := s.create(creating, run, wanted.key)
	if err != nil || terminal(response.GetRun().GetStatus()) {
		return response, err
	}
	watch.know(revision)
	waiting, cancelWait := s.callContext(ctx)
	defer cancelWait()
	waiting, cancelTime := context.WithTimeout(waiting, wanted.wait)
	defer cancelTime()
	newest, err := watch.end(waiting)
	// When the time is up or the node stops, the caller is told of its run, and not of an
	// error after which a call without a key would make another.
	if err != nil && (waiting.Err() == nil || ctx.Err() != nil) {
		return nil, err
	}
	if newest.run != nil {
		response.Run = newest.public()
	}
	return response, nil
}

// waits tells whether a request is for the run's end, and not only for its beginning.
func waits(message any) bool {
	request, ok := message.(*errandv1.CreateRunRequest)
	return ok && request.GetWait().AsDuration() > 0
}

// create commits the run, unless the key has one already, wakes its actor and returns
// the run with its revision.
func (s *runService) create(ctx context.Context, run *recordv1.Run, key string) (*errandv1.CreateRunResponse, int64, error) {
	result, repeated, err := s.commitCreate(ctx, run, key)
	if err != nil {
		return nil, 0, err
	}
	response := &errandv1.CreateRunResponse{Run: publicRun(run, records.KV{Mod: result.Revision, Version: 1}), Created: true}
	if !result.Succeeded {
		if response, err = existing(run, result); err != nil {
			return nil, 0, err
		}
		// After a repeat, what was found may be what the first try left.
		response.Created = repeated && response.GetRun().GetCreatedAt().AsTime().UnixMilli() == run.GetCreatedAt()
	}
	if response.GetRun().GetStatus() == errandv1.Status_STATUS_PENDING {
		// Also for a run that was there: the first caller may have died before its Tell.
		s.config.Router.Tell(actors.KindRun, run.GetId(), wakeOf(run, result))
	}
	return response, response.GetRun().GetRevision(), nil
}

// wakeOf tells the run's actor to begin. With the record of a new run, it need not read it.
func wakeOf(run *recordv1.Run, created records.Result) *actorv1.Wake {
	wake := &actorv1.Wake{Run: run.GetId()}
	if created.Succeeded {
		wake.Record, wake.Revision = records.Encode(run), created.Revision
	}
	return wake
}

func (s *runService) newRunID(wanted resolved) string {
	if wanted.key != "" {
		return records.RunIDFromKey(wanted.app, wanted.key)
	}
	var random [16]byte
	s.config.Rand.Fill(random[:])
	return records.RunIDFromRandom(wanted.app, random)
}

// commitCreate sends the transaction, once if the store answers. While the outcome
// is unknown it is sent again: it compares that the id was never used, so it can
// create no second run, and once it is decided, one way or the other, the first
// can not land any more. repeated tells whether it was.
func (s *runService) commitCreate(ctx context.Context, run *recordv1.Run, key string) (result records.Result, repeated bool, err error) {
	txn := s.config.Keys.Create(run, run.GetCreatedAt()+firstWakeMs)
	for try := 1; ; try++ {
		result, err := s.config.Store.Do(ctx, txn)
		if err == nil {
			return result, try > 1, nil
		}
		// A refusal of a later try says nothing of the first, which may land still.
		if try == 1 && records.ClassOf(err) != records.ClassOutcomeUnknown {
			return records.Result{}, false, storeError(ctx, "create run", err)
		}
		if try == createTriesMax || !sleep(ctx, createRetryWait) {
			if key == "" {
				return records.Result{}, false, fail(codes.OutcomeUnknown,
					"the store did not say whether run %s was created: look for it before creating another, or use an idempotency key, with which the call can be repeated", run.GetId())
			}
			return records.Result{}, false, fail(codes.OutcomeUnknown, "the store did not say whether run %s was created: repeat with the same key", run.GetId())
		}
	}
}

// existing answers a Create whose id was in use.
func existing(wanted *recordv1.Run, result records.Result) (*errandv1.CreateRunResponse, error) {
	kv, ok := result.First(0)
	if !ok {
		return nil, fail(codes.RunDeleted, "the run of this idempotency key, %s, was deleted: use another key for another run", wanted.GetId())
	}
	run, err := records.DecodeRun(kv)
	if err != nil {
		return nil, fail(codes.Internal, "%w", err)
	}
	if !bytes.Equal(run.GetRequestHash(), wanted.GetRequestHash()) {
		return nil, fail(codes.IdempotencyConflict, "idempotency_key: was used for run %s with another request", run.GetId())
	}
	return &errandv1.CreateRunResponse{Run: publicRun(run, kv)}, nil
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
