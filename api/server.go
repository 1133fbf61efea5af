package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// Config is what a Server is made of. Keys, Store, Router, Logs, Rand and either
// Token or Dev are required.
type Config struct {
	// Node is this node's name: logs of other nodes are not read here.
	Node   string
	Keys   records.Keys
	Store  Store
	Router Router
	Logs   Logs
	// Images is nil on a node without the containerd driver.
	Images Images
	// Pulls is nil on such a node too.
	Pulls Pulls
	// Scores may be nil: then no node is said to have lost any.
	Scores Scores
	// Sandboxes is nil on a node that lets nobody into them.
	Sandboxes Sandboxes
	// Inventory is nil on a node that does not look at its machine.
	Inventory Inventory
	// Drivers are the sandbox drivers that are enabled, the default one first.
	Drivers []string
	// Now is time.Now unless set.
	Now  func() time.Time
	Rand Rand
	// Token is what every call must carry, unless Dev.
	Token string
	// Dev needs no token. It is for a node that listens on loopback only.
	Dev bool
	// Hosts are names, beside localhost and addresses, under which the node may be
	// called. Another Host header is refused, so that a web page can not reach the
	// node under a name of its own.
	Hosts []string
	// Ready says in words what keeps the node from being ready; nil means nothing
	// does. It must not block for long.
	Ready func() []string
	// Gatherer is what /metrics shows; without it there is none.
	Gatherer prometheus.Gatherer
	// Registerer takes the API's own metrics, if set.
	Registerer prometheus.Registerer
	Log        *zap.Logger
	// StopTimeout bounds Serve's shutdown; 10 s unless set.
	StopTimeout time.Duration
	// PingAfter is how long nothing may come over a connection of HTTP/2 before the caller
	// is asked whether he is there, and PingTimeout how long his answer may take; 30 s and
	// 15 s unless set. One whose machine or network is gone without a sign is noticed after
	// both, and his calls end.
	PingAfter, PingTimeout time.Duration
}

// The bounds of the server.
const (
	// requestBytesMax is above what validation allows, so that it is validation that
	// refuses a large request and names the field.
	requestBytesMax  = 24 << 20
	importMessageMax = 2 << 20
	// compressBytesMin leaves the batches of a log as they are: on one machine
	// compression costs more than it saves.
	compressBytesMin     = 1 << 20
	importBytesMax       = 32 << 30
	headerBytesMax       = 64 << 10
	headerTimeout        = 10 * time.Second
	bodyTimeout          = 30 * time.Second
	importIdleTimeout    = time.Minute
	pullTimeout          = 6 * time.Hour
	writeTimeout         = time.Minute
	idleTimeout          = 2 * time.Minute
	callTimeout          = 30 * time.Second
	answerMargin         = time.Second
	pingAfterDefault     = 30 * time.Second
	pingTimeoutDefault   = 15 * time.Second
	streamsPerConnection = 250
	streamsMax           = 16384
	stopTimeoutDefault   = 10 * time.Second
)

// Server answers the API. It may be used by many goroutines.
type Server struct {
	config  Config
	handler http.Handler
	// token is the digest of the token.
	token   [sha256.Size]byte
	metrics *metrics
	watches *hub
	inputs  inputs
	streams atomic.Int64
	direct  *directCalls
	// opsPerTxn is how many reads the store takes at once, 0 while nothing is known.
	opsPerTxn atomic.Int64
	// checking holds the one Check that is under way.
	checking chan struct{}
	// identity names the store in positions; nil until it has been read.
	identity atomic.Pointer[string]
	// quiet is how long a stream of changes is silent at most.
	quiet time.Duration
	// stopping ends, with the cause errStopping, when the node stops.
	stopping context.Context
	stop     context.CancelCauseFunc
}

// New checks a configuration and makes a server. It listens nowhere yet.
func New(config Config) (*Server, error) {
	switch {
	case config.Store == nil || config.Router == nil || config.Logs == nil || config.Rand == nil:
		return nil, errors.New("api: store, router, logs and rand are required")
	case config.Keys.Root == "" || config.Keys.Shards <= 0:
		return nil, errors.New("api: keys are required")
	case config.Token == "" && !config.Dev:
		return nil, errors.New("api: a token is required outside dev mode")
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	for _, field := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&config.StopTimeout, stopTimeoutDefault},
		{&config.PingAfter, pingAfterDefault},
		{&config.PingTimeout, pingTimeoutDefault},
	} {
		if *field.value <= 0 {
			*field.value = field.fallback
		}
	}
	s := &Server{config: config, quiet: quietMax, direct: newDirectCalls(), checking: make(chan struct{}, 1)}
	s.token = sha256.Sum256([]byte(config.Token))
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	var err error
	if s.metrics, err = newMetrics(config.Registerer); err != nil {
		return nil, fmt.Errorf("api: register metrics: %w", err)
	}
	s.watches = newHub(config.Store, config.Keys.Runs())
	s.handler = s.routes()
	return s, nil
}

