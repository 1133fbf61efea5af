package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// given is what a command was given, in order.
type given struct {
	mu   sync.Mutex
	said []string
	data bytes.Buffer
	// stuck makes Write block until Close, as with a command that does not read.
	stuck   bool
	closed  chan struct{}
	changed chan struct{}
	once    sync.Once
}

func newGiven() *given { return &given{closed: make(chan struct{}), changed: make(chan struct{}, 1)} }

func (g *given) say(text string) error {
	g.mu.Lock()
	g.said = append(g.said, text)
	g.mu.Unlock()
	g.touch()
	return nil
}

func (g *given) touch() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

func (g *given) Write(p []byte) (int, error) {
	if g.stuck {
		<-g.closed
		return 0, errors.New("closed")
	}
	g.mu.Lock()
	g.data.Write(p)
	g.mu.Unlock()
	g.touch()
	return len(p), nil
}
func (g *given) End() error { return g.say("end") }
func (g *given) Resize(rows, columns uint16) error {
	return g.say(fmt.Sprintf("size %d %d", rows, columns))
}
func (g *given) Signal(signal int) error { return g.say(fmt.Sprintf("signal %d", signal)) }
func (g *given) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func (g *given) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.data.String()
}

// await waits for a state of what was given.
func (g *given) await(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	for {
		g.mu.Lock()
		ok := holds()
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-g.changed:
		case <-ctx.Done():
			t.Fatalf("never %s; said %q, %d bytes", what, g.said, g.data.Len())
		}
	}
}

func (g *given) heard(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	g.await(ctx, t, text, func() bool { return slices.Contains(g.said, text) })
}

// newAttachRig has a run that runs on this node and has an input.
func newAttachRig(t *testing.T) (*rig, *given, *client.Client) {
	t.Helper()
	r, in, c := newInsideRig(t)
	g := newGiven()
	in.open = func() (sandbox.Input, error) { return g, nil }
	r.update(insideRun, func(run *recordv1.Run) { run.Spec.Stdin = true })
	return r, g, c
}

// attached begins a call of Attach and returns how it ended, once it is open.
func attached(ctx context.Context, t *testing.T, c *client.Client, attach client.Attach) <-chan error {
	t.Helper()
	ended, open := make(chan error, 1), make(chan struct{}, 8)
	before := attach.Open
	attach.Open = func(again bool, unsure int64) {
		if before != nil {
			before(again, unsure)
		}
		open <- struct{}{}
	}
	go func() { ended <- c.Attach(ctx, attach) }()
	select {
	case <-open:
	case err := <-ended:
		t.Fatalf("attach: %v", err)
	case <-ctx.Done():
		t.Fatal("attach is never open")
	}
	return ended
}

func TestAttachGivesTheCommandWhatTheCallerSends(t *testing.T) {
	r, g, c := newAttachRig(t)
	resizes, signals := make(chan *errandv1.TerminalSize), make(chan int32)
	reader, writer := io.Pipe()
	ended := attached(r.ctx, t, c, client.Attach{Run: "inside", Stdin: reader, Resizes: resizes, Signals: signals})
	resizes <- &errandv1.TerminalSize{Rows: 5, Columns: 6}
	g.heard(r.ctx, t, "size 5 6")
	signals <- 15
	g.heard(r.ctx, t, "signal 15")
	text := strings.Repeat("input ", 100_000)
	if _, err := io.WriteString(writer, text); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	g.heard(r.ctx, t, "end")
	if g.text() != text {
		t.Errorf("%d bytes of %d arrived", len(g.text()), len(text))
	}
	r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, 5)
	if err := <-ended; err != nil {
		t.Errorf("attach: %v", err)
	}
	select {
	case <-g.closed:
	default:
		t.Error("the input stays open")
	}
}

