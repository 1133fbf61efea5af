package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Sizes of the process driver's benches.
const (
	watchedRuns    = 200
	watchedMax     = 1000
	throughputRuns = 3000
	idleSettle     = 5 * time.Second
)

// What the throughput is measured with.
var (
	truth   = &errandv1.RunSpec{Driver: "process", Command: []string{"/bin/true"}}
	nothing = &errandv1.RunSpec{Driver: "null", Command: []string{"exit=0"}}
)

// startAndIdle measures how long a single node takes to be ready and what it
// holds resident when it has nothing to do.
func startAndIdle(ctx context.Context) ([]row, error) {
	const starts = 5
	var ready []time.Duration
	var resident int64
	for range starts {
		d, err := startDaemon(ctx, "--drivers", "process")
		if err != nil {
			return nil, err
		}
		ready = append(ready, d.Ready)
		if len(ready) == starts {
			if err := pause(ctx, idleSettle); err != nil {
				return nil, errors.Join(err, d.stop())
			}
			if resident, err = d.ResidentBytes(); err != nil {
				return nil, errors.Join(err, d.stop())
			}
		}
		if err := d.stop(); err != nil {
			return nil, err
		}
	}
	median := percentile(ready, 50)
	return []row{
		{what: "daemon start to ready", measured: median.Round(time.Millisecond).String(), bar: "<= 1s", pass: median <= time.Second, note: fmt.Sprintf("median of %d starts", starts)},
		{what: "resident, idle", measured: fmt.Sprintf("%.1f MiB", float64(resident)/(1<<20)), bar: "<= 60 MiB", pass: resident <= 60<<20, note: "embedded etcd included"},
	}, nil
}

// processDriver measures how many `true` the process driver runs.
func processDriver(ctx context.Context) ([]row, error) {
	d, err := startDaemon(ctx, "--drivers", "process")
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, submitters := range []int{8, 32} {
		if err != nil {
			break
		}
		var r row
		r, err = throughput(ctx, d, submitters, truth, 218)
		rows = append(rows, r)
	}
	return rows, errors.Join(err, d.stop())
}

// nullDriver measures full durable lifecycles without any process.
func nullDriver(ctx context.Context) ([]row, error) {
	d, err := startDaemon(ctx, "--drivers", "null")
	if err != nil {
		return nil, err
	}
	r, err := throughput(ctx, d, 64, nothing, 0)
	return []row{r}, errors.Join(err, d.stop())
}

// exitToWatcher is the time from a command's end to its terminal status at a watcher.
func exitToWatcher(ctx context.Context) ([]row, error) {
	d, err := startDaemon(ctx, "--drivers", "process")
	if err != nil {
		return nil, err
	}
	seen, err := exitDelays(ctx, d)
	if err := errors.Join(err, d.stop()); err != nil {
		return nil, err
	}
	calm := seen.calm()
	if len(calm) < watchedRuns {
		return []row{{
			what: "process exit to terminal status at a watcher", measured: "not measured",
			note: fmt.Sprintf("the host took time from %d of %d runs: all of them %s, p99 %s", len(seen)-len(calm), len(seen), ms(percentile(seen.all(), 50)), ms(percentile(seen.all(), 99))),
		}}, nil
	}
	median, p99 := percentile(calm, 50), percentile(calm, 99)
	note := fmt.Sprintf("%d runs, one at a time, from which the host took no time; all %d: %s and %s",
		len(calm), len(seen), ms(percentile(seen.all(), 50)), ms(percentile(seen.all(), 99)))
	return []row{
		{what: "process exit to terminal status at a watcher, median", measured: ms(median), bar: "<= 5 ms", pass: median <= 5*time.Millisecond, note: note},
		{what: "process exit to terminal status at a watcher, p99", measured: ms(p99), bar: "<= 11 ms", pass: p99 <= 11*time.Millisecond, note: note},
	}, nil
}

// delay is how late one end was seen.
type delay struct {
	took time.Duration
	// calm means that the host of this virtual machine gave none of its processors to
	// others from the run's creation to its end, as far as the kernel tells.
	calm bool
}

type delays []delay

func (d delays) all() (took []time.Duration) {
	for _, each := range d {
		took = append(took, each.took)
	}
	return took
}

func (d delays) calm() (took []time.Duration) {
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
func exitDelays(ctx context.Context, d *benchDaemon) (delays, error) {
	note, err := inMemory()
	if err != nil {
		return nil, err
	}
	defer os.Remove(note)
	var seenLate delays
	for calm := 0; calm < watchedRuns && len(seenLate) < watchedMax; {
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
		late := delay{took: seen.Sub(time.UnixMicro(int64(seconds * 1e6))), calm: after.stolen == before.stolen}
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

// throughput runs a spec many times from some submitters that each wait for the
// end of one run before they submit the next.
func throughput(ctx context.Context, d *benchDaemon, submitters int, spec *errandv1.RunSpec, bar float64) (row, error) {
	before, err := processorNow()
	if err != nil {
		return row{}, err
	}
	spentBefore, err := d.spent()
	if err != nil {
		return row{}, err
	}
	elapsed, err := submitAll(ctx, d, submitters, throughputRuns, spec)
	after, busyErr := processorNow()
	spentAfter, spentErr := d.spent()
	if err = errors.Join(err, busyErr, spentErr); err != nil {
		return row{}, err
	}
	rate := throughputRuns / elapsed.Seconds()
	each := func(d time.Duration) float64 { return d.Seconds() * 1000 / throughputRuns }
	r := row{
		what:     fmt.Sprintf("%s driver, %d submitters", spec.GetDriver(), submitters),
		measured: fmt.Sprintf("%.0f runs/s, %.1f ms CPU each", rate, each(after.busy-before.busy)),
		pass:     rate >= bar,
		note: fmt.Sprintf("%d runs; CPU of the whole machine, %.1f ms of it the daemon's and its sandboxes'; the host took %.0f %% of the processors",
			throughputRuns, each(spentAfter-spentBefore), 100*(after.stolen-before.stolen).Seconds()/elapsed.Seconds()/float64(runtime.NumCPU())),
	}
	if bar > 0 {
		r.bar = fmt.Sprintf(">= %.0f runs/s", bar)
	}
	return r, nil
}

// submitAll submits runs from many submitters and returns how long all of it took.
func submitAll(ctx context.Context, d *benchDaemon, submitters, runs int, spec *errandv1.RunSpec) (time.Duration, error) {
	jobs := make(chan struct{}, runs)
	for range runs {
		jobs <- struct{}{}
	}
	close(jobs)
	begin := time.Now()
	failures := make(chan error, submitters)
	var group sync.WaitGroup
	for range submitters {
		group.Go(func() { failures <- submit(ctx, d, jobs, spec) })
	}
	group.Wait()
	elapsed := time.Since(begin)
	close(failures)
	var err error
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	return elapsed, err
}

func submit(ctx context.Context, d *benchDaemon, jobs <-chan struct{}, spec *errandv1.RunSpec) error {
	for range jobs {
		created, err := d.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: spec})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		ended, err := d.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: created.GetRun().GetId()})
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if status := ended.GetRun().GetStatus(); status != errandv1.Status_STATUS_SUCCEEDED {
			return fmt.Errorf("run %s ended as %s: %s", ended.GetRun().GetId(), status, ended.GetRun().GetMessage())
		}
	}
	return nil
}

// percentile returns the value below which p percent of the values lie.
func percentile(values []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// spread returns the tenth and the ninetieth percentile.
func spread(values []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/10], sorted[len(sorted)*9/10]
}
