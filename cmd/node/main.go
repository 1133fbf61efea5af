// Command node is the daemon, installed as errand-node: one process per machine
// that takes runs from the API, runs them in sandboxes and keeps their records.
//
// It is nothing but boot.Node, a configuration and a log on standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/errand-run/errand/boot"
)

// The daemon's exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run serves until the context ends, then stops the node; running sandboxes go on
// and the next daemon adopts them.
func run(ctx context.Context, args, environment []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == guardCommand {
		return runGuard(ctx, args[1:], environment, stdout, stderr)
	}
	asked, err := parse(args, environment)
	if err == nil && asked.help == "" && !asked.version {
		err = asked.complete()
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "errand-node: %v\nSee errand-node --help.\n", err)
		return exitUsage
	case asked.help != "":
		fmt.Fprint(stdout, asked.help)
		return exitOK
	case asked.version:
		fmt.Fprintln(stdout, boot.Version)
		return exitOK
	}
	if err := serve(ctx, asked, environment, stdout); err != nil {
		fmt.Fprintf(stderr, "errand-node: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func serve(ctx context.Context, asked request, environment []string, stdout io.Writer) error {
	var node *boot.Instance
	log := newLog(asked.logLevel)
	app := fx.New(
		boot.Node(asked.config),
		fx.Replace(boot.Parts{Log: log}),
		fx.Populate(&node),
		fx.StartTimeout(boot.StartTimeout), fx.StopTimeout(boot.StopTimeout), fx.NopLogger,
	)
	if err := app.Err(); err != nil {
		return err
	}
	startContext, cancel := context.WithTimeout(ctx, app.StartTimeout())
	defer cancel()
	if err := app.Start(startContext); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			log.Info("told to end while it started; what runs goes on")
			return nil
		}
		return err
	}
	fmt.Fprintf(stdout, "errand-node %s ready: name %s, API http://%s, drivers %s, data %s\n",
		boot.Version, node.Name(), node.Address(), strings.Join(node.Drivers(), " "), asked.config.DataDir)
	tell := func(state string) {
		if err := notify(environment, state); err != nil {
			log.Warn("the service manager was not told", zap.Error(err))
		}
	}
	tell(notifyReady)
	var ended fx.ShutdownSignal
	select {
	case <-ctx.Done():
	case ended = <-app.Wait():
	}
	tell(notifyStopping)
	log.Info("stopping; what runs goes on")
	stopContext, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	err := app.Stop(stopContext)
	if ended.ExitCode != 0 {
		err = errors.Join(errors.New("the node could not go on; its log says why"), err)
	}
	return err
}
