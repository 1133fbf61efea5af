package boot

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/fx"
	"go.uber.org/zap"
)

// The whole of a start and of a stop; each part has its own, shorter deadline.
const (
	startTimeout = 90 * time.Second
	stopTimeout  = 90 * time.Second
)

// Node is a whole node as an fx option. The configuration is completed here; an
// error in it fails the application that includes it.
func Node(config Config) fx.Option {
	complete, err := config.Complete()
	if err != nil {
		return fx.Error(err)
	}
	return fx.Options(
		fx.StartTimeout(startTimeout),
		fx.StopTimeout(stopTimeout),
		fx.Module("errand-node",
			fx.Supply(complete),
			fx.Provide(
				func(c Config) (*zap.Logger, error) { return NewLog(c.LogLevel) },
				newRegistry,
				newClusterAccess,
				newNodeStorage,
				newSandboxHost,
				newSandboxAgent,
				newPresence,
			),
			fx.Invoke(func(*Presence) {}),
		),
	)
}

func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
