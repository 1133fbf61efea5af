package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// comparison measures two daemons in turn, so that what else the machine does meets
// both of them.
type comparison struct {
	base, node string
	rounds     int
	runs       int
	// pairs is how many pairs of batches are measured instead of rounds; 0 is none.
	pairs int
}

// sample is what one round of one daemon showed.
type sample struct {
	median, p99 float64
	rate, cpu   map[int]float64
	nullRate    float64
	nullCPU     float64
	load        string
}

// compareWatched is how many ends one round of a comparison watches while the host is
// calm, compareWatchedMax after how many it gives up.
const (
	compareWatched    = 200
	compareWatchedMax = 1000
)

// compareSubmitters are the numbers of submitters that a comparison tries.
var compareSubmitters = []int{8, 32}

// compare measures what the flags ask for.
func (c comparison) compare(ctx context.Context, driver string) error {
	if c.pairs == 0 {
		return c.run(ctx)
	}
	spec, ok := specs[driver]
	if !ok {
		return fmt.Errorf("-driver %q: must be process or null", driver)
	}
	return c.runPairs(ctx, spec)
}

func (c comparison) run(ctx context.Context) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROUND\tDAEMON\tEXIT MEDIAN\tEXIT P99\t8: RUNS/S\tCPU MS\t32: RUNS/S\tCPU MS\tNULL 64: RUNS/S\tCPU MS\tLOAD")
	for round := range c.rounds {
		for _, side := range []struct{ name, binary string }{{"base", c.base}, {"new", c.node}} {
			s, err := c.sample(ctx, side.binary)
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", side.name, err), table.Flush())
			}
			fmt.Fprintf(table, "%d\t%s\t%.1f ms\t%.1f ms\t%.0f\t%.2f\t%.0f\t%.2f\t%.0f\t%.2f\t%s\n", round+1, side.name, s.median, s.p99,
				s.rate[8], s.cpu[8], s.rate[32], s.cpu[32], s.nullRate, s.nullCPU, s.load)
			if err := table.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c comparison) sample(ctx context.Context, binary string) (s sample, err error) {
	s.rate, s.cpu = map[int]float64{}, map[int]float64{}
	d, err := startBinary(ctx, binary, "--drivers", "process,null")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	s.load = load()
	seen, err := exitDelays(ctx, d, compareWatched, compareWatchedMax)
	if err != nil {
		return s, err
	}
	s.median, s.p99 = quantile(seen.all(), 50), quantile(seen.all(), 99)
	for _, submitters := range compareSubmitters {
		if s.rate[submitters], s.cpu[submitters], err = c.through(ctx, d, submitters, truth); err != nil {
			return s, err
		}
	}
	s.nullRate, s.nullCPU, err = c.through(ctx, d, 64, nothing)
	return s, err
}

// through returns how many runs a second there were and the milliseconds that the
// daemon and all its children spent on each.
func (c comparison) through(ctx context.Context, d *benchDaemon, submitters int, spec *errandv1.RunSpec) (rate, cpu float64, err error) {
	before, err := d.spent()
	if err != nil {
		return 0, 0, err
	}
	elapsed, err := submitAll(ctx, d, submitters, c.runs, spec)
	if err != nil {
		return 0, 0, err
	}
	after, err := d.spent()
	return float64(c.runs) / elapsed.Seconds(), (after - before).Seconds() * 1000 / float64(c.runs), err
}

// spent is the processor time of the daemon and of every child that has ended, whole
// sandboxes included.
func (d *benchDaemon) spent() (time.Duration, error) { return spentOf(d.PID()) }

// spentOf is the processor time of a process and of every child that it has waited for.
func spentOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name before the last bracket may have blanks and brackets of its own.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return 0, errors.New("no times in /proc/PID/stat")
	}
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}
