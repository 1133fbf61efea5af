package api_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// lifeOf is a request for a run's whole life.
func lifeOf(key string, wait time.Duration) *errandv1.CreateRunRequest {
	return &errandv1.CreateRunRequest{IdempotencyKey: key, Spec: &errandv1.RunSpec{Command: []string{"true"}}, Wait: durationpb.New(wait)}
}

type lifeAnswer struct {
	response *errandv1.CreateRunResponse
	err      error
}

// live sends the request and returns the run's id once it is there.
func (r *rig) live(request *errandv1.CreateRunRequest) (id string, answer <-chan lifeAnswer) {
	r.t.Helper()
	return r.liveUntil(r.ctx, request)
}

func (r *rig) liveUntil(ctx context.Context, request *errandv1.CreateRunRequest) (id string, answer <-chan lifeAnswer) {
	r.t.Helper()
	id = records.RunIDFromKey(records.DefaultApp, request.GetIdempotencyKey())
	answers := make(chan lifeAnswer, 1)
	go func() {
		response, err := r.runs.Create(ctx, request)
		answers <- lifeAnswer{response, err}
	}()
	select {
	case <-r.router.tells:
	case got := <-answers:
		r.t.Fatalf("answered %v, %v before its run was told", got.response, got.err)
	}
	return id, answers
}

func TestCreateThatWaitsAnswersWithTheEndAfterOneTransactionAndNoRead(t *testing.T) {
	r := newRig(t)
	warm, answered := r.live(lifeOf("warm", time.Minute))
	r.end(warm, recordv1.Status_STATUS_SUCCEEDED, 7000)
	<-answered // the follow has begun
	before := r.store.count.Load()
	id, answer := r.live(lifeOf("k", time.Minute))
	r.update(id, func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	r.end(id, recordv1.Status_STATUS_SUCCEEDED, 7000)
	got := <-answer
	if got.err != nil || !got.response.GetCreated() || got.response.GetRun().GetStatus() != errandv1.Status_STATUS_SUCCEEDED || got.response.GetRun().GetId() != id {
		t.Errorf("got %v, %v", got.response, got.err)
	}
	if count := r.store.count.Load() - before; count != 1 {
		t.Errorf("the store was asked %d times, want 1", count)
	}
}

func TestCreateThatWaitsIsSentAgain(t *testing.T) {
	r := newRig(t)
	id, first := r.live(lifeOf("k", time.Minute))
	again, second := r.live(lifeOf("k", 2*time.Minute)) // another wait is the same request
	if again != id {
		t.Fatalf("another run: %s", again)
	}
	r.end(id, recordv1.Status_STATUS_FAILED, 7000)
	for i, answer := range []<-chan lifeAnswer{first, second} {
		got := <-answer
		if got.err != nil || got.response.GetRun().GetStatus() != errandv1.Status_STATUS_FAILED || got.response.GetCreated() != (i == 0) {
			t.Errorf("call %d: %v, %v", i, got.response, got.err)
		}
	}
	response, err := r.runs.Create(r.ctx, lifeOf("k", time.Minute))
	if err != nil || response.GetCreated() || response.GetRun().GetStatus() != errandv1.Status_STATUS_FAILED {
		t.Errorf("after the end: %v, %v", response, err)
	}
}

func TestCreateThatWaitsTellsOfTheRunWhenItStopsWaiting(t *testing.T) {
	t.Run("at its time", func(t *testing.T) {
		r := newRig(t)
		response, err := r.runs.Create(r.ctx, lifeOf("", 20*time.Millisecond))
		if err != nil || !response.GetCreated() || response.GetRun().GetStatus() != errandv1.Status_STATUS_PENDING {
			t.Errorf("got %v, %v", response, err)
		}
	})
	t.Run("at the node's stop", func(t *testing.T) {
		r := newRig(t)
		id, answer := r.live(lifeOf("k", time.Minute))
		r.update(id, func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
		// Another that is told of the same change: this one has been, too.
		for {
			if response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: id, Timeout: durationpb.New(time.Millisecond)}); err != nil {
				t.Fatal(err)
			} else if response.GetRun().GetStatus() == errandv1.Status_STATUS_RUNNING {
				break
			}
		}
		r.stop()
		got := <-answer
		if got.err != nil || got.response.GetRun().GetId() != id || got.response.GetRun().GetStatus() == errandv1.Status_STATUS_SUCCEEDED {
			t.Errorf("got %v, %v", got.response, got.err)
		}
	})
	t.Run("when the caller leaves nothing is left", func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancel(r.ctx)
		_, answer := r.liveUntil(ctx, lifeOf("k", time.Minute))
		cancel()
		if got := <-answer; got.err == nil {
			t.Errorf("got %v", got.response)
		}
	})
}

func TestCreateWithAWaitThatIsNone(t *testing.T) {
	r := newRig(t)
	if _, err := r.runs.Create(r.ctx, lifeOf("k", -time.Second)); err == nil {
		t.Error("a negative wait was taken")
	} else {
		wantCode(t, err, codes.InvalidField)
	}
	// A wait of none is none.
	response, err := r.runs.Create(r.ctx, lifeOf("k", 0))
	if err != nil || response.GetRun().GetStatus() != errandv1.Status_STATUS_PENDING {
		t.Errorf("got %v, %v", response, err)
	}
}

func TestCreateThatWaitsEndsWithARunThatIsDeleted(t *testing.T) {
	r := newRig(t)
	id, answer := r.live(lifeOf("k", time.Minute))
	r.retire(id)
	wantCode(t, (<-answer).err, codes.RunDeleted)
}
