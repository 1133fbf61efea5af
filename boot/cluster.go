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

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/store"
)

// clusterAccess is the way to everything that is shared: the address of the API,
// taken first so that a second daemon on it fails before it touches anything, and
// the store.
type clusterAccess struct {
	config   Config
	log      *zap.Logger
	registry *prometheus.Registry

	listener net.Listener
	store    *store.Store
	keys     records.Keys
	epoch    int64
}

func newClusterAccess(lifecycle fx.Lifecycle, config Config, log *zap.Logger, registry *prometheus.Registry) *clusterAccess {
	c := &clusterAccess{
		config: config, log: log, registry: registry,
		keys: records.Keys{Root: config.EtcdPrefix, Shards: config.Shards},
	}
	add(lifecycle, part{name: "cluster access", startTimeout: 20 * time.Second, stopTimeout: 15 * time.Second, start: c.start, stop: c.stop})
	return c
}

func (c *clusterAccess) start(ctx context.Context) error {
	if err := os.MkdirAll(c.config.DataDir, 0o711); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.config.Listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("listen on %s: %w (another daemon? --listen names another address)", c.config.Listen, err)
		}
		return fmt.Errorf("listen on %s: %w", c.config.Listen, err)
	}
	c.listener = listener
	storeConfig := store.Config{
		Endpoints: c.config.EtcdEndpoints, CAFile: c.config.EtcdCA, CertFile: c.config.EtcdCert, KeyFile: c.config.EtcdKey,
		Log: c.log.Named("store"), Metrics: c.registry,
	}
	if len(c.config.EtcdEndpoints) == 0 {
		storeConfig.DataDir = filepath.Join(c.config.DataDir, "etcd")
	}
	if c.store, err = store.Open(ctx, storeConfig); err != nil {
		return errors.Join(err, c.stop(ctx))
	}
	cluster, err := c.store.EnsureCluster(ctx, c.keys, len(c.config.EtcdEndpoints) == 0)
	if err != nil {
		return errors.Join(err, c.stop(ctx))
	}
	c.epoch = cluster.GetEpoch()
	return nil
}

func (c *clusterAccess) stop(context.Context) error {
	var err error
	if c.store != nil {
		err = c.store.Close()
	}
	// The presence part has closed it already if it was ever served.
	if closeErr := c.listener.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}
