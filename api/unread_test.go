package api_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// TestSignalsPassInputThatIsNotRead of one who gives a command more than it takes, whether
// it is the run's or one beside; what is under way stays bounded, and its end is told.
func TestSignalsPassInputThatIsNotRead(t *testing.T) {
	signals, resizes := make(chan int32), make(chan *errandv1.TerminalSize)
	t.Run("attach", func(t *testing.T) {
		r, g, c := newAttachRig(t)
		g.stuck = true
		source := &counted{from: io.LimitReader(endless{}, 2<<20)}
		ended := attached(r.ctx, t, c, client.Attach{Run: insideRun, Stdin: source, Signals: signals, Resizes: resizes, Typed: true})
		source.await(r.ctx, t)
		signals <- 2
		g.heard(r.ctx, t, "signal 2")
		resizes <- &errandv1.TerminalSize{Rows: 7, Columns: 8}
		g.heard(r.ctx, t, "size 7 8")
		if n := source.read.Load(); n > 1<<20 {
			t.Errorf("%d bytes were read of the input of a command that takes none", n)
		}
		r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, 5)
		if err := <-ended; err != nil {
			t.Errorf("attach: %v", err)
		}
	})
	t.Run("exec", func(t *testing.T) {
		r, in, c := newInsideRig(t)
		source := &counted{from: io.LimitReader(endless{}, 2<<20)}
		in.do = func(_ context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
			e.Started()
			source.await(r.ctx, t)
			signals <- 2
			if control := <-e.Control; control.Signal != 2 {
				t.Errorf("control brought %+v", control)
			}
			if n := source.read.Load(); n > 1<<20 {
				t.Errorf("%d bytes were read of the input of a command that takes none", n)
			}
			n, err := io.Copy(io.Discard, e.Stdin)
			if n != 2<<20 || err != nil {
				t.Errorf("%d bytes came, %v", n, err)
			}
			signals <- 3 // behind the end of the input
			if control := <-e.Control; control.Signal != 3 {
				t.Errorf("control brought %+v", control)
			}
			return sandbox.ExecEnd{Code: 9}, nil
		}
		exited, err := c.Exec(r.ctx, client.Exec{Start: start("sleep", "1h"), Stdin: source, Signals: signals})
		if err != nil || exited.GetCode() != 9 {
			t.Errorf("exec: %v, %v", exited, err)
		}
	})
}

// TestWhoIgnoresTheWindowIsHeldUp: what the node holds of him is bounded.
func TestWhoIgnoresTheWindowIsHeldUp(t *testing.T) {
	r, g, _ := newAttachRig(t)
	g.stuck = true
	stream, err := r.runs.Attach(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&errandv1.AttachRequest{Start: &errandv1.AttachStart{Id: insideRun}})
	got, err := stream.Receive()
	if err != nil || !got.GetOpen() || got.GetWindow() < 64<<10 || got.GetWindow() > 1<<20 {
		t.Fatalf("open: %v, %v", got, err)
	}
	sent := make(chan int, 1)
	go func() {
		piece, n := make([]byte, 64<<10), 0
		for stream.Send(&errandv1.AttachRequest{Stdin: piece}) == nil {
			n += len(piece)
		}
		sent <- n
	}()
	// A second one takes the input, though the first one's is not received.
	taker, err := r.runs.Attach(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = taker.Send(&errandv1.AttachRequest{Start: &errandv1.AttachStart{Id: insideRun, Take: true}})
	_, err = stream.Receive()
	wantCode(t, err, "RUN_ATTACHED")
	if n := <-sent; n > 4<<20 {
		t.Errorf("%d bytes went on their way to a command that reads nothing", n)
	}
	for _, stream := range []*connect.BidiStreamForClientSimple[errandv1.AttachRequest, errandv1.AttachResponse]{stream, taker} {
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}
}

// counted counts what is read.
type counted struct {
	from io.Reader
	read atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// await waits until more is read than any one message holds.
func (c *counted) await(ctx context.Context, t *testing.T) {
	for c.read.Load() < 256<<10 {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Error("the input is not read")
			return
		}
	}
}
