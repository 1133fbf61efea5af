package boot_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// TestCreationsUnderWayOverAStopAreAnsweredOrFoundAgain: whoever asks again with the same
// key has the run that was made, whether or not the first answer arrived, and no other.
func TestCreationsUnderWayOverAStopAreAnsweredOrFoundAgain(t *testing.T) {
	config := silent(t)
	config.Listen, config.Dev = "127.0.0.1:0", true
	h := newHost(config).start(t)
	loopback, err := client.New(client.Config{Address: h.node.Address()})
	if err != nil {
		t.Fatal(err)
	}
	defer loopback.Close()
	const submitters = 16
	var answers sync.Map // of keys: the id, or "" where there was none
	var answered atomic.Int64
	enough := make(chan struct{})
	var group sync.WaitGroup
	for i := range submitters {
		c := []*client.Client{h.node.Client(), loopback}[i%2].Once()
		group.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("stop-%d-%d", i, n)
				run, err := c.Submit(context.Background(), submission(key))
				answers.Store(key, run.GetId())
				if err != nil {
					return
				}
				if answered.Add(1) == 10*submitters {
					close(enough)
				}
			}
		})
	}
	select {
	case <-enough:
	case <-within(t, time.Minute).Done():
		t.Error("the runs are not created")
	}
	h.stop(t)
	group.Wait()
	if err := h.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	ctx, lost := within(t, time.Minute), 0
	ids := map[string]string{}
	answers.Range(func(key, before any) bool {
		run, err := h.node.Client().Submit(ctx, submission(key.(string)))
		if err != nil {
			t.Fatal(err)
		}
		if before != "" && run.GetId() != before {
			t.Errorf("%s was run %s and is %s", key, before, run.GetId())
		}
		if other, twice := ids[run.GetId()]; twice {
			t.Errorf("%s and %s are one run", key, other)
		}
		ids[run.GetId()] = key.(string)
		if before == "" {
			lost++
		}
		return true
	})
	if lost != submitters {
		t.Errorf("%d creations were not answered, of %d callers", lost, submitters)
	}
	made := 0
	for run, err := range h.node.Client().All(ctx, &errandv1.ListRunsRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if made++; ids[run.GetId()] == "" {
			t.Errorf("nobody asked for run %s", run.GetId())
		}
	}
	if made != len(ids) {
		t.Errorf("%d runs for %d keys", made, len(ids))
	}
}

func submission(key string) *errandv1.CreateRunRequest {
	return &errandv1.CreateRunRequest{IdempotencyKey: key, Spec: &errandv1.RunSpec{Command: []string{"exit=0", "no-log"}}}
}

func TestClientOfTheProcessFailsWithACodeAndNotWithTheEnginesErrors(t *testing.T) {
	h := newHost(silent(t)).start(t)
	_, err := h.node.Client().Get(within(t, time.Minute), "r.default.none")
	var failed *client.Error
	if !errors.As(err, &failed) || failed.Code != "RUN_NOT_FOUND" || failed.Error() != "get run r.default.none: no run r.default.none" {
		t.Errorf("%v", err)
	}
}