// TestAttachWaitsForTheStart: who attaches to a run that waits is refused only for what
// stays so.
func TestAttachWaitsForTheStart(t *testing.T) {
	r, g, c := newAttachRig(t)
	r.put("r.shop.waits", func(run *recordv1.Run) { run.Spec = &recordv1.Spec{Driver: "process", Terminal: true} })
	ended := make(chan error, 1)
	open := make(chan struct{})
	go func() {
		ended <- c.Attach(r.ctx, client.Attach{Run: "r.shop.waits", Stdin: strings.NewReader("early"), Open: func(bool, int64) { close(open) }})
	}()
	r.update("r.shop.waits", func(run *recordv1.Run) {
		run.Status = recordv1.Status_STATUS_RUNNING
		placed("n1", 1)(run)
	})
	<-open
	g.heard(r.ctx, t, "end")
	if g.text() != "early" {
		t.Errorf("got %q", g.text())
	}
	r.end("r.shop.waits", recordv1.Status_STATUS_CANCELED, 5)
	if err := <-ended; err != nil {
		t.Errorf("attach: %v", err)
	}
}

// TestOnlyOneIsAttached: a second one is refused, takes the input, or is the same one.
func TestOnlyOneIsAttached(t *testing.T) {
	r, g, c := newAttachRig(t)
	first := attached(r.ctx, t, c, client.Attach{Run: insideRun})
	if err := c.Attach(r.ctx, client.Attach{Run: insideRun}); client.CodeOf(err) != codes.RunAttached {
		t.Fatalf("a second one: %v", err)
	}
	second := attached(r.ctx, t, c, client.Attach{Run: insideRun, Take: true, Stdin: strings.NewReader("mine")})
	if err := <-first; client.CodeOf(err) != codes.RunAttached {
		t.Errorf("the one whose input was taken: %v", err)
	}
	g.await(r.ctx, t, "mine", func() bool { return g.data.String() == "mine" })
	r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, 5)
	if err := <-second; err != nil {
		t.Errorf("attach: %v", err)
	}
}

// TestAttachAgainTakesItsOwnPlace: a connection that nobody has noticed to be gone does
// not keep its client out.
func TestAttachAgainTakesItsOwnPlace(t *testing.T) {
	r, _, _ := newAttachRig(t)
	streams := make([]*connect.BidiStreamForClientSimple[errandv1.AttachRequest, errandv1.AttachResponse], 2)
	for i := range streams {
		stream, err := r.runs.Attach(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = stream
		_ = stream.Send(&errandv1.AttachRequest{Start: &errandv1.AttachStart{Id: insideRun, Client: "me"}})
		if got, err := stream.Receive(); err != nil || !got.GetOpen() {
			t.Fatalf("attach %d: %v, %v", i, got, err)
		}
	}
	_, err := streams[0].Receive()
	wantCode(t, err, "RUN_ATTACHED")
	for _, stream := range streams {
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}
}

// TestAttachOfACallerThatLeavesFreesTheInput also when the command reads nothing.
func TestAttachOfACallerThatLeavesFreesTheInput(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprintf("a command that reads nothing: %t", stuck), func(t *testing.T) {
			r, g, c := newAttachRig(t)
			g.stuck = stuck
			ctx, leave := context.WithCancel(r.ctx)
			defer leave()
			ended := attached(ctx, t, c, client.Attach{Run: insideRun, Stdin: endless{}})
			leave()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("attach: %v", err)
			}
			<-g.closed
			run, _ := r.record(insideRun)
			if records.Terminal(run.GetStatus()) || run.GetWish() != nil {
				t.Errorf("the run became %v", run)
			}
		})
	}
}

