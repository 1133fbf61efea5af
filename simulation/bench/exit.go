package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// exitBatches is into how many batches the ends are cut, to show the spread.
const exitBatches = 4

// exitToWatcher is the time from a command's end to its terminal status at a watcher.
func exitToWatcher(ctx context.Context, s sizes) ([]row, error) {
	d, err := startDaemon(ctx, "--drivers", "process")
	if err != nil {
		return nil, err
	}
	seen, err := exitDelays(ctx, d, s.watched, s.watchedMax)
	if err := errors.Join(err, d.stop()); err != nil {
		return nil, err
	}
	const what = "process exit to terminal status at a watcher, "
	median := row{What: what + "median", Unit: "ms", Bar: atMost(5)}
	p99 := row{What: what + "p99", Unit: "ms", Bar: atMost(11)}
	calm := seen.calm()
	if len(calm) < s.watched {
		note := fmt.Sprintf("the host took time from %d of %d runs; of all of them %.1f ms, p99 %.1f ms",
			len(seen)-len(calm), len(seen), quantile(seen.all(), 50), quantile(seen.all(), 99))
		median.Note, p99.Note = note, note
		return []row{median, p99}, nil
	}
	for batch := range slices.Chunk(calm, (len(calm)+exitBatches-1)/exitBatches) {
		median.Values = append(median.Values, quantile(batch, 50))
	}
	p99.Values = []float64{quantile(calm, 99)}
	note := fmt.Sprintf("%d runs, one at a time, from which the host took no time; of all %d: %.1f and %.1f ms",
		len(calm), len(seen), quantile(seen.all(), 50), quantile(seen.all(), 99))
	median.Note, p99.Note = note, note
	return []row{median, p99}, nil
}

// delay is how late one end was seen.
type delay struct {
	// took is in milliseconds.
	took float64
	// calm means that the host of this virtual machine gave none of its processors to
	// others from the run's creation to its end, as far as the kernel tells.
	calm bool
}

type delays []delay

func (d delays) all() (took []float64) {
	for _, each := range d {
		took = append(took, each.took)
	}
	return took
}

func (d delays) calm() (took []float64) {
	for _, each := range d {
		if each.calm {
			took = append(took, each.took)
		}
	}
	return took
}

// exitDelays runs commands that note the moment of their own end, one at a time,
// with a watcher attached; the note is taken a little before the real end. It goes
// on until enough of them were calm: a virtual machine that stands still is slow for
// reasons that are not ours.
func exitDelays(ctx context.Context, d *benchDaemon, enough, most int) (delays, error) {
	note, err := inMemory()
	if err != nil {
		return nil, err
	}
	defer os.Remove(note)
	var seenLate delays
	for calm := 0; calm < enough && len(seenLate) < most; {
		before, err := processorNow()
		if err != nil {
			return nil, err
		}
		created, err := d.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{
			Driver: "process", Command: []string{"/bin/bash", "-c", "sleep 0.05; echo $EPOCHREALTIME > " + note},
		}})
		if err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
		seen, err := watchUntilTerminal(ctx, d, created.GetRun().GetId())
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(note)
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			return nil, err
		}
		after, err := processorNow()
		if err != nil {
			return nil, err
		}
		late := delay{took: milliseconds(seen.Sub(time.UnixMicro(int64(seconds * 1e6)))), calm: after.stolen == before.stolen}
		seenLate = append(seenLate, late)
		if late.calm {
			calm++
		}
	}
	return seenLate, nil
}

// inMemory makes a file for the notes that is not on a disk, whose latency would
// be taken for ours.
func inMemory() (path string, err error) {
	dir := "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		dir = ""
	}
	file, err := os.CreateTemp(dir, "errand-bench-end-")
	if err != nil {
		return "", err
	}
	return file.Name(), file.Close()
}

func watchUntilTerminal(ctx context.Context, d *benchDaemon, id string) (time.Time, error) {
	stream, err := d.Runs.Watch(ctx, &errandv1.WatchRunRequest{Id: id})
	if err != nil {
		return time.Time{}, fmt.Errorf("watch: %w", err)
	}
	var last *errandv1.Run
	var at time.Time
	for stream.Receive() {
		last, at = stream.Msg().GetRun(), time.Now()
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return time.Time{}, fmt.Errorf("watch: %w", err)
	}
	if last.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
		return time.Time{}, fmt.Errorf("run %s ended as %s: %s", id, last.GetStatus(), last.GetMessage())
	}
	return at, nil
}
