package boot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/nodelogs"
)

// tokenFile is the API's token below the data directory.
const tokenFile = "api.token"

// presence is the last stage to start and the first to stop: while it is up, the
// node offers room and its API answers.
type presence struct {
	parts     presenceParts
	log       *zap.Logger
	transport *transport
	shown     atomic.Pointer[shown]

	server    *api.Server
	listeners *listeners
	finish    context.CancelFunc
	served    chan error
}

// shown is what is known of a node that is up.
type shown struct {
	address string
	drivers []string
}

// presenceParts are what a presence is made of.
type presenceParts struct {
	fx.In

	Settings settings
	Parts    Parts
	Metrics  *metrics
	Cluster  *clusterAccess
	Storage  *nodeStorage
	Host     *sandboxHost
	Agent    *sandboxAgent
	End      *end
}

func newPresence(order *sequence, parts presenceParts) *presence {
	p := &presence{parts: parts, log: parts.Parts.log("api"), transport: &transport{}}
	order.add(stage{name: "node presence", startTimeout: 15 * time.Second, stopTimeout: 15 * time.Second, start: p.start, stop: p.stop})
	return p
}

func (p *presence) state() shown {
	if s := p.shown.Load(); s != nil {
		return *s
	}
	return shown{}
}

func (p *presence) start(ctx context.Context) error {
	config, err := p.serverConfig()
	if err != nil {
		return err
	}
	server, err := api.New(config)
	if err != nil {
		return err
	}
	if err := p.parts.Agent.node.Announce(ctx); err != nil {
		server.Stop()
		return err
	}
	p.server = server
	p.shown.Store(&shown{address: p.parts.Cluster.address(), drivers: p.parts.Host.enabled})
	if p.parts.Cluster.listener == nil {
		p.listeners = listenOn(p.transport.open(server, config.Token))
	} else {
		p.listeners = listenOn(p.parts.Cluster.listener, p.transport.open(server, config.Token))
	}
	var serving context.Context
	serving, p.finish = context.WithCancel(context.WithoutCancel(ctx))
	p.served = make(chan error, 1)
	go func() {
		err := server.Serve(serving, p.listeners)
		if err != nil {
			p.log.Error("the API has ended, so the node can not go on", zap.Error(err))
			if endErr := p.parts.End.because(fmt.Errorf("the API has ended: %w", err)); endErr != nil {
				err = fmt.Errorf("%w (shutdown: %w)", err, endErr)
			}
		}
		p.served <- err
	}()
	return nil
}

func (p *presence) serverConfig() (api.Config, error) {
	config := api.Config{
		Node: p.parts.Settings.Name, Keys: p.parts.Cluster.keys, Store: p.parts.Cluster.store, Router: p.parts.Agent.node.Router(),
		Logs: nodelogs.New(p.parts.Storage.logDir), Images: p.parts.Host.images(), Pulls: p.parts.Host.pulls(),
		Scores: p.parts.Agent.node, Sandboxes: p.parts.Host, Inventory: p.parts.Host.inventory(), Drivers: p.parts.Host.enabled,
		Rand: systemRand{}, Dev: p.parts.Settings.Dev, Gatherer: p.parts.Metrics.gatherer, Registerer: p.parts.Metrics, Log: p.log,
		Ready: p.unready,
	}
	if p.parts.Settings.Dev {
		return config, nil
	}
	var err error
	config.Token, err = api.LoadOrCreateToken(filepath.Join(p.parts.Settings.DataDir, tokenFile))
	return config, err
}

// unready says what keeps the node from taking runs.
func (p *presence) unready() []string {
	var reasons []string
	if err := p.parts.Cluster.store.Trouble(); err != nil {
		reasons = append(reasons, err.Error())
	}
	if trouble := p.parts.Agent.node.Status().Trouble; trouble != "" {
		reasons = append(reasons, trouble)
	}
	return reasons
}

// stop waits for the calls under way; those that outlast its context are cut.
func (p *presence) stop(ctx context.Context) error {
	p.finish()
	defer p.shown.Store(nil)
	defer p.transport.close()
	select {
	case err := <-p.served:
		return err
	case <-ctx.Done():
	}
	p.server.Cut()
	p.listeners.cut()
	err := <-p.served
	return fmt.Errorf("calls under way were cut: %w", errors.Join(ctx.Err(), err))
}