func TestAttachIsRefusedInWords(t *testing.T) {
	r, _, c := newAttachRig(t)
	r.put("r.shop.elsewhere", func(run *recordv1.Run) {
		run.Status, run.Spec = recordv1.Status_STATUS_RUNNING, &recordv1.Spec{Driver: "process", Stdin: true}
		placed("n2", 1)(run)
	})
	r.put("r.shop.mute", nil)
	r.put("r.shop.over", func(run *recordv1.Run) { run.Spec.Stdin = true })
	r.end("r.shop.over", recordv1.Status_STATUS_FAILED, 5)
	for _, test := range []struct {
		name, run string
		code      codes.Code
		says      string
	}{
		{name: "no run", code: "INVALID_FIELD", says: "is missing"},
		{name: "unknown run", run: "r.shop.nosuch", code: "RUN_NOT_FOUND"},
		{name: "a run that has ended", run: "r.shop.over", code: "RUN_TERMINAL", says: "FAILED"},
		{name: "a command without input", run: "r.shop.mute", code: "RUN_NO_INPUT"},
		{name: "a run elsewhere", run: "r.shop.elsewhere", code: "RUN_ELSEWHERE", says: "n2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := c.Attach(r.ctx, client.Attach{Run: test.run})
			var failed *client.Error
			if !errors.As(err, &failed) || failed.Code != test.code || !strings.Contains(failed.Message, test.says) {
				t.Errorf("got %v; want %s with %q", err, test.code, test.says)
			}
		})
	}
}

// TestAttachRefusesWhatNoClientSends: rubbish ends the call with its name, and frees the
// input.
func TestAttachRefusesWhatNoClientSends(t *testing.T) {
	r, _, _ := newAttachRig(t)
	start := &errandv1.AttachRequest{Start: &errandv1.AttachStart{Id: insideRun}}
	for _, test := range []struct {
		name  string
		sends []*errandv1.AttachRequest
		names string
	}{
		{name: "no start", sends: []*errandv1.AttachRequest{{Stdin: []byte("first")}}, names: "start"},
		{name: "a name that is too long", sends: []*errandv1.AttachRequest{{Start: &errandv1.AttachStart{Id: insideRun, Client: strings.Repeat("x", 65)}}}, names: "start.client"},
		{name: "another start", sends: []*errandv1.AttachRequest{start, start}, names: "start"},
		{name: "too much input", sends: []*errandv1.AttachRequest{start, {Stdin: make([]byte, 64<<10+1)}}, names: "stdin"},
		{name: "no such signal", sends: []*errandv1.AttachRequest{start, {Signal: 65}}, names: "signal"},
		{name: "a negative signal", sends: []*errandv1.AttachRequest{start, {Signal: -1}}, names: "signal"},
		{name: "a million rows", sends: []*errandv1.AttachRequest{start, {Resize: &errandv1.TerminalSize{Rows: 1 << 20}}}, names: "resize"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stream, err := r.runs.Attach(r.ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range test.sends {
				_ = stream.Send(message)
			}
			for err == nil {
				_, err = stream.Receive()
			}
			wantCode(t, err, "INVALID_FIELD")
			if !strings.Contains(err.Error(), test.names) {
				t.Errorf("got %v; want %s named", err, test.names)
			}
			_ = stream.CloseRequest()
			_ = stream.CloseResponse()
		})
	}
	status, body := r.post("/errand.v1.RunService/Attach", "\x00\x00\x00\x00\xffrubbish", withToken)
	if status < 400 {
		t.Errorf("rubbish over HTTP/1: %d %s", status, body)
	}
}

