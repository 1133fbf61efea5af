// Command bench measures Errand against the bars of docs/benchmarks.md and
// prints one table. It drives the built binaries as a user would, on loopback,
// and starts every peer it compares with itself, alternating within one run: on a
// noisy machine only ratios mean something.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// benchDeadline bounds the whole program.
const benchDeadline = 30 * time.Minute

// sizes say how much is measured.
type sizes struct {
	// rounds is how often a rate is measured; between two of ours comes one of the peer's.
	rounds int
	// slice is how long one round of a rate takes.
	slice time.Duration
	// starts is how often a daemon is started; idle how long one has nothing to do
	// before its memory is read.
	starts int
	idle   time.Duration
	// watched is how many ends a watcher must have seen while the host was calm, watchedMax
	// after how many it gives up.
	watched, watchedMax int
	// deadlines is how many runs come to each kind of deadline.
	deadlines int
	// pairs is how often errand run and ctr run alternate.
	pairs int
	// commands is how many a batch has that a peer is given.
	commands int
	// live is how many runs one node holds.
	live int
	// finished is how many runs the stores hold that are compared.
	finished [2]int
}

var (
	full  = sizes{rounds: 5, slice: 4 * time.Second, starts: 5, idle: 5 * time.Second, watched: 1000, watchedMax: 3000, deadlines: 200, pairs: 30, commands: 200, live: 100_000, finished: [2]int{10_000, 1_000_000}}
	quick = sizes{rounds: 2, slice: time.Second, starts: 2, idle: time.Second, watched: 20, watchedMax: 100, deadlines: 20, pairs: 5, commands: 40, live: 5_000, finished: [2]int{10_000, 100_000}}
)

// bench is one part of the table.
type bench struct {
	name    string
	measure func(context.Context, sizes) ([]row, error)
}

// benches are the parts of the table, in its order.
var benches = []bench{
	{"start", startAndIdle},
	{"exit", exitToWatcher},
	{"deadlines", deadlines},
	{"lifecycles", lifecycles},
	{"inprocess", inProcess},
	{"process", processDriver},
	{"peers", peersInTurn},
	{"containers", containers},
	{"ctr", againstCtr},
	{"adoption", adoption},
	{"live", liveRuns},
	{"history", finishedRuns},
	{"simulation", simulated},
}

func names() string {
	var all []string
	for _, b := range benches {
		all = append(all, b.name)
	}
	return strings.Join(all, ", ")
}

func main() {
	if os.Args[0] == keeperName {
		os.Exit(keeperMain(os.Args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, benchDeadline)
	err := execute(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context) error {
	var c comparison
	flag.StringVar(&c.base, "base", "", "compare with this errand-node, in turn, instead of printing the table")
	flag.StringVar(&c.node, "node", "bin/errand-node", "the errand-node that is compared")
	flag.IntVar(&c.rounds, "rounds", 0, "how often each is measured (0: as -short says)")
	flag.IntVar(&c.runs, "runs", 1500, "how many runs of each kind a round of a comparison has")
	flag.IntVar(&c.pairs, "pairs", 0, "compare the CPU of so many pairs of batches instead, both daemons being up")
	driver := flag.String("driver", "process", "the driver of those batches")
	short := flag.Bool("short", false, "measure less of everything: a quick look, not for the record")
	only := flag.String("only", "", "measure these only, separated by commas: "+names())
	live := flag.Int("live", 0, "how many runs one node holds (0: as -short says)")
	output := flag.String("o", "table", "table or json")
	flag.Parse()
	if c.base != "" {
		if c.rounds == 0 {
			c.rounds = 3
		}
		return c.compare(ctx, *driver)
	}
	s := full
	if *short {
		s = quick
	}
	if c.rounds > 0 {
		s.rounds = c.rounds
	}
	if *live > 0 {
		s.live = *live
	}
	if *output != "table" && *output != "json" {
		return fmt.Errorf("-o %q: must be table or json", *output)
	}
	rows, err := measure(ctx, *only, s)
	if printErr := printRows(os.Stdout, *output, rows); printErr != nil {
		return printErr
	}
	return errors.Join(err, failures(rows))
}

// failures is an error if any row has failed.
func failures(rows []row) error {
	var errs []error
	for _, r := range rows {
		if r.Failed != "" {
			errs = append(errs, fmt.Errorf("%s: %s: failed", r.Bench, r.What))
		}
	}
	return errors.Join(errs...)
}

// measure runs the benches, or only those that are named, and returns the rows it
// got to.
func measure(ctx context.Context, only string, s sizes) ([]row, error) {
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if only != "" && !slices.ContainsFunc(benches, func(b bench) bool { return b.name == name }) {
			return nil, fmt.Errorf("no rows are called %q: there are %s", name, names())
		}
	}
	var rows []row
	for _, b := range benches {
		if only != "" && !slices.Contains(wanted, b.name) {
			continue
		}
		more, err := b.measure(ctx, s)
		for i := range more {
			more[i].Bench = b.name
		}
		rows = append(rows, more...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return rows, nil
}
