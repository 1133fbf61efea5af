package boot

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/api"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// oneSandbox is a driver with one sandbox, which does nothing.
type oneSandbox struct {
	sandbox.Driver
	state    sandbox.State
	startErr error
}

func (d *oneSandbox) Create(context.Context, sandbox.Spec) error { return nil }
func (d *oneSandbox) Remove(context.Context, string) error       { return nil }
func (d *oneSandbox) Close() error                               { return nil }
func (d *oneSandbox) Start(context.Context, string) (time.Time, error) {
	return time.Time{}, d.startErr
}

func (d *oneSandbox) List(context.Context) ([]sandbox.Info, error) {
	return []sandbox.Info{{ID: "e1", Run: "r.a.x", Attempt: 1, State: d.state}}, nil
}

// unended is a log of two chunks that never gets its end mark.
type unended struct {
	mu     sync.Mutex
	opened []api.LogRequest
}

func (u *unended) Open(_ context.Context, request api.LogRequest) (api.LogReader, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.opened = append(u.opened, request)
	return &unendedReader{request: request}, nil
}

type unendedReader struct{ request api.LogRequest }

func (r *unendedReader) Close() error { return nil }

func (r *unendedReader) Next(ctx context.Context) (api.LogBatch, error) {
	var batch api.LogBatch
	last := int64(1)
	if !r.request.Follow {
		last = 2 // the second one came when nobody followed any more
	}
	if r.request.Offset < last {
		r.request.Offset++
		batch.Chunks = []api.LogChunk{{Stream: errandv1.Stream_STREAM_STDOUT, Data: []byte("x"), Next: r.request.Offset}}
		return batch, nil
	}
	if r.request.Follow {
		<-ctx.Done()
		return batch, ctx.Err()
	}
	return batch, io.EOF
}

func TestTapCopiesALogWithoutAnEndOnceUntilItsSandboxIsGone(t *testing.T) {
	driver, logs, ctx := &oneSandbox{state: sandbox.StateRunning}, &unended{}, t.Context()
	messages := make(chan *errandv1.LogsResponse, 100)
	tap := tapped(driver, func(_ context.Context, run string, message *errandv1.LogsResponse) error {
		if run != "r.a.x" {
			t.Errorf("run %q", run)
		}
		messages <- message
		return nil
	}, logs, zap.NewNop())
	if err := tap.Create(ctx, sandbox.Spec{ID: "e1", Run: "r.a.x", Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the node lists its sandboxes now and then
		if _, err := tap.Start(ctx, "e1"); err != nil {
			t.Fatal(err)
		}
		if _, err := tap.List(ctx); err != nil {
			t.Fatal(err)
		}
	}
	first := <-messages
	if err := tap.Remove(ctx, "e1"); err != nil {
		t.Fatal(err)
	}
	second, end := <-messages, <-messages
	if first.GetChunks()[0].GetNextOffset() != 1 || second.GetChunks()[0].GetNextOffset() != 2 || end.GetEnd() == nil || end.GetEnd().GetComplete() {
		t.Errorf("%v, %v, %v", first, second, end)
	}
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
	if len(messages) > 0 || len(logs.opened) != 2 || len(tap.known) > 0 {
		t.Errorf("%d messages more, %d logs opened, %d sandboxes known", len(messages), len(logs.opened), len(tap.known))
	}
}

func TestTapReadsNoLogOfWhatNeverStarted(t *testing.T) {
	driver, logs, ctx := &oneSandbox{state: sandbox.StateCreated, startErr: sandbox.Permanentf(recordv1.Reason_REASON_NOT_FOUND, "no")}, &unended{}, t.Context()
	tap := tapped(driver, func(context.Context, string, *errandv1.LogsResponse) error { return nil }, logs, zap.NewNop())
	if err := tap.Create(ctx, sandbox.Spec{ID: "e1", Run: "r.a.x", Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := tap.List(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := tap.Start(ctx, "e1"); err == nil {
		t.Fatal("it started")
	}
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
	if len(logs.opened) > 0 {
		t.Errorf("opened %v", logs.opened)
	}
}