// TestAttachGoesOnAfterABreak: the same caller attaches again, and knows what may be lost.
func TestAttachGoesOnAfterABreak(t *testing.T) {
	for _, typed := range []bool{true, false} {
		t.Run(fmt.Sprintf("typed: %t", typed), func(t *testing.T) {
			r, g, _ := newAttachRig(t)
			g.stuck = true
			cut := newCutter()
			c, err := client.New(client.Config{Address: r.url, Token: testToken, Transport: cut})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			unsure := make(chan int64, 1)
			reader, writer := io.Pipe()
			defer writer.Close()
			ended := attached(r.ctx, t, c, client.Attach{Run: insideRun, Stdin: reader, Typed: typed, Open: func(again bool, lost int64) {
				if again {
					unsure <- lost
				}
			}})
			_, _ = io.WriteString(writer, "lost")
			cut.await(r.ctx, t, "lost")
			cut.cut()
			if !typed {
				var lost *client.InputLostError
				if err := <-ended; !errors.As(err, &lost) || lost.Unsure != 4 {
					t.Errorf("attach: %v", err)
				}
				return
			}
			if lost := <-unsure; lost != 4 {
				t.Errorf("%d bytes may be lost; want 4", lost)
			}
			r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, 5)
			if err := <-ended; err != nil {
				t.Errorf("attach: %v", err)
			}
		})
	}
}

// TestConsoleIsToldThatItsClientIsThere, and no other run.
func TestConsoleIsToldThatItsClientIsThere(t *testing.T) {
	r, _, c := newAttachRig(t)
	told := func() (n int) {
		r.router.mu.Lock()
		defer r.router.mu.Unlock()
		for _, message := range r.router.told {
			if attended, ok := message.(*actorv1.Attended); ok && attended.GetRun() == insideRun {
				n++
			}
		}
		return n
	}
	ctx, leave := context.WithCancel(r.ctx)
	ended := attached(ctx, t, c, client.Attach{Run: insideRun})
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("attach: %v", err)
	}
	if told() != 0 {
		t.Error("a run that goes on without its client was told of it")
	}
	r.update(insideRun, func(run *recordv1.Run) { run.Trigger = recordv1.Trigger_TRIGGER_CONSOLE })
	ctx, leave = context.WithCancel(r.ctx)
	ended = attached(ctx, t, c, client.Attach{Run: insideRun})
	for told() < 2 {
		select {
		case <-r.router.tells:
		case <-r.ctx.Done():
			t.Fatal("the run's actor is not told again")
		}
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("attach: %v", err)
	}
}

func TestInputIsCheckedWhenARunIsMade(t *testing.T) {
	r := newRig(t)
	for _, test := range []struct {
		name   string
		change func(*errandv1.CreateRunRequest)
		names  string
	}{
		{name: "a console without", change: func(c *errandv1.CreateRunRequest) { c.Trigger = errandv1.Trigger_TRIGGER_CONSOLE }, names: "spec.stdin"},
		{name: "with a retry", change: func(c *errandv1.CreateRunRequest) {
			c.Spec.Stdin, c.Spec.Retry = true, &errandv1.Retry{Retries: 1}
		}, names: "spec.stdin"},
		{name: "of the null driver", change: func(c *errandv1.CreateRunRequest) { c.Spec.Terminal, c.Spec.Driver = true, "null" }, names: "spec.terminal"},
		{name: "a console that is tried again", change: func(c *errandv1.CreateRunRequest) {
			c.Trigger, c.Spec.Stdin, c.Spec.Retry = errandv1.Trigger_TRIGGER_CONSOLE, true, &errandv1.Retry{Retries: 1}
		}, names: "spec.retry"},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Driver: "process", Command: []string{"true"}}}
			test.change(request)
			_, err := r.runs.Create(r.ctx, request)
			wantCode(t, err, "INVALID_FIELD")
			if !strings.Contains(err.Error(), test.names) {
				t.Errorf("got %v; want %s named", err, test.names)
			}
		})
	}
	made := r.create(func(c *errandv1.CreateRunRequest) {
		c.Spec.Driver, c.Spec.Stdin, c.Spec.Terminal = "process", true, true
	}).GetRun()
	run, _ := r.record(made.GetId())
	if !run.GetSpec().GetStdin() || !run.GetSpec().GetTerminal() || run.GetMinWriter() != 3 || !made.GetSpec().GetStdin() || !made.GetSpec().GetTerminal() {
		t.Errorf("stored %v, shown %v", run, made)
	}
}
