package boot_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// silent is a node of null sandboxes that only this process reaches.
func silent(t *testing.T) boot.Config {
	t.Helper()
	return boot.Config{
		Name: "embedded", DataDir: t.TempDir(), RuntimeDir: t.TempDir(), Listen: boot.ListenNone,
		Drivers: []string{boot.DriverNull},
	}
}

// host is an application with a node in it.
type host struct {
	*fx.App
	node *boot.Instance
}

func newHost(config boot.Config, options ...fx.Option) *host {
	h := &host{}
	h.App = fx.New(boot.Node(config), fx.Populate(&h.node), fx.NopLogger, fx.Options(options...))
	return h
}

func (h *host) start(t *testing.T) *host {
	t.Helper()
	if err := h.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.stop(t) })
	return h
}

func (h *host) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// run runs a command to its end.
func (h *host) run(t *testing.T, command ...string) *errandv1.Run {
	t.Helper()
	ctx := within(t, time.Minute)
	run, err := h.node.Client().Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: command}})
	if err == nil {
		run, err = h.node.Client().Wait(ctx, run.GetId())
	}
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (h *host) output(t *testing.T, run *errandv1.Run) string {
	t.Helper()
	var text strings.Builder
	for message, err := range h.node.Client().Logs(within(t, time.Minute), &errandv1.LogsRequest{Id: run.GetId(), Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, chunk := range message.GetChunks() {
			text.Write(chunk.GetData())
		}
	}
	return text.String()
}

func TestClientReachesTheNodeWithoutAnAddressWhileItIsUp(t *testing.T) {
	h := newHost(silent(t))
	ctx := within(t, time.Minute)
	c := h.node.Client()
	began := time.Now()
	if _, err := c.Nodes(ctx); !errors.Is(err, client.ErrGone) {
		t.Errorf("before the start: %v", err)
	}
	h.start(t)
	run := h.run(t, "log=hello", "exit=7")
	if run.GetExitCode() != 7 || run.GetStatus() != errandv1.Status_STATUS_FAILED {
		t.Errorf("%v", run)
	}
	if got := h.output(t, run); got != "hello\n" {
		t.Errorf("output %q", got)
	}
	for state, err := range c.Watch(ctx, run.GetId()) {
		if err != nil || state.GetExitCode() != 7 {
			t.Errorf("%v, %v", state, err)
		}
	}
	nodes, err := c.Nodes(ctx)
	if err != nil || len(nodes) != 1 || nodes[0].GetId() != "embedded" || nodes[0].GetAddress() != "" {
		t.Errorf("%v, %v", nodes, err)
	}
	if h.node.Address() != "" || h.node.Name() != "embedded" || strings.Join(h.node.Drivers(), " ") != "null" {
		t.Errorf("address %q, name %q, drivers %q", h.node.Address(), h.node.Name(), h.node.Drivers())
	}
	h.stop(t)
	if _, err := c.Nodes(ctx); !errors.Is(err, client.ErrGone) {
		t.Errorf("after the stop: %v", err)
	}
	if took := time.Since(began); took > client.PatienceDefault.Again/2 {
		t.Errorf("took %v: a node that is gone was waited for", took)
	}
}

func TestCallsUnderWayEndWithTheNode(t *testing.T) {
	h := newHost(silent(t)).start(t)
	ctx := within(t, time.Minute)
	c := h.node.Client()
	run, err := c.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"after=1h", "log=x"}}})
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}, 3), make(chan error, 3)
	go func() {
		var last error
		for _, err := range c.Watch(ctx, run.GetId()) {
			if last = err; err == nil {
				begun <- struct{}{}
			}
		}
		ended <- last
	}()
	go func() {
		var last error
		for _, err := range c.Logs(ctx, &errandv1.LogsRequest{Id: run.GetId(), Follow: true}) {
			if last = err; err == nil {
				begun <- struct{}{}
			}
		}
		ended <- last
	}()
	go func() { _, err := c.Wait(ctx, run.GetId()); ended <- err }()
	<-begun
	<-begun
	began := time.Now()
	h.stop(t)
	for range 3 {
		if err := <-ended; !errors.Is(err, client.ErrGone) {
			t.Errorf("a call under way: %v", err)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestApplicationStartsAgain(t *testing.T) {
	h := newHost(silent(t))
	for range 3 {
		if err := h.Start(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if run := h.run(t, "exit=0"); run.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
			t.Errorf("%v", run)
		}
		h.stop(t)
	}
}

// An application has a logger, a registry and a listener of its own already.
func TestNodeTakesNothingOfTheApplicationsUnasked(t *testing.T) {
	core, logged := observer.New(zap.DebugLevel)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	registry := prometheus.NewRegistry()
	newHost(silent(t),
		fx.Supply(zap.New(core), registry, &http.Server{}),
		fx.Supply(fx.Annotate(listener, fx.As(new(net.Listener)))),
		fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))),
	).start(t).run(t, "exit=0")
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
	if logged.Len() > 0 {
		t.Errorf("%d lines were logged", logged.Len())
	}
}

