package boot

import (
	"time"

	"go.uber.org/fx"
)

// How long a whole start and a whole stop may take; each stage has its own, shorter
// limit. An application that has a node needs at least as much: fx's own default is
// 15 s.
const (
	StartTimeout = 90 * time.Second
	StopTimeout  = 90 * time.Second
)

// Node is a whole node as an fx option. The configuration is completed here; an
// error in it fails the application that includes it. An application has one node.
func Node(config Config) fx.Option {
	complete, err := config.Complete()
	if err != nil {
		return fx.Error(err)
	}
	return fx.Module("errand-node",
		fx.Supply(settings{Config: complete, driversGiven: len(config.Drivers) > 0}, fx.Private),
		fx.Provide(newMetrics, newEnd, newSequence, newClusterAccess, newNodeStorage, newSandboxHost, newSandboxAgent, newPresence, fx.Private),
		fx.Supply(Parts{}),
		fx.Provide(newInstance),
		fx.Invoke(func(*Instance) {}),
	)
}

// settings is the completed configuration.
type settings struct {
	Config
	// driversGiven tells that Config.Drivers was not left to its default.
	driversGiven bool
}
