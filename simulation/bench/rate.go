package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// What rates are measured with.
var (
	truth   = &errandv1.RunSpec{Driver: "process", Command: []string{"/bin/true"}}
	nothing = &errandv1.RunSpec{Driver: "null", Command: []string{"exit=0", "no-log"}}
)

// rate is how much was done in one round.
type rate struct {
	done int
	took time.Duration
}

func (r rate) perSecond() float64 { return float64(r.done) / r.took.Seconds() }

// drive has some submitters do the same again and again until the time is up, and
// waits until the last of it is done.
func drive(ctx context.Context, submitters int, slice time.Duration, once func(context.Context, int) error) (rate, error) {
	begin := time.Now()
	return driveWhile(ctx, submitters, func() bool { return time.Since(begin) < slice }, once)
}

// driveWhile is drive until there is no more to do.
func driveWhile(ctx context.Context, submitters int, more func() bool, once func(context.Context, int) error) (rate, error) {
	var done atomic.Int64
	failures := make([]error, submitters)
	begin := time.Now()
	var group sync.WaitGroup
	for i := range submitters {
		group.Go(func() {
			for failures[i] == nil && ctx.Err() == nil && more() {
				if failures[i] = once(ctx, i); failures[i] == nil {
					done.Add(1)
				}
			}
		})
	}
	group.Wait()
	return rate{done: int(done.Load()), took: time.Since(begin)}, errors.Join(errors.Join(failures...), ctx.Err())
}

// counted lets driveWhile go on n times.
func counted(n int) func() bool {
	var begun atomic.Int64
	return func() bool { return begun.Add(1) <= int64(n) }
}

// lifeWait is how long one call of a run's whole life lasts at most.
const lifeWait = time.Minute

// runOf has a run done from its creation to its end, by one call, or by two of a daemon
// that has no such call.
func runOf(d *benchDaemon, spec *errandv1.RunSpec) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		created, err := d.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: spec, IdempotencyKey: rand.Text(), Wait: durationpb.New(lifeWait)})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		run := created.GetRun()
		if !client.Terminal(run.GetStatus()) {
			ended, err := d.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: run.GetId()})
			if err != nil {
				return fmt.Errorf("wait: %w", err)
			}
			run = ended.GetRun()
		}
		return succeeded(run)
	}
}

func succeeded(run *errandv1.Run) error {
	if status := run.GetStatus(); status != errandv1.Status_STATUS_SUCCEEDED {
		return fmt.Errorf("run %s ended as %s: %s", run.GetId(), status, run.GetMessage())
	}
	return nil
}

// submitAll submits so many runs and returns how long all of them took.
func submitAll(ctx context.Context, d *benchDaemon, submitters, runs int, spec *errandv1.RunSpec) (time.Duration, error) {
	r, err := driveWhile(ctx, submitters, counted(runs), runOf(d, spec))
	return r.took, err
}

// costs adds up what rounds took of the processors.
type costs struct {
	busy, spent, stolen, took time.Duration
	runs                      int
}

// measured runs one round and adds what it cost.
func (c *costs) measured(d *benchDaemon, round func() (rate, error)) (rate, error) {
	before, err := processorNow()
	spentBefore, spentErr := d.spent()
	if err := errors.Join(err, spentErr); err != nil {
		return rate{}, err
	}
	r, err := round()
	after, afterErr := processorNow()
	spentAfter, spentErr := d.spent()
	c.busy += after.busy - before.busy
	c.stolen += after.stolen - before.stolen
	c.spent += spentAfter - spentBefore
	c.took += r.took
	c.runs += r.done
	return r, errors.Join(err, afterErr, spentErr)
}

func (c *costs) note() string {
	each := func(d time.Duration) float64 { return milliseconds(d) / float64(max(c.runs, 1)) }
	return fmt.Sprintf("%d runs; %.2f ms CPU each in the daemon and its sandboxes, %.2f ms on the whole machine; the host took %.0f %% of a processor",
		c.runs, each(c.spent), each(c.busy), 100*c.stolen.Seconds()/c.took.Seconds())
}
