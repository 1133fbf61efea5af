package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/clock"
)

// leaveTimeout is how long a stop waits for the time of a planned restart.
const leaveTimeout = 5 * time.Second

// sandboxAgent is the node itself: its actors, its session, and the
// reconciliation of what is assigned with what runs.
type sandboxAgent struct {
	settings settings
	log      *zap.Logger
	cluster  *clusterAccess
	storage  *nodeStorage
	host     *sandboxHost
	guard    *guardKeeper
	end      *end
	metrics  *metrics

	clock *clock.Clock
	node  *nodes.Node
}

func newSandboxAgent(
	order *sequence, config settings, parts Parts, cluster *clusterAccess, storage *nodeStorage, sandboxes *sandboxHost, guard *guardKeeper, e *end, m *metrics,
) *sandboxAgent {
	a := &sandboxAgent{settings: config, log: parts.log("node"), cluster: cluster, storage: storage, host: sandboxes, guard: guard, end: e, metrics: m}
	order.add(stage{name: "sandbox agent", startTimeout: holdingsMax + config.session().LossAfter(), stopTimeout: 25 * time.Second, start: a.start, stop: a.stop})
	return a
}

func (a *sandboxAgent) start(ctx context.Context) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if err := a.refuseSecondNode(ctx); err != nil {
		return err
	}
	a.clock = clock.New()
	a.node, err = nodes.New(nodes.Ports{
		Clock: a.clock, Store: a.cluster.store, Leases: a.cluster.store, Fence: a.guard.port(), Rand: systemRand{},
		Journal: a.storage.journal, Sandboxes: a.host.pool, Log: a.log, Actors: host.Options{Failed: a.failed},
	}, nodes.Config{
		ID: a.settings.Name, Keys: a.cluster.keys, UUID: a.storage.uuid,
		Address: a.cluster.address(), Version: version(), BootID: boot, LogPath: a.storage.attemptLog,
		SandboxesMax: a.settings.SandboxesMax, CPUMillis: a.settings.CPUMillis, MemoryBytes: a.settings.MemoryBytes,
		Drivers: a.host.enabled, LightDrivers: []string{DriverNull}, Session: a.settings.session(), OnlyNode: true,
		AcceptLostStore: a.settings.AcceptLossOf == LossOfStore, AcceptLostJournal: a.settings.AcceptLossOf == LossOfJournal,
	})
	if err != nil {
		a.clock.Close()
		return err
	}
	if err := a.count(); err != nil {
		return errors.Join(err, a.close(ctx))
	}
	for _, step := range []func(context.Context) error{a.node.Recover, a.node.Adopt, a.node.Register, a.node.Reconcile} {
		if err := step(ctx); err != nil {
			stopContext, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwindTimeout)
			defer cancel()
			if stopErr := a.stop(stopContext); stopErr != nil {
				a.log.Warn("the node did not stop cleanly", zap.Error(stopErr))
			}
			return err
		}
	}
	return nil
}

// count registers what the node counts of itself.
func (a *sandboxAgent) count() error {
	logs := func(cause string, of func(nodes.Status) int64) error {
		return a.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "errand_logs_incomplete_total", ConstLabels: prometheus.Labels{"cause": cause},
			Help: "Attempts whose log is not all that their command wrote, by cause: disk (it could not be written), other (it was larger than its limit, or its logger was killed).",
		}, func() float64 { return float64(of(a.node.Status())) }))
	}
	return errors.Join(
		a.metrics.Register(newScoreMetric(a.node.LostScore)),
		logs("disk", func(s nodes.Status) int64 { return s.LogsUnwritten }),
		logs("other", func(s nodes.Status) int64 { return s.LogsIncomplete - s.LogsUnwritten }),
	)
}

// failed ends a node whose actors were given up: a daemon that is started anew
// does better than one that only looks alive.
func (a *sandboxAgent) failed(cause error) {
	a.log.Error("the node's actors have failed for good, so it can not go on", zap.Error(cause))
	if err := a.end.because(fmt.Errorf("the node's actors have failed for good: %w", cause)); err != nil {
		a.log.Error("the application can not be ended", zap.Error(err))
	}
}

// refuseSecondNode keeps a cluster at one node until nodes can tell each other's
// loss: two of them would share a store without fencing each other.
func (a *sandboxAgent) refuseSecondNode(ctx context.Context) error {
	result, err := a.cluster.store.Do(ctx, records.Read(records.Op{
		Kind: records.OpGet, Key: a.cluster.keys.Nodes(), Prefix: true, KeysOnly: true, Limit: 2,
	}))
	if err != nil {
		return fmt.Errorf("read the cluster's nodes: %w", err)
	}
	for _, kv := range result.Responses[0].KVs {
		if other := records.LastPart(kv.Key); other != a.settings.Name {
			return fmt.Errorf("the store belongs to node %q and this is node %q: a cluster has one node so far; start with --name %s if this is its machine and its data directory, else give this node a store of its own", other, a.settings.Name, other)
		}
	}
	return nil
}

func (a *sandboxAgent) stop(ctx context.Context) error {
	leaving, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := a.node.Leave(leaving); err != nil {
		a.log.Warn("more time for a restart could not be had", zap.Error(err))
	}
	return a.close(ctx)
}

func (a *sandboxAgent) close(ctx context.Context) error {
	err := a.node.Close(ctx)
	a.clock.Close()
	return err
}