func TestPartsAreReplacedFromTheGraphOrByValue(t *testing.T) {
	for name, option := range map[string]func(*zap.Logger) fx.Option{
		"decorated from the graph": func(log *zap.Logger) fx.Option {
			return fx.Options(fx.Supply(log), fx.Decorate(func(parts boot.Parts, log *zap.Logger) boot.Parts {
				parts.Log = log.Named("errand")
				return parts
			}))
		},
		"replaced by a value": func(log *zap.Logger) fx.Option {
			return fx.Replace(boot.Parts{Log: log.Named("errand")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			core, logged := observer.New(zap.DebugLevel)
			h := newHost(silent(t), option(zap.New(core))).start(t)
			h.run(t, "exit=0")
			h.stop(t)
			if logged.Len() == 0 {
				t.Error("nothing was logged")
			}
			for _, line := range logged.All() {
				if !strings.HasPrefix(line.LoggerName, "errand.") {
					t.Errorf("logged by %q", line.LoggerName)
				}
			}
		})
	}
}

func TestHooksOfTheApplicationComeAroundTheNodes(t *testing.T) {
	var order []string
	note := func(lifecycle fx.Lifecycle, name string, start func() error) {
		lifecycle.Append(fx.Hook{
			OnStart: func(context.Context) error { order = append(order, name+" up"); return start() },
			OnStop:  func(context.Context) error { order = append(order, name+" down"); return nil },
		})
	}
	type database struct{}
	h := newHost(silent(t),
		fx.Provide(func(lifecycle fx.Lifecycle) *database {
			note(lifecycle, "database", func() error { return nil })
			return &database{}
		}),
		fx.Decorate(func(parts boot.Parts, _ *database) boot.Parts { return parts }),
		fx.Invoke(func(lifecycle fx.Lifecycle, node *boot.Instance) {
			note(lifecycle, "service", func() error {
				_, err := node.Client().Nodes(t.Context())
				return err
			})
		}),
	)
	h.start(t)
	h.stop(t)
	if got := strings.Join(order, ", "); got != "database up, service up, service down, database down" {
		t.Error(got)
	}
}

func TestMetricsAreTheApplicationsWhileTheNodeIsUp(t *testing.T) {
	registry := prometheus.NewRegistry()
	count := func() int {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(families)
	}
	for range 2 {
		labeled := func(value string) fx.Option {
			return fx.Replace(boot.Parts{Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": value}, registry)})
		}
		h := newHost(silent(t), labeled("first")).start(t)
		h.run(t, "exit=0")
		if count() == 0 {
			t.Error("no metrics")
		}
		for _, same := range []fx.Option{fx.Replace(boot.Parts{Metrics: registry}), labeled("first")} {
			if err := newHost(silent(t), same).Start(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "WrapRegistererWith") {
				t.Errorf("two nodes on one registry: %v", err)
			}
		}
		newHost(silent(t), labeled("second")).start(t).stop(t)
		h.stop(t)
		if n := count(); n > 0 {
			t.Errorf("%d metrics are left", n)
		}
	}
}

func TestListenerOfTheApplicationIsServedAndClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	config := silent(t)
	config.Dev = true
	h := newHost(config, fx.Replace(boot.Parts{Listen: func(ctx context.Context) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "unix", path)
	}})).start(t)
	if h.node.Address() != path {
		t.Errorf("address %q", h.node.Address())
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	c, err := client.New(client.Config{Address: "localhost", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Nodes(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	h.stop(t)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	for name, listen := range map[string]func(context.Context) (net.Listener, error){
		"refuses": func(context.Context) (net.Listener, error) { return nil, errors.New("no room") },
		"none":    func(context.Context) (net.Listener, error) { return nil, nil },
	} {
		if err := newHost(silent(t), fx.Replace(boot.Parts{Listen: listen})).Start(within(t, time.Minute)); err == nil ||
			!strings.Contains(err.Error(), "listener of the application") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokenIsWantedOfOthersAndNotOfTheNodesOwnClient(t *testing.T) {
	config := silent(t)
	config.Listen = "127.0.0.1:0"
	h := newHost(config).start(t)
	h.run(t, "exit=0")
	stranger, err := client.New(client.Config{Address: h.node.Address()})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Nodes(within(t, time.Minute)); client.CodeOf(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

func TestNodeThatCanNotGoOnTellsTheApplication(t *testing.T) {
	var broken brokenListener
	listen := func(context.Context) (net.Listener, error) {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		broken.Listener = inner
		return &broken, err
	}
	t.Run("by fx", func(t *testing.T) {
		h := newHost(silent(t), fx.Replace(boot.Parts{Listen: listen}))
		ended := h.Wait()
		h.start(t)
		broken.Listener.Close()
		if signal := <-ended; signal.ExitCode != 1 {
			t.Errorf("%v", signal)
		}
		stopAfterFailure(t, h)
	})
	t.Run("by Failed", func(t *testing.T) {
		told := make(chan error, 2)
		h := newHost(silent(t), fx.Replace(boot.Parts{Listen: listen, Failed: func(err error) { told <- err }}))
		h.start(t)
		broken.Listener.Close()
		if err := <-told; !strings.Contains(err.Error(), "API") {
			t.Errorf("%v", err)
		}
		stopAfterFailure(t, h)
		if len(told) > 0 {
			t.Errorf("told again: %v", <-told)
		}
	})
}

// stopAfterFailure stops a host whose node says in its stop too how it has failed.
func stopAfterFailure(t *testing.T, h *host) {
	t.Helper()
	if err := h.Stop(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "serve the API") {
		t.Errorf("the stop says %v", err)
	}
}

type brokenListener struct {
	net.Listener
	once sync.Once
}

func (b *brokenListener) Close() (err error) {
	b.once.Do(func() { err = b.Listener.Close() })
	return nil
}
