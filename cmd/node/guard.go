package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/errand-run/errand/boot"
)

// guardCommand is the first argument that makes this program a guard.
const guardCommand = "guard"

// guardOptions are the flags that only a guard has.
type guardOptions struct{ detach, untilIdle bool }

func (o *guardOptions) add(flags *pflag.FlagSet) {
	flags.BoolVar(&o.detach, "detach", false, "start the guard in the background and return")
	flags.BoolVar(&o.untilIdle, "until-idle", false, "end when another guard is at work, or when the session is over and nothing of it is left")
}

// runGuard kills what the node with these settings runs once its session is over, until
// the context ends.
func runGuard(ctx context.Context, args, environment []string, stdout, stderr io.Writer) int {
	var options guardOptions
	asked, err := parse(args, environment, options.add)
	if err == nil && asked.help == "" {
		err = asked.complete()
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "errand-node guard: %v\nSee errand-node guard --help.\n", err)
		return exitUsage
	case asked.help != "":
		fmt.Fprint(stdout, asked.help)
		return exitOK
	case options.detach:
		err = detachGuard(ctx, asked.config)
	default:
		log, done := newGuardLog(asked.logLevel)
		err = boot.Guard(ctx, asked.config, !options.untilIdle, log.Named("guard"))
		done()
	}
	if err != nil {
		fmt.Fprintf(stderr, "errand-node guard: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// detachGuard starts a guard that is nobody's child here and holds nothing of whoever
// started it. Its log lies beside the fence, in memory: a disk that hangs must not hold
// it up.
func detachGuard(ctx context.Context, config boot.Config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	guard := exec.CommandContext(context.WithoutCancel(ctx), self, guardCommand, "--until-idle", "--data", config.DataDir, "--runtime-dir", config.RuntimeDir)
	path, err := boot.GuardLogPath(config)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	guard.Stderr, guard.Dir = log, "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := guard.Start(); err != nil {
		return err
	}
	return guard.Process.Release()
}
