package boot

import (
	"context"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Parts are what an application may put in place of the node's own, by fx.Decorate or
// fx.Replace. The zero value of a field leaves the node's own.
type Parts struct {
	// Log is where the node logs; it is silent without. Neither tokens nor the values
	// of variables are logged.
	Log *zap.Logger
	// Metrics takes the node's metrics, for as long as it is up. By default they have a
	// registry of their own, with those of the process. Two nodes on one registry need
	// the same label with different values: prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer
	// Gatherer is what the API shows under /metrics: by default the node's own
	// registry, or Metrics if that gathers too.
	Gatherer prometheus.Gatherer
	// Listen makes the API's listener, in place of one on Config.Listen, each time that
	// the node starts. The node closes it. Whoever reaches the listener reaches the
	// API, which is not encrypted, and in Dev wants no token.
	Listen func(ctx context.Context) (net.Listener, error)
	// Drivers is given the drivers that the configuration enables, the default one
	// first, and returns those that the node is to have: more, fewer, or wrapped. It is
	// called each time that the node starts. With it, a Config that names no Drivers
	// enables none. The node closes what it returns, and what it was given if it
	// returns an error. Names are as records.CheckName wants them. A driver must be
	// there as long as runs of it are: without it, the node refuses to start.
	Drivers func(ctx context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error)
	// LogSink is given a copy of what runs write.
	LogSink LogSink
	// Failed is told, once at most, that the node can not go on: its store is gone for
	// good, or its listener. It must not block. By default fx.Shutdowner is asked to end
	// the application, with exit code 1.
	Failed func(error)
}

// LogSink is given what an attempt writes, from its start on and in order, with the
// number of the attempt and the offset behind each chunk; the last message of an
// attempt has the end. The copy is the sink's own. Attempts write at the same time, so
// it may be called from many goroutines, but for one attempt from one at a time.
//
// It may block: the log lies in a file of the node meanwhile, and no run waits for the
// sink. Its context ends when the node stops. When it returns an error, that is logged
// and the attempt's log is not copied any more. A process that was killed, or stopped,
// tells the logs of what it adopts from their start again (offsets tell what is known);
// of a sandbox that was cleared away before the sink had its whole log, the rest is in
// the node's file alone.
type LogSink func(ctx context.Context, run string, message *errandv1.LogsResponse) error

// log is where a stage logs.
func (p Parts) log(name string) *zap.Logger {
	if p.Log == nil {
		return zap.NewNop()
	}
	return p.Log.Named(name)
}

// end tells the application that the node can not go on.
type end struct {
	failed   func(error)
	shutdown fx.Shutdowner
	once     sync.Once
}

func newEnd(parts Parts, shutdown fx.Shutdowner) *end {
	return &end{failed: parts.Failed, shutdown: shutdown}
}

// because ends the application or tells it, the first time. The error is that of a
// shutdown that could not be asked for.
func (e *end) because(cause error) (err error) {
	e.once.Do(func() {
		if e.failed != nil {
			e.failed(cause)
			return
		}
		err = e.shutdown.Shutdown(fx.ExitCode(1))
	})
	return err
}
