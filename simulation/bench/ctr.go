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

// againstCtr compares `errand run` with `ctr run --rm` of the same image and
// command on the same containerd, from exec to exit.
func againstCtr(ctx context.Context, s sizes) ([]row, error) {
	r := row{What: "errand run against ctr run --rm", Unit: "x", Bar: atMost(0.9)}
	if _, err := exec.LookPath("ctr"); err != nil {
		r.Note = "ctr is not installed"
		return []row{r}, nil
	}
	d, err := startDaemon(ctx, "--drivers", "containerd", "--containerd", "private")
	if err != nil {
		r.fail(err)
		return []row{r}, nil
	}
	err = d.alternate(ctx, s.pairs, &r)
	return []row{r}, errors.Join(err, d.stop())
}

// busybox is the image that containers are made of.
const busybox = "docker.io/library/busybox:latest"

// containerdSocket is that of the daemon's own containerd.
func (d *benchDaemon) containerdSocket() string {
	return filepath.Join(d.dir, "data", "containerd", "containerd.sock")
}

func (d *benchDaemon) errand(args ...string) []string {
	return append([]string{"bin/errand", "--address", d.Address}, args...)
}

// importBusybox imports the image for Errand and returns its archive.
func (d *benchDaemon) importBusybox(ctx context.Context) (string, error) {
	archive := filepath.Join(d.dir, "busybox.tar")
	for _, command := range [][]string{{"go", "run", "./nodes/sandbox/containerd/images/busyboxtar", archive}, d.errand("image", "import", archive)} {
		if _, err := timed(ctx, command); err != nil {
			return "", err
		}
	}
	return archive, nil
}

// alternate fills the row with the ratios of pairs.
func (d *benchDaemon) alternate(ctx context.Context, pairs int, r *row) error {
	archive, err := d.importBusybox(ctx)
	if err != nil {
		return err
	}
	ctr := func(args ...string) []string {
		return append([]string{"ctr", "--address", d.containerdSocket(), "--namespace", "errand-bench"}, args...)
	}
	if _, err := timed(ctx, ctr("images", "import", archive)); err != nil {
		return err
	}
	var ours, theirs []float64
	for i := range pairs + 2 {
		commands := [2][]string{d.errand("run", "busybox", "--", "/bin/true"), ctr("run", "--rm", busybox, fmt.Sprintf("bench-%d", i), "/bin/true")}
		var took [2]time.Duration
		for turn := range commands {
			side := (turn + i) % 2 // who comes first differs from pair to pair
			if took[side], err = timed(ctx, commands[side]); err != nil {
				return err
			}
		}
		if i >= 2 { // the first pairs warm caches on both sides
			ours, theirs = append(ours, milliseconds(took[0])), append(theirs, milliseconds(took[1]))
			r.Values = append(r.Values, took[0].Seconds()/took[1].Seconds())
		}
	}
	r.Note = fmt.Sprintf("%d pairs; medians %.1f ms against %.1f ms", pairs, median(ours), median(theirs))
	return nil
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
