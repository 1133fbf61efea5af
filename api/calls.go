package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// longCalls are the calls that last as long as their callers want. Each counts
// against streamsMax; every other call is bounded by callTimeout.
var longCalls = map[string]bool{
	errandv1connect.RunServiceWatchProcedure:    true,
	errandv1connect.RunServiceChangesProcedure:  true,
	errandv1connect.RunServiceWaitProcedure:     true,
	errandv1connect.RunServiceLogsProcedure:     true,
	errandv1connect.RunServiceExecProcedure:     true,
	errandv1connect.RunServiceAttachProcedure:   true,
	errandv1connect.RunServiceCopyFromProcedure: true,
	errandv1connect.ImageServiceImportProcedure: true,
	errandv1connect.ImageServicePullProcedure:   true,
}

// callKind says what bounds a call.
type callKind int

const (
	// A shortCall has callTimeout.
	shortCall callKind = iota
	// A longCall lasts until its caller leaves or the node stops.
	longCall
	// A waitingCall sees to its bounds itself: it begins as a short one and goes on as a
	// long one.
	waitingCall
)

func kindOf(procedure string) callKind {
	if longCalls[procedure] {
		return longCall
	}
	return shortCall
}

// callInterceptor bounds, ends and counts every call.
type callInterceptor struct {
	server *Server
}

// WrapUnary implements connect.Interceptor.
func (i *callInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		var response connect.AnyResponse
		err := i.server.unary(ctx, request.Spec().Procedure, request.Any(), func(ctx context.Context) (err error) {
			response, err = next(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (i *callInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *callInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		procedure := conn.Spec().Procedure
		return i.server.call(ctx, procedure, kindOf(procedure), func(ctx context.Context) error {
			return next(ctx, exactConn{conn})
		})
	}
}

// unary is a call that is answered once, however it came.
func (s *Server) unary(ctx context.Context, procedure string, request any, next func(context.Context) error) error {
	kind := kindOf(procedure)
	if waits(request) {
		kind = waitingCall
	}
	return s.call(ctx, procedure, kind, func(ctx context.Context) error {
		if err := refuseFaults(request); err != nil {
			return err
		}
		if over := contextError(ctx); over != nil {
			return over
		}
		return next(ctx)
	})
}

func (s *Server) call(ctx context.Context, procedure string, kind callKind, next func(context.Context) error) (err error) {
	began := time.Now()
	defer func() { s.metrics.observe(procedure, err, time.Since(began)) }()
	defer s.recovered(procedure, &err)
	if kind != shortCall {
		defer s.streams.Add(-1)
		if s.streams.Add(1) > streamsMax {
			return fail(codes.TooManyStreams, "the node serves %d streams, the most it may: call again later", streamsMax)
		}
		if kind == waitingCall {
			return next(ctx)
		}
		// Only long calls are cut when the node stops: the others end by themselves
		// well within the time that a shutdown has.
		var cancel context.CancelFunc
		ctx, cancel = s.callContext(ctx)
		defer cancel()
		return next(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, answerBy(ctx, began))
	defer cancel()
	return next(ctx)
}

// answerBy is until when a call that began at a moment must be answered: within
// callTimeout, and so much before the caller waits no longer that he still hears why.
func answerBy(ctx context.Context, began time.Time) time.Time {
	by := began.Add(callTimeout)
	if until, ok := ctx.Deadline(); ok {
		if told := until.Add(-min(answerMargin, until.Sub(began)/10)); told.Before(by) {
			return told
		}
	}
	return by
}

// metrics counts calls; a nil one counts nothing.
type metrics struct {
	durations *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	if registerer == nil {
		return nil, nil //nolint:nilnil // a nil *metrics counts nothing
	}
	m := &metrics{durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "errand_api_call_duration_seconds",
		Help:    "How long API calls took, streams from their begin to their end, by procedure and Connect code.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30, 300},
	}, []string{"procedure", "code"})}
	return m, registerer.Register(m.durations)
}

func (m *metrics) observe(procedure string, err error, took time.Duration) {
	if m == nil {
		return
	}
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.durations.WithLabelValues(procedure, code).Observe(took.Seconds())
}

// withDeadlines bounds how long a peer may take to send a request and to take a
// piece of the answer, so that one that stands still holds nothing for ever.
func (s *Server) withDeadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		controller := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			body := &timedBody{ReadCloser: r.Body, controller: controller, stopping: s.stopping}
			switch {
			case openEnded[r.URL.Path]:
				r = withEndOfBody(r, body)
			case r.URL.Path == errandv1connect.ImageServiceImportProcedure:
				body.idle = importIdleTimeout
			default:
				body.deadline(time.Now().Add(bodyTimeout))
			}
			defer body.end()
			defer context.AfterFunc(s.stopping, body.cut)()
			r.Body = body
			if body.idle == 0 && !openEnded[r.URL.Path] {
				r.Body = &boundedBody{ReadCloser: body, left: requestBytesMax}
			}
		}
		next.ServeHTTP(&timedWriter{ResponseWriter: w, controller: controller}, r)
	})
}

// timedBody lifts the deadline once the request is read: a deadline that passes
// while the answer is under way would end the call.
type timedBody struct {
	io.ReadCloser
	controller *http.ResponseController
	// idle bounds each read instead of the whole body.
	idle time.Duration
	// stopping ends when the node stops.
	stopping context.Context

	mu sync.Mutex
	// until is the last moment for the request's end once the node stops.
	until time.Time
	// over is set when the body or the call has ended: the deadlines of a connection
	// belong to its next request then.
	over bool
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.idle > 0 {
		b.deadline(time.Now().Add(b.idle))
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.lift()
	case errors.Is(err, os.ErrDeadlineExceeded) && b.stopping.Err() != nil:
		err = stoppingError()
	case b.idle > 0:
		b.deadline(time.Time{})
	}
	return n, err
}

// deadline sets when a read fails; zero is never, but for the time of a stop. Not every
// writer has deadlines (those of tests have none); nothing is lost without them but the
// bound.
func (b *timedBody) deadline(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setDeadline(at)
}

// cut gives a request that is not whole yet a last moment.
func (b *timedBody) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = time.Now().Add(lateRequestTime)
	b.setDeadline(b.until)
}

func (b *timedBody) setDeadline(at time.Time) {
	if b.over {
		return
	}
	if !b.until.IsZero() && (at.IsZero() || at.After(b.until)) {
		at = b.until
	}
	_ = b.controller.SetReadDeadline(at)
}

// lift takes the deadline away at the end of the body.
func (b *timedBody) lift() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.over = true
		_ = b.controller.SetReadDeadline(time.Time{})
	}
}

func (b *timedBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// timedWriter bounds each write.
type timedWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

// Unwrap is for http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *timedWriter) Write(p []byte) (int, error) {
	_ = w.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer func() { _ = w.controller.SetWriteDeadline(time.Time{}) }()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams need.
func (w *timedWriter) Flush() {
	_ = w.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer func() { _ = w.controller.SetWriteDeadline(time.Time{}) }()
	_ = w.controller.Flush()
}
