// Command simulate runs whole Errand clusters in virtual time, each out of one
// seed, with production's actors and faults of every kind, and judges what happened.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/errand-run/errand/cmd/simulate/internal/cli"
)

// version is set by the build (-ldflags "-X main.version=v1.2.3").
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cli.Version = version
	code := cli.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
