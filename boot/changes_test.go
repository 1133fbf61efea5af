package boot_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// told collects the changes of runs as a reader over the network is told of them.
type told struct {
	mu     sync.Mutex
	states map[string]int
	ended  int
	news   chan struct{}
}

func (c *told) take(answer *errandv1.RunChangesResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range answer.GetChanges() {
		c.states[fmt.Sprintf("%s at %d", change.GetRun().GetId(), change.GetRun().GetRevision())]++
		if client.Terminal(change.GetRun().GetStatus()) {
			c.ended++
		}
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// await waits until so many runs have ended, or less is asked for.
func (c *told) await(t *testing.T, ended int) {
	t.Helper()
	for ctx := within(t, time.Minute); ; {
		c.mu.Lock()
		enough := c.ended >= ended
		c.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			t.Fatalf("was told of %d ends, want %d", c.ended, ended)
		}
	}
}

func TestReadersMissNothingOverRestartsOfTheNodeAndSeeNothingTwice(t *testing.T) {
	const perLife, lives = 10, 3
	config := silent(t)
	config.Listen, config.Dev = freeAddress(t), true
	reader, err := client.New(client.Config{Address: config.Listen})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	h := newHost(config).start(t)
	list, err := reader.List(within(t, time.Minute), &errandv1.ListRunsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	collected := &told{states: map[string]int{}, news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		for answer, err := range reader.Changes(ctx, &errandv1.RunChangesRequest{Position: list.GetPosition()}) {
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			collected.take(answer)
		}
	})
	waited := make(chan error, lives)
	total, transactions := 0, 0
	for life := range lives {
		// One run goes on over the restart, and a caller waits for it.
		long, err := reader.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"after=1500ms"}}})
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			run, err := reader.Wait(ctx, long.GetId())
			if err == nil && run.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
				err = fmt.Errorf("the long run is %v", run)
			}
			waited <- err
		})
		transactions += h.lifecycles(t, perLife, "exit=0")
		total += perLife + 1
		if life < lives-1 {
			h.stop(t)
			h = newHost(config)
			h.start(t)
		}
	}
	for range lives {
		if err := <-waited; err != nil {
			t.Error(err)
		}
	}
	collected.await(t, total)
	collected.mu.Lock()
	defer collected.mu.Unlock()
	if collected.ended != total {
		t.Errorf("was told of %d ends of %d runs", collected.ended, total)
	}
	for state, times := range collected.states {
		if times != 1 {
			t.Errorf("%s was told %d times", state, times)
		}
	}
	// Every state of a short run, and those of the long ones.
	if len(collected.states) < transactions {
		t.Errorf("was told of %d states, the short runs alone had %d", len(collected.states), transactions)
	}
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
}
