package boot

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/nodelogs"
)

// tokenFile is the API's token below the data directory.
const tokenFile = "api.token"

// Presence is the last part to start and the first to stop: while it is up, the
// node offers room and its API answers.
type Presence struct {
	config   Config
	log      *zap.Logger
	registry *prometheus.Registry
	cluster  *clusterAccess
	storage  *nodeStorage
	host     *sandboxHost
	agent    *sandboxAgent

	shutdown fx.Shutdowner
	end      context.CancelFunc
	served   chan error
}

// presenceParts are what a Presence is made of.
type presenceParts struct {
	fx.In

	Config   Config
	Log      *zap.Logger
	Registry *prometheus.Registry
	Cluster  *clusterAccess
	Storage  *nodeStorage
	Host     *sandboxHost
	Agent    *sandboxAgent
	Shutdown fx.Shutdowner
}

func newPresence(lifecycle fx.Lifecycle, p presenceParts) *Presence {
	presence := &Presence{
		config: p.Config, log: p.Log.Named("api"), registry: p.Registry, cluster: p.Cluster, storage: p.Storage, host: p.Host,
		agent: p.Agent, shutdown: p.Shutdown,
	}
	add(lifecycle, part{name: "node presence", startTimeout: 15 * time.Second, stopTimeout: 15 * time.Second, start: presence.start, stop: presence.stop})
	return presence
}

// Address is where the API answers, host:port. It is known once the node has
// started.
func (p *Presence) Address() string { return p.cluster.listener.Addr().String() }

// Drivers are the sandbox drivers that were enabled, the default one first. They
// are known once the node has started.
func (p *Presence) Drivers() []string { return p.host.enabled }

func (p *Presence) start(ctx context.Context) error {
	server, err := p.newServer()
	if err != nil {
		return err
	}
	if err := p.agent.node.Announce(ctx); err != nil {
		return err
	}
	var serving context.Context
	serving, p.end = context.WithCancel(context.WithoutCancel(ctx))
	p.served = make(chan error, 1)
	go func() {
		err := server.Serve(serving, p.cluster.listener)
		if err != nil {
			p.log.Error("the API has ended, so the node stops", zap.Error(err))
			err = fmt.Errorf("%w (shutdown: %w)", err, p.shutdown.Shutdown(fx.ExitCode(1)))
		}
		p.served <- err
	}()
	return nil
}

func (p *Presence) newServer() (*api.Server, error) {
	config := api.Config{
		Node: p.config.Name, Keys: p.cluster.keys, Store: p.cluster.store, Router: p.agent.node.Router(),
		Logs: nodelogs.New(p.storage.logDir), Images: p.host.images(), Drivers: p.host.enabled,
		Rand: systemRand{}, Dev: p.config.Dev, Gatherer: p.registry, Registerer: p.registry, Log: p.log,
		Ready: p.unready,
	}
	if !p.config.Dev {
		var err error
		if config.Token, err = api.LoadOrCreateToken(filepath.Join(p.config.DataDir, tokenFile)); err != nil {
			return nil, err
		}
	}
	return api.New(config)
}

// unready says what keeps the node from taking runs.
func (p *Presence) unready() []string {
	if trouble := p.agent.node.Status().Trouble; trouble != "" {
		return []string{trouble}
	}
	return nil
}

func (p *Presence) stop(ctx context.Context) error {
	p.end()
	select {
	case err := <-p.served:
		return err
	case <-ctx.Done():
		return fmt.Errorf("calls under way: %w", ctx.Err())
	}
}
