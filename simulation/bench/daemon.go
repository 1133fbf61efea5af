package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/simulation/daemon"
)

// benchDaemon is a daemon with a folder of its own.
type benchDaemon struct {
	*daemon.Daemon
	dir, binary string
}

func startDaemon(ctx context.Context, flags ...string) (*benchDaemon, error) {
	return startBinary(ctx, "bin/errand-node", flags...)
}

func startBinary(ctx context.Context, binary string, flags ...string) (*benchDaemon, error) {
	dir, err := os.MkdirTemp("", "errand-bench-")
	if err != nil {
		return nil, err
	}
	d := &benchDaemon{dir: dir, binary: binary}
	if err := d.start(ctx, flags...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return d, nil
}

func (d *benchDaemon) start(ctx context.Context, flags ...string) (err error) {
	d.Daemon, err = daemon.Start(ctx, daemon.Options{
		Binary: d.binary, Data: filepath.Join(d.dir, "data"), Stderr: os.Stderr,
		// A terminal's Ctrl-C must leave it what ends its sandboxes.
		OwnGroup: true,
		Flags:    append([]string{"--dev", "--log-level", "error"}, flags...),
	})
	return err
}

// again stops the daemon and starts it on what it has left.
func (d *benchDaemon) again(ctx context.Context, flags ...string) error {
	if err := d.Stop(); err != nil {
		return err
	}
	return d.start(ctx, flags...)
}

// stop ends the daemon and removes what it left.
func (d *benchDaemon) stop() error {
	var err error
	if d.Daemon != nil { // it may not have come back
		err = d.Stop()
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// clearingMax is how long it may take to end what an interrupted measurement has running.
const clearingMax = time.Minute

// clearingUp is a context for ending what was begun in another, which may be over.
func clearingUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), clearingMax)
}

// processor is what the machine's processors have done since its boot.
type processor struct {
	// busy is the time spent outside idle: the daemon, its supervisors and the
	// commands. stolen is what the host of a virtual machine gave to others meanwhile.
	busy, stolen time.Duration
}

// processorNow reads it, in steps of 10 ms.
func processorNow() (processor, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return processor{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return processor{}, errors.New("no cpu line in /proc/stat")
	}
	const idle, waiting, stolen, tick = 3, 4, 7, time.Second / 100
	var p processor
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return processor{}, err
		}
		switch i {
		case idle, waiting:
		case stolen:
			p.stolen = time.Duration(ticks) * tick
		default:
			p.busy += time.Duration(ticks) * tick
		}
	}
	return p, nil
}