// Handler returns everything the server answers, for tests and for serving in
// another way than Serve does.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes() http.Handler {
	options := []connect.HandlerOption{
		connect.WithInterceptors(&callInterceptor{server: s}),
		connect.WithCompressMinBytes(compressBytesMin),
		withBoundedGzip(),
		withExactJSON(),
	}
	// What the others read is bounded by boundedBody and boundedGzip.
	images := append(options, connect.WithReadMaxBytes(importMessageMax))
	runs := append(slices.Clone(options), connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		if openEnded[spec.Procedure] {
			return []connect.HandlerOption{connect.WithReadMaxBytes(execMessageMax)}
		}
		return nil
	}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	guarded := func(pattern string, handler http.Handler) {
		mux.Handle(pattern, s.sameOrigin(s.authenticated(s.withDeadlines(handler))))
	}
	guarded(errandv1connect.NewRunServiceHandler(&runService{s}, runs...))
	guarded(errandv1connect.NewNodeServiceHandler(&nodeService{s}, options...))
	guarded(errandv1connect.NewImageServiceHandler(&imageService{s}, images...))
	if s.config.Gatherer != nil {
		guarded("GET /metrics", promhttp.HandlerFor(s.config.Gatherer, promhttp.HandlerOpts{}))
	}
	guarded("/debug/pprof/", loopbackOnly(profiles()))
	guarded("/", http.NotFoundHandler())
	return s.receiving(mux)
}

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// Serve answers on the listener, which it closes, until the context ends. It then
// ends open streams with codes.NodeStopping and connections that have sent no whole
// request, waits for calls under way, those of Direct too, up to Config.StopTimeout, cuts
// what is left and returns nil. A server serves once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           s.handler,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		ConnContext:       withConnection,
		ErrorLog:          zap.NewStdLog(s.config.Log.Named("http")),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsPerConnection,
			SendPingTimeout:      s.config.PingAfter,
			PingTimeout:          s.config.PingTimeout,
		},
	}
	connections := newConnections(listener, s.config.Log.Named("http"))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(connections) }()
	select {
	case err := <-ended:
		s.Stop()
		return fmt.Errorf("serve the API on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	s.Stop()
	connections.cut(time.Now().Add(lateRequestTime))
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.StopTimeout)
	defer cancel()
	err := server.Shutdown(deadline)
	if all := s.direct.wait(deadline); err != nil || !all {
		s.config.Log.Warn("calls were still under way at the end of the stop timeout", zap.Error(err))
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Stop makes the server unready, ends every stream and takes no call of Direct more.
// Serve calls it; whoever serves Handler by other means calls it first when shutting down.
func (s *Server) Stop() {
	s.stop(errStopping)
	s.direct.close()
	s.watches.close()
}

// Cut ends the calls of Direct that are under way, as closing its connections ends those
// of others: Serve waits for them no longer.
func (s *Server) Cut() { s.direct.cut(errStopping) }

// callContext ends with the call or when the node stops, whichever comes first.
// contextError tells which.
func (s *Server) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	joined, cancel := context.WithCancelCause(ctx)
	release := context.AfterFunc(s.stopping, func() { cancel(errStopping) })
	return joined, func() { release(); cancel(nil) }
}

// recovered makes an error of the panic of a call, whose deferred function calls it.
func (s *Server) recovered(procedure string, err *error) {
	reason := recover()
	switch reason {
	case nil:
		return
	case http.ErrAbortHandler: // not a fault: net/http takes it
		panic(reason)
	}
	s.config.Log.Error("a call panicked", zap.String("procedure", procedure),
		zap.String("panic", fmt.Sprint(reason)), zap.ByteString("stack", debug.Stack()))
	*err = fail(codes.Internal, "a fault of Errand, which its log describes")
}

func (s *Server) nowMs() int64 { return s.config.Now().UnixMilli() }
