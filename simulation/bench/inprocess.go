package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/fx"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// inProcessGets and inProcessLives are how much one batch does.
	inProcessGets  = 1000
	inProcessLives = 300
	// inProcessPairs is how many pairs of batches a full measurement has at least.
	inProcessPairs = 20
)

// inProcess compares, within one process that has a node in it, its own client with one
// over loopback: batches in turn, and the process's time covers both sides of each call.
func inProcess(ctx context.Context, s sizes) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "errand-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var node *boot.Instance
	app := fx.New(boot.Node(boot.Config{
		Name: "embedded", DataDir: filepath.Join(dir, "data"), RuntimeDir: filepath.Join(dir, "run"), Listen: "127.0.0.1:0", Dev: true,
		Drivers: []string{boot.DriverNull}, SandboxesMax: 4096,
	}), fx.Populate(&node), fx.NopLogger)
	if err := app.Start(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, app.Stop(context.WithoutCancel(ctx))) }()
	loopback, err := client.New(client.Config{Address: node.Address()})
	if err != nil {
		return nil, err
	}
	defer loopback.Close()
	ways := [2]*client.Client{loopback, node.Client()}
	run, err := loopback.Run(ctx, &errandv1.CreateRunRequest{Spec: nothing})
	if err != nil {
		return nil, err
	}
	for _, what := range []struct {
		name       string
		submitters int
		count      int
		once       func(context.Context, *client.Client) error
	}{
		{"a run by its id", 1, inProcessGets, func(ctx context.Context, c *client.Client) error {
			_, err := c.Get(ctx, run.GetId())
			return err
		}},
		{fmt.Sprintf("a lifecycle, null driver, %d submitters", lifecycleSubmitters), lifecycleSubmitters, inProcessLives, func(ctx context.Context, c *client.Client) error {
			ended, err := c.Run(ctx, &errandv1.CreateRunRequest{Spec: nothing})
			if err != nil {
				return err
			}
			return succeeded(ended)
		}},
	} {
		pairs := max(inProcessPairs*s.rounds/full.rounds, 2)
		spent, took, err := paired(pairs, func(way int) (work, error) {
			return worked(ctx, what.submitters, what.count, func(ctx context.Context, _ int) error { return what.once(ctx, ways[way]) })
		})
		if err != nil {
			return rows, err
		}
		spent.What = what.name + ", in the process, per one over loopback: CPU of the process, client and node"
		took.What = what.name + ", in the process, per one over loopback: time of the calls"
		rows = append(rows, spent, took)
	}
	return rows, nil
}

// work is what one batch took for each of its calls, in milliseconds.
type work struct{ spent, took float64 }

// worked carries a batch out and measures it.
func worked(ctx context.Context, submitters, count int, once func(context.Context, int) error) (work, error) {
	before, err := spentHere()
	if err != nil {
		return work{}, err
	}
	r, err := driveWhile(ctx, submitters, counted(count), once)
	if err != nil {
		return work{}, err
	}
	after, err := spentHere()
	each := float64(count)
	return work{spent: milliseconds(after-before) / each, took: milliseconds(r.took) * float64(submitters) / each}, err
}

// paired has both ways take batches in turn and returns how much the second takes for
// what the first does.
func paired(pairs int, batch func(way int) (work, error)) (spent, took row, err error) {
	spent, took = row{Unit: "x"}, row{Unit: "x"}
	var each [2]struct{ spent, took []float64 }
	for pair := range pairs + 1 {
		var now [2]work
		for turn := range 2 {
			way := (turn + pair) % 2 // who comes second finds the caches as the first has left them
			if now[way], err = batch(way); err != nil {
				return spent, took, err
			}
		}
		if pair == 0 {
			continue // both warm up
		}
		for way := range each {
			each[way].spent, each[way].took = append(each[way].spent, now[way].spent), append(each[way].took, now[way].took)
		}
		spent.Values, took.Values = append(spent.Values, now[1].spent/now[0].spent), append(took.Values, now[1].took/now[0].took)
	}
	note := func(first, second []float64) string {
		return fmt.Sprintf("%d pairs of batches; medians %.3f ms against %.3f ms", pairs, median(second), median(first))
	}
	spent.Note, took.Note = note(each[0].spent, each[1].spent), note(each[0].took, each[1].took)
	return spent, took, nil
}

// spentHere is the processor time of this process.
func spentHere() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read this process's time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
