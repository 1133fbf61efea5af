package api_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestACallIsAnsweredBeforeItsCallerWaitsNoLonger(t *testing.T) {
	began := time.Now()
	for _, c := range []struct {
		name string
		// waits is how long the caller does, 0 for one who does not say.
		waits, want time.Duration
	}{
		{"who does not say how long he waits", 0, api.CallTimeout},
		{"who waits longer than a call takes", time.Hour, api.CallTimeout},
		{"who waits for less", 20 * time.Second, 19 * time.Second},
		{"who hardly waits", time.Second, 900 * time.Millisecond},
		{"who has gone already", -time.Second, -900 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if c.waits != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, began.Add(c.waits))
				defer cancel()
			}
			if got := api.AnswerBy(ctx, began).Sub(began); got != c.want {
				t.Errorf("answered by %s, want %s", got, c.want)
			}
		})
	}
}

// Who waits for a while learns why there is no answer from the server, not from his own
// clock.
func TestACallThatGetsNowhereIsToldSoByTheServer(t *testing.T) {
	r := newRig(t)
	r.store.do = func(ctx context.Context, _ records.Txn) (records.Result, error) {
		<-ctx.Done()
		return records.Result{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
	defer cancel()
	_, err := r.runs.Get(ctx, &errandv1.GetRunRequest{Id: "r.web.abc"})
	if !connect.IsWireError(err) || ctx.Err() != nil {
		t.Errorf("%v, from the server: %v, the caller's time: %v", err, connect.IsWireError(err), ctx.Err())
	}
}
