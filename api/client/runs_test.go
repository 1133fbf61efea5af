package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

func submission() *errandv1.CreateRunRequest {
	return &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox", Command: []string{"true"}}}
}

// seven writes to both streams and exits with 7.
func seven(l *fakeapi.Live) {
	l.Start()
	l.Write(errandv1.Stream_STREAM_STDOUT, "out\n")
	l.Write(errandv1.Stream_STREAM_STDERR, "err\n")
	l.Exit(7)
}

func TestSubmitWithALostAnswerMakesOneRun(t *testing.T) {
	for name, key := range map[string]string{"a key of the caller": "mine", "no key": ""} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, func(s *fakeapi.Server) { s.LoseAnswers = 2 })
			c := newClient(t, client.Config{Address: s.URL()})
			request := submission()
			request.IdempotencyKey = key
			run, err := c.Submit(within(t, 2*time.Minute), request)
			if err != nil || len(s.Runs()) != 1 || s.Runs()[0].Run().GetId() != run.GetId() {
				t.Fatalf("%v, %v, %d runs", run, err, len(s.Runs()))
			}
			if request.GetIdempotencyKey() != key {
				t.Error("the caller's request was changed")
			}
		})
	}
}

func TestRepeatedOnlyWhatMaySucceedLater(t *testing.T) {
	for code, want := range map[codes.Code]struct {
		class connect.Code
		calls int
	}{
		codes.StoreUnavailable: {connect.CodeUnavailable, 3}, codes.OutcomeUnknown: {connect.CodeUnavailable, 3},
		codes.StoreConflict: {connect.CodeAborted, 3}, codes.TooManyStreams: {connect.CodeResourceExhausted, 3},
		codes.Deadline: {connect.CodeDeadlineExceeded, 3}, codes.NodeStopping: {connect.CodeUnavailable, 3},
		codes.InvalidField: {connect.CodeInvalidArgument, 1}, codes.IdempotencyConflict: {connect.CodeAlreadyExists, 1},
		codes.TooManyApps: {connect.CodeResourceExhausted, 1}, codes.RequestTooLarge: {connect.CodeResourceExhausted, 1},
		codes.Internal: {connect.CodeInternal, 1}, codes.ForeignOrigin: {connect.CodePermissionDenied, 1},
	} {
		t.Run(string(code), func(t *testing.T) {
			var failures atomic.Int32
			s := startFake(t, func(s *fakeapi.Server) {
				s.CreateError = func() error {
					if failures.Add(1) > 2 {
						return nil
					}
					return fakeapi.Fail(want.class, string(code), "no")
				}
			})
			c := newClient(t, client.Config{Address: s.URL(), Patience: client.Patience{First: 10 * time.Second, PauseMin: time.Millisecond, PauseMax: time.Millisecond}})
			_, err := c.Submit(within(t, 2*time.Minute), submission())
			if calls := s.Calls(errandv1connect.RunServiceCreateProcedure); calls != want.calls {
				t.Errorf("%d calls, want %d (%v)", calls, want.calls, err)
			}
			if want.calls == 1 && client.CodeOf(err) != code {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOnceTriesOnceAndGoneIsNeverTriedAgain(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	var tries atomic.Int32
	var fault atomic.Pointer[error]
	broken := roundTripper(func(*http.Request) (*http.Response, error) { tries.Add(1); return nil, *fault.Load() })
	c := newClient(t, client.Config{Transport: broken, Patience: client.Patience{First: 30 * time.Millisecond, PauseMin: time.Millisecond, PauseMax: time.Millisecond}})
	for _, test := range []struct {
		name   string
		client *client.Client
		fault  error
		once   bool
	}{
		{"a broken connection", c, errors.New("broken"), false},
		{"once", c.Once(), errors.New("broken"), true},
		{"gone", c, client.ErrGone, true},
	} {
		fault.Store(&test.fault)
		tries.Store(0)
		_, err := test.client.Get(ctx, "r.x")
		if err == nil || (tries.Load() == 1) != test.once || !errors.Is(err, test.fault) {
			t.Errorf("%s: %d tries, %v", test.name, tries.Load(), err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWaitSurvivesARestartOfTheNodeAndTellsOfIt(t *testing.T) {
	s := startFake(t, nil)
	live := s.Add(&errandv1.Run{Id: "r.a.x", Status: errandv1.Status_STATUS_RUNNING})
	var told atomic.Int32
	c := newClient(t, client.Config{Address: s.URL(), Retrying: func(r client.Retry) {
		if r.Reached && r.Limit == quick.Again && r.Err != nil && strings.Contains(r.Op, "r.a.x") {
			told.Add(1)
		}
	}})
	if _, err := c.Get(t.Context(), "r.a.x"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		run, err := c.Wait(within(t, 2*time.Minute), "r.a.x")
		if err == nil && run.GetExitCode() != 7 {
			err = errors.New("another code")
		}
		done <- err
	}()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceWaitProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	live.Exit(7)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if told.Load() == 0 {
		t.Error("nobody was told of the outage")
	}
}

func TestWatchOverBrokenConnectionsTellsEachStateOnceAndInOrder(t *testing.T) {
	var cut atomic.Int32
	s := startFake(t, func(s *fakeapi.Server) {
		s.Cut = func(procedure string) int {
			if procedure == errandv1connect.RunServiceWatchProcedure && cut.Add(1) < 4 {
				return 120
			}
			return -1
		}
	})
	live := s.Add(&errandv1.Run{Id: "r.a.x", Status: errandv1.Status_STATUS_PENDING})
	c := newClient(t, client.Config{Address: s.URL()})
	var changing sync.WaitGroup
	defer changing.Wait()
	last, states := int64(0), 0
	for run, err := range c.Watch(within(t, 2*time.Minute), "r.a.x") {
		if err != nil {
			t.Fatal(err)
		}
		if run.GetRevision() <= last {
			t.Errorf("revision %d after %d", run.GetRevision(), last)
		}
		last = run.GetRevision()
		states++
		switch {
		case states == 1:
			// The next connection begins with the state that is known.
			calls := s.Calls(errandv1connect.RunServiceWatchProcedure)
			s.Stop()
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			changing.Go(func() {
				if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceWatchProcedure) > calls }); err == nil {
					live.Start()
				}
			})
		case states < 6:
			live.Hold(strings.Repeat("x", states))
		case states == 6:
			live.Exit(0)
		}
	}
	if got := live.Run(); got.GetRevision() != last || states < 7 {
		t.Errorf("the last state has revision %d of %d, %d states", last, got.GetRevision(), states)
	}
	if cut.Load() < 4 {
		t.Errorf("the wire was cut %d times", cut.Load()-1)
	}
}

func TestLogsOverBrokenConnectionsAreWhatWasWritten(t *testing.T) {
	var cut atomic.Int32
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) {
			l.Start()
			for range 200 {
				l.Write(errandv1.Stream_STREAM_STDOUT, strings.Repeat("0123456789", 20)+"\n")
			}
			l.Exit(0)
		}
		s.Cut = func(procedure string) int {
			if procedure == errandv1connect.RunServiceLogsProcedure && cut.Add(1) < 6 {
				return 9000
			}
			return -1
		}
	})
	c := newClient(t, client.Config{Address: s.URL()})
	ctx := within(t, 2*time.Minute)
	run, err := c.Submit(ctx, submission())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	var end *errandv1.LogEnd
	for message, err := range c.Logs(ctx, &errandv1.LogsRequest{Id: run.GetId(), Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if message.GetAttempt() != 1 {
			t.Errorf("attempt %d", message.GetAttempt())
		}
		for _, chunk := range message.GetChunks() {
			text.Write(chunk.GetData())
		}
		end = message.GetEnd()
	}
	if want := strings.Repeat(strings.Repeat("0123456789", 20)+"\n", 200); text.String() != want || !end.GetComplete() {
		t.Errorf("%d bytes, want %d; end %v", text.Len(), len(want), end)
	}
	if cut.Load() < 6 {
		t.Errorf("the wire was cut %d times", cut.Load())
	}
}

func TestLeavingALoopEndsTheCall(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seven })
	c := newClient(t, client.Config{Address: s.URL()})
	ctx := within(t, 2*time.Minute)
	run, err := c.Submit(ctx, submission())
	if err != nil {
		t.Fatal(err)
	}
	for _, err = range c.Watch(ctx, run.GetId()) {
		break
	}
	if err != nil {
		t.Error(err)
	}
	for _, err = range c.Logs(ctx, &errandv1.LogsRequest{Id: run.GetId(), Follow: true}) {
		break
	}
	if err != nil {
		t.Error(err)
	}
	for _, err = range c.All(ctx, &errandv1.ListRunsRequest{}) {
		break
	}
	if err != nil {
		t.Error(err)
	}
	// That nothing is left behind is TestMain's to see.
}

func TestAllReadsEveryPageAndListOne(t *testing.T) {
	s := startFake(t, nil)
	for range 7 {
		s.Add(&errandv1.Run{Id: "r.a." + strings.Repeat("x", len(s.Runs())+1), App: "a", Status: errandv1.Status_STATUS_RUNNING})
	}
	c := newClient(t, client.Config{Address: s.URL()})
	ctx := within(t, 2*time.Minute)
	request := &errandv1.ListRunsRequest{App: "a", PageSize: 3}
	seen := map[string]bool{}
	for run, err := range c.All(ctx, request) {
		if err != nil {
			t.Fatal(err)
		}
		seen[run.GetId()] = true
	}
	if calls := s.Calls(errandv1connect.RunServiceListProcedure); len(seen) != 7 || calls != 3 || request.GetPageToken() != "" {
		t.Errorf("%d runs in %d calls; the request has become %v", len(seen), calls, request)
	}
	page, err := c.List(ctx, request)
	if err != nil || len(page.GetRuns()) != 3 || page.GetNextPageToken() == "" {
		t.Errorf("%v, %v", page, err)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: "r.a.x"})
	counting := &countingTransport{Transport: &http.Transport{}}
	c := newClient(t, client.Config{Address: s.URL(), Transport: counting})
	for range 20 {
		if _, err := c.Get(t.Context(), "r.a.x"); err != nil {
			t.Fatal(err)
		}
	}
	// The transport gives one up whose write it does not see done in time.
	if made := counting.made.Load(); made > 5 {
		t.Errorf("%d connections for 20 calls", made)
	}
}

func TestImportOfABrokenArchiveIsNotTakenForAWhole(t *testing.T) {
	s := startFake(t, nil)
	c := newClient(t, client.Config{Address: s.URL()})
	failing := &failingReader{left: 3 << 20}
	if _, err := c.ImportImage(within(t, 2*time.Minute), "x", failing); client.CodeOf(err) != codes.Archive || !errors.Is(err, errDisk) {
		t.Errorf("%v", err)
	}
	if got := len(s.Imports()); got != 0 {
		t.Errorf("%d imports", got)
	}
	if calls := s.Calls(errandv1connect.ImageServiceImportProcedure); calls > 1 {
		t.Errorf("%d calls", calls)
	}
}

// What is given up between two pieces ends, too, with its connection; goleak sees that
// nothing is left.
func TestImportThatIsGivenUpBetweenTwoPiecesEnds(t *testing.T) {
	s := startFake(t, nil)
	c := newClient(t, client.Config{Address: s.URL()})
	ctx, cancel := context.WithCancel(within(t, 2*time.Minute))
	defer cancel()
	pieces := 0
	archive := readFunc(func(p []byte) (int, error) {
		if pieces++; pieces == 2 {
			cancel()
		}
		return len(p), nil
	})
	if _, err := c.ImportImage(ctx, "x", archive); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if got := len(s.Imports()); got != 0 {
		t.Errorf("%d imports", got)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

var errDisk = errors.New("the disk is gone")

type failingReader struct{ left int }

func (r *failingReader) Read(p []byte) (int, error) {
	n := min(len(p), r.left)
	if n == 0 {
		return 0, errDisk
	}
	r.left -= n
	return n, nil
}
