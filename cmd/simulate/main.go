// Command simulate runs whole Errand clusters in virtual time, each out of one
// seed, with production's actors and faults of every kind, and judges what happened.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/errand-run/errand/cmd/simulate/internal/cli"
)

// version is set by the build (-ldflags "-X main.version=v1.2.3").
var version string

// gcPercent trades memory, of which a world needs little, for time: worlds make much
// garbage and keep none of it.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Who interrupts a second time does not want to wait for what is under way.
	context.AfterFunc(ctx, stop)
	cli.Version = version
	code := cli.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
