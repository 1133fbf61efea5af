package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// sinkPatience is how long a sink may take to return when the node stops.
const sinkPatience = 5 * time.Second

// tap is a driver whose sandboxes' logs are copied to a sink. It reads the files that
// hold them, as every reader does: neither the command nor the report of its end waits
// for the sink.
type tap struct {
	sandbox.Driver
	sink LogSink
	logs api.Logs
	log  *zap.Logger
	// life ends when the driver is closed.
	life    context.Context //nolint:containedctx // of the goroutines that copy
	end     context.CancelFunc
	copying sync.WaitGroup

	mu    sync.Mutex
	known map[string]*copied // by sandbox
}

// copied is a sandbox whose log is, or is to be, copied.
type copied struct {
	run     string
	attempt int32
	begun   bool
	// gone ends when nothing more is written to the log.
	gone context.Context //nolint:containedctx // the life of the sandbox
	end  context.CancelFunc
}

func tapped(driver sandbox.Driver, sink LogSink, logs api.Logs, log *zap.Logger) *tap {
	t := &tap{Driver: driver, sink: sink, logs: logs, log: log, known: map[string]*copied{}}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// Create implements sandbox.Driver.
func (t *tap) Create(ctx context.Context, spec sandbox.Spec) error {
	err := t.Driver.Create(ctx, spec)
	if err == nil {
		t.know(spec.ID, spec.Run, spec.Attempt, false)
	}
	return err
}

// Start implements sandbox.Driver.
func (t *tap) Start(ctx context.Context, id string) (time.Time, error) {
	at, err := t.Driver.Start(ctx, id)
	var never *sandbox.StartError
	if !errors.As(err, &never) {
		t.know(id, "", 0, true)
	}
	return at, err
}

// List implements sandbox.Driver: what an earlier process has started is found here.
func (t *tap) List(ctx context.Context) ([]sandbox.Info, error) {
	infos, err := t.Driver.List(ctx)
	for _, info := range infos {
		t.know(info.ID, info.Run, info.Attempt, info.State != sandbox.StateCreated)
	}
	return infos, err
}

// Remove implements sandbox.Driver.
func (t *tap) Remove(ctx context.Context, id string) error {
	err := t.Driver.Remove(ctx, id)
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c := t.known[id]; c != nil {
			c.end()
			delete(t.known, id)
		}
	}
	return err
}

// Close implements sandbox.Driver.
func (t *tap) Close() error {
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	done := make(chan struct{})
	go func() {
		t.copying.Wait()
		close(done)
	}()
	patience := time.NewTimer(sinkPatience)
	defer patience.Stop()
	var late error
	select {
	case <-done:
	case <-patience.C:
		late = fmt.Errorf("the log sink has not returned %v after the end of its context", sinkPatience)
	}
	return errors.Join(late, t.Driver.Close())
}

// know takes note of a sandbox, and begins to copy its log once it has started.
func (t *tap) know(id, run string, attempt int32, started bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.known[id]
	if c == nil {
		if run == "" {
			return // removed meanwhile
		}
		c = &copied{run: run, attempt: attempt}
		c.gone, c.end = context.WithCancel(context.Background())
		t.known[id] = c
	}
	if started && !c.begun && t.life.Err() == nil {
		c.begun = true
		t.copying.Go(func() {
			if err := t.copyLog(c); err != nil && t.life.Err() == nil {
				t.log.Warn("the rest of a log is not copied to the sink",
					zap.String("run", c.run), zap.Int32("attempt", c.attempt), zap.Error(err))
			}
		})
	}
}

// copyLog copies a log to its end mark. One whose writer was killed has none: it ends
// when the sandbox is gone.
func (t *tap) copyLog(c *copied) error {
	following, cancel := context.WithCancel(t.life)
	defer cancel()
	defer context.AfterFunc(c.gone, cancel)()
	request := api.LogRequest{Run: c.run, Attempt: c.attempt, Follow: true}
	done, err := t.pass(following, &request)
	if done || t.life.Err() != nil || following.Err() == nil {
		return err
	}
	request.Follow = false
	if done, err = t.pass(t.life, &request); done || err != nil && !errors.Is(err, api.ErrNoLog) {
		return err
	}
	return t.sink(t.life, c.run, &errandv1.LogsResponse{Attempt: c.attempt, End: &errandv1.LogEnd{}})
}

// pass hands a log on from the request's offset, which it moves; done tells that the
// sink has had the end, or wants no more.
func (t *tap) pass(ctx context.Context, request *api.LogRequest) (done bool, err error) {
	reader, err := t.logs.Open(ctx, *request)
	if err != nil {
		return false, err
	}
	defer func() { _ = reader.Close() }()
	for {
		batch, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		message := logMessage(request.Attempt, batch)
		if len(message.GetChunks()) > 0 {
			request.Offset = message.GetChunks()[len(message.GetChunks())-1].GetNextOffset()
		}
		// What is being handed over when the sandbox goes is handed over.
		if err := t.sink(t.life, request.Run, message); err != nil || batch.End != nil {
			return true, err
		}
	}
}

func logMessage(attempt int32, batch api.LogBatch) *errandv1.LogsResponse {
	message := &errandv1.LogsResponse{Attempt: attempt, Chunks: make([]*errandv1.LogChunk, len(batch.Chunks))}
	for i, chunk := range batch.Chunks {
		message.Chunks[i] = &errandv1.LogChunk{
			Stream: chunk.Stream, At: timestamppb.New(chunk.At), Data: chunk.Data, NextOffset: chunk.Next, DroppedBytes: chunk.Dropped,
		}
	}
	if batch.End != nil {
		message.End = &errandv1.LogEnd{Complete: batch.End.Complete, DroppedBytes: batch.End.DroppedBytes}
	}
	return message
}
