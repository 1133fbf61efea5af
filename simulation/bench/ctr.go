package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// ctrPairs is how often errand run and ctr run alternate.
const ctrPairs = 30

// againstCtr compares `errand run` with `ctr run --rm` of the same image and
// command on the same containerd, from exec to exit.
func againstCtr(ctx context.Context) ([]row, error) {
	const what = "errand run against ctr run --rm"
	if _, err := exec.LookPath("ctr"); err != nil {
		return []row{{what: what, measured: "not measured", note: "ctr is not installed"}}, nil
	}
	d, err := startDaemon(ctx, "--drivers", "containerd", "--containerd", "private")
	if err != nil {
		return []row{{what: what, measured: "not measured", note: err.Error()}}, nil
	}
	r, err := alternate(ctx, d)
	r.what = what
	return []row{r}, errors.Join(err, d.stop())
}

func alternate(ctx context.Context, d *benchDaemon) (row, error) {
	image := filepath.Join(d.dir, "busybox.tar")
	socket := filepath.Join(d.dir, "data", "containerd", "containerd.sock")
	ctr := func(args ...string) []string {
		return append([]string{"ctr", "--address", socket, "--namespace", "errand-bench"}, args...)
	}
	errand := func(args ...string) []string { return append([]string{"bin/errand", "--address", d.Address}, args...) }
	for _, command := range [][]string{
		{"go", "run", "./nodes/sandbox/containerd/images/busyboxtar", image},
		errand("image", "import", image),
		ctr("images", "import", image),
	} {
		if _, err := timed(ctx, command); err != nil {
			return row{}, err
		}
	}
	const name = "docker.io/library/busybox:latest"
	var ours, theirs []time.Duration
	var ratios []float64
	for i := range ctrPairs + 2 {
		a, err := timed(ctx, errand("run", "busybox", "--", "/bin/true"))
		if err != nil {
			return row{}, err
		}
		b, err := timed(ctx, ctr("run", "--rm", name, fmt.Sprintf("bench-%d", i), "/bin/true"))
		if err != nil {
			return row{}, err
		}
		if i >= 2 { // the first pairs warm caches on both sides
			ours, theirs = append(ours, a), append(theirs, b)
			ratios = append(ratios, a.Seconds()/b.Seconds())
		}
	}
	ratio := percentile(ours, 50).Seconds() / percentile(theirs, 50).Seconds()
	low, high := spread(ratios)
	return row{
		measured: fmt.Sprintf("%.2fx", ratio), bar: "<= 0.90x", pass: ratio <= 0.9,
		note: fmt.Sprintf("medians of %d pairs: %s against %s; ratio of pairs %.2f to %.2f (p10, p90)", ctrPairs, ms(percentile(ours, 50)), ms(percentile(theirs, 50)), low, high),
	}, nil
}

// timed runs a command and returns how long it took.
func timed(ctx context.Context, command []string) (time.Duration, error) {
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	begin := time.Now()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("%v: %w: %s", command, err, output.String())
	}
	return time.Since(begin), nil
}
