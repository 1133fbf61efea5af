package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/store"
)

// clusterAccess is the way to everything that is shared: the address of the API,
// taken first so that a second daemon on it fails before it touches anything, and
// the store.
type clusterAccess struct {
	settings settings
	parts    Parts
	log      *zap.Logger
	metrics  *metrics

	// listener is nil with ListenNone.
	listener net.Listener
	store    *store.Store
	keys     records.Keys
	epoch    int64
}

func newClusterAccess(order *sequence, config settings, parts Parts, m *metrics) *clusterAccess {
	c := &clusterAccess{
		settings: config, parts: parts, log: parts.log("store"), metrics: m,
		keys: records.Keys{Root: config.EtcdPrefix, Shards: config.Shards},
	}
	timeout := 20 * time.Second
	if len(config.EtcdEndpoints) == 0 {
		timeout = holdingsMax
	}
	order.add(stage{name: "cluster access", startTimeout: timeout, stopTimeout: 15 * time.Second, start: c.start, stop: c.stop})
	return c
}

func (c *clusterAccess) start(ctx context.Context) error {
	if err := os.MkdirAll(c.settings.DataDir, 0o711); err != nil {
		return ownership(c.settings.DataDir, fmt.Errorf("data directory: %w", err))
	}
	var err error
	if c.listener, err = c.listen(ctx); err != nil {
		return err
	}
	storeConfig := store.Config{
		Endpoints: c.settings.EtcdEndpoints, CAFile: c.settings.EtcdCA, CertFile: c.settings.EtcdCert, KeyFile: c.settings.EtcdKey,
		Log: c.log, Metrics: c.metrics,
	}
	if len(c.settings.EtcdEndpoints) == 0 {
		storeConfig.DataDir, storeConfig.QuotaBytes = filepath.Join(c.settings.DataDir, "etcd"), c.settings.StoreMaxBytes
	}
	if c.store, err = store.Open(ctx, storeConfig); err != nil {
		if len(c.settings.EtcdEndpoints) == 0 {
			err = ownership(c.settings.DataDir, err)
		}
		return errors.Join(err, c.stop(ctx))
	}
	cluster, err := c.store.EnsureCluster(ctx, c.keys, c.settings.solo())
	if err != nil {
		return errors.Join(err, c.stop(ctx))
	}
	c.epoch = cluster.GetEpoch()
	return nil
}

// listen makes the API's listener, nil for none.
func (c *clusterAccess) listen(ctx context.Context) (net.Listener, error) {
	if c.parts.Listen != nil {
		listener, err := c.parts.Listen(ctx)
		if err == nil && listener == nil {
			err = errors.New("there is none")
		}
		if err != nil {
			return nil, fmt.Errorf("listener of the application: %w", err)
		}
		return listener, nil
	}
	address := c.settings.Listen
	if address == ListenNone {
		return nil, nil //nolint:nilnil // a node without an address
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w (another daemon? --listen names another address)", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// address is where the API is reached, nothing without a listener.
func (c *clusterAccess) address() string {
	if c.listener == nil {
		return ""
	}
	return c.listener.Addr().String()
}

func (c *clusterAccess) stop(context.Context) error {
	var err error
	if c.store != nil {
		err = c.store.Close()
		c.store = nil
	}
	c.metrics.release()
	if c.listener != nil {
		// The presence stage has closed it already if it was ever served.
		if closeErr := c.listener.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
		c.listener = nil
	}
	return err
}
