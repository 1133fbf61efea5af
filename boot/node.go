package boot

import (
	"time"

	"go.uber.org/fx"

	"github.com/errand-run/errand/nodes"
)

// How long a whole start and a whole stop may take; each stage has its own, shorter
// limit. An application that has a node needs at least as much: fx's own default is
// 15 s. A start mostly takes a tenth of a second, but grows with what the embedded store
// and the node hold: a limit that a slow machine misses is missed at each start.
const (
	StartTimeout = 10 * time.Minute
	StopTimeout  = 90 * time.Second
)

// holdingsMax is what a stage of the start may take that reads all that there is: the
// embedded store, or a node's sandboxes.
const holdingsMax = 4 * time.Minute

// Node is a whole node as an fx option. The configuration is completed here; an
// error in it fails the application that includes it. An application has one node.
func Node(config Config) fx.Option {
	complete, err := config.Complete()
	if err != nil {
		return fx.Error(err)
	}
	return fx.Module("errand-node",
		fx.Supply(settings{Config: complete, driversGiven: len(config.Drivers) > 0}, fx.Private),
		fx.Provide(newMetrics, newEnd, newSequence, newClusterAccess, newNodeStorage, newSandboxHost, newGuardKeeper, newSandboxAgent, newPresence, fx.Private),
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

// solo tells whether the node is alone for good: the store is its own, so nobody else
// can start anything, and its session has no end.
func (s settings) solo() bool { return len(s.EtcdEndpoints) == 0 }

// session says how the node holds its session.
func (s settings) session() nodes.SessionConfig {
	if s.solo() {
		return nodes.SessionConfig{}
	}
	return s.Session
}
