package api_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/codes"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestWatchSendsTheStateThenChangesAndEndsWithTheRun(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	r.put("r.web.ab", nil) // its key begins with the other's
	stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	next := func() *errandv1.Run {
		t.Helper()
		if !stream.Receive() {
			t.Fatalf("the stream ended: %v", stream.Err())
		}
		return stream.Msg().GetRun()
	}
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_PENDING {
		t.Errorf("first %v", got)
	}
	r.update("r.web.ab", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_RUNNING || got.GetId() != "r.web.a" {
		t.Errorf("then %v", got)
	}
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 7000)
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
		t.Errorf("last %v", got)
	}
	if stream.Receive() || stream.Err() != nil {
		t.Errorf("goes on after the end: %v", stream.Err())
	}
}

func TestWatchOfADeletedRunEnds(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	r.retire("r.web.a")
	for stream.Receive() {
	}
	wantCode(t, stream.Err(), codes.RunDeleted)
}

func TestWait(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	t.Run("answers at its timeout and leaves the run going", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(20 * time.Millisecond)})
		if err != nil || response.GetTerminal() || response.GetRun().GetStatus() != errandv1.Status_STATUS_PENDING {
			t.Errorf("got %v, %v", response, err)
		}
	})
	t.Run("of no time answers at once", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(0)})
		if err != nil || response.GetTerminal() {
			t.Errorf("got %v, %v", response, err)
		}
	})
	t.Run("refuses a negative timeout", func(t *testing.T) {
		_, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(-time.Second)})
		wantCode(t, err, codes.InvalidField)
	})
	t.Run("of a caller with a deadline of its own says so", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := r.runs.Wait(ctx, &errandv1.WaitRunRequest{Id: "r.web.a"}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("answers when the run ends, without asking the store again", func(t *testing.T) {
		before := r.store.count.Load()
		ended := make(chan error, 1)
		go func() {
			response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(time.Minute)})
			if err == nil && (!response.GetTerminal() || response.GetRun().GetStatus() != errandv1.Status_STATUS_CANCELED) {
				err = fmt.Errorf("got %v", response)
			}
			ended <- err
		}()
		r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
		r.end("r.web.a", recordv1.Status_STATUS_CANCELED, 7000)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := r.store.count.Load() - before; got != 1 {
			t.Errorf("%d reads", got)
		}
	})
	t.Run("answers at once for a run that has ended", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a"})
		if err != nil || !response.GetTerminal() {
			t.Errorf("got %v, %v", response, err)
		}
	})
}
