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
	dir string
}

func startDaemon(ctx context.Context, flags ...string) (*benchDaemon, error) {
	return startBinary(ctx, "bin/errand-node", flags...)
}

func startBinary(ctx context.Context, binary string, flags ...string) (*benchDaemon, error) {
	dir, err := os.MkdirTemp("", "errand-bench-")
	if err != nil {
		return nil, err
	}
	d, err := daemon.Start(ctx, daemon.Options{
		Binary: binary, Data: filepath.Join(dir, "data"), Stderr: os.Stderr,
		Flags: append([]string{"--dev", "--log-level", "warn"}, flags...),
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &benchDaemon{Daemon: d, dir: dir}, nil
}

// stop ends the daemon and removes what it left.
func (d *benchDaemon) stop() error { return errors.Join(d.Stop(), os.RemoveAll(d.dir)) }

// busy is the processor time that the whole machine has spent so far outside
// idle: the daemon, its supervisors and the commands.
func busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, errors.New("no cpu line in /proc/stat")
	}
	var ticks int64
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 { // idle and waiting for a disk
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}
