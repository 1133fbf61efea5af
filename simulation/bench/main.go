// Command bench measures Errand against the bars of docs/benchmarks.md and
// prints one table. It drives the built binaries as a user would, on loopback,
// and starts every peer it compares with itself, alternating within one run: on a
// noisy machine only ratios mean something.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// row is one line of the table.
type row struct {
	what     string
	measured string
	bar      string
	pass     bool
	// note explains a row that is not measured, or how it was.
	note string
}

// benchDeadline bounds the whole program.
const benchDeadline = 15 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, benchDeadline)
	var c comparison
	flag.StringVar(&c.base, "base", "", "an errand-node to compare with, in turn")
	flag.StringVar(&c.node, "node", "bin/errand-node", "the errand-node that is compared")
	flag.IntVar(&c.rounds, "rounds", 3, "how often each is measured in a comparison")
	flag.IntVar(&c.runs, "runs", 1500, "how many runs of each kind a round of a comparison has")
	flag.IntVar(&c.pairs, "pairs", 0, "compare the CPU of so many pairs of batches instead, both daemons being up")
	only := flag.String("only", "", "measure these rows only: start, exit, process, null, ctr, separated by commas")
	flag.Parse()
	var rows []row
	var err error
	switch {
	case c.base != "" && c.pairs > 0:
		err = c.runPairs(ctx)
	case c.base != "":
		err = c.run(ctx)
	default:
		rows, err = measure(ctx, *only)
	}
	cancel()
	stop()
	if c.base == "" {
		print(rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one part of the table.
type bench struct {
	name    string
	measure func(context.Context) ([]row, error)
}

// benches are the parts of the table, in its order.
var benches = []bench{
	{"start", startAndIdle}, {"exit", exitToWatcher}, {"process", processDriver}, {"null", nullDriver}, {"ctr", againstCtr},
}

// measure runs the benches, or only those that are named, and returns the rows it
// got to.
func measure(ctx context.Context, only string) ([]row, error) {
	names := strings.Split(only, ",")
	for _, name := range names {
		if only != "" && !slices.ContainsFunc(benches, func(b bench) bool { return b.name == name }) {
			return nil, fmt.Errorf("no rows are called %q", name)
		}
	}
	var rows []row
	for _, b := range benches {
		if only != "" && !slices.Contains(names, b.name) {
			continue
		}
		more, err := b.measure(ctx)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func print(rows []row) {
	fmt.Printf("%s, %d cores, %s\n\n", cpuModel(), runtime.NumCPU(), runtime.Version())
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tMEASURED\tBAR\tRESULT\tNOTE")
	for _, r := range rows {
		verdict := "pass"
		switch {
		case r.bar == "":
			verdict = "-"
		case !r.pass:
			verdict = "short"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", r.what, r.measured, r.bar, verdict, r.note)
	}
	if err := table.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
