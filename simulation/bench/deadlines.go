package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// deadlineAfter is each deadline, graceAfter the pause between TERM and KILL.
	deadlineAfter = 3 * time.Second
	graceAfter    = 2 * time.Second
	// deadlineSubmitters give runs at the same time, so that many come to a deadline at once.
	deadlineSubmitters = 16
)

// deadlines is how late deadlines are kept, the latest of many that come close together:
// the end of runs that find no place, the TERM of commands that take too long, the KILL of
// those that ignore it.
func deadlines(ctx context.Context, s sizes) ([]row, error) {
	d, err := startDaemon(ctx, "--drivers", "process")
	if err != nil {
		return nil, err
	}
	late, err := deadlineDelays(ctx, d, s.deadlines)
	if err := errors.Join(err, d.stop()); err != nil {
		return nil, err
	}
	note := fmt.Sprintf("the latest of %d, 99th percentile", s.deadlines)
	rowOf := func(what string, values []float64) row {
		return row{What: what, Unit: "ms", Bar: atMost(1000), Values: []float64{quantile(values, 100)}, Note: fmt.Sprintf("%s %.0f ms", note, quantile(values, 99))}
	}
	return []row{
		rowOf("start deadline to the end of the run, at most", late.start),
		rowOf("timeout to the TERM of the command, at most", late.term),
		rowOf("end of the stop grace to its KILL, at most", late.kill),
	}, nil
}

// lateness is in milliseconds.
type lateness struct{ start, term, kill []float64 }

func deadlineDelays(ctx context.Context, d *benchDaemon, count int) (lateness, error) {
	placeless := &errandv1.RunSpec{
		Driver: "process", Command: []string{"true"}, CpuMillis: 999_000, StartDeadline: durationpb.New(deadlineAfter),
	}
	stubborn := &errandv1.RunSpec{
		Driver: "process", Command: []string{"/bin/sh", "-c", `trap "" TERM; while :; do sleep 1; done`},
		Timeout: durationpb.New(deadlineAfter), StopGrace: durationpb.New(graceAfter),
	}
	var mu sync.Mutex
	var ids []string
	_, err := driveWhile(ctx, deadlineSubmitters, counted(count), func(ctx context.Context, _ int) error {
		for _, spec := range []*errandv1.RunSpec{placeless, stubborn} {
			created, err := d.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: spec})
			if err != nil {
				return fmt.Errorf("create: %w", err)
			}
			mu.Lock()
			ids = append(ids, created.GetRun().GetId())
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return lateness{}, err
	}
	var all lateness
	for _, id := range ids {
		ended, err := d.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
		if err != nil {
			return lateness{}, fmt.Errorf("wait: %w", err)
		}
		if err := all.add(ended.GetRun()); err != nil {
			return lateness{}, err
		}
	}
	return all, nil
}

// add takes a run that has come to its deadline. One that ended in another way, or early,
// is an error.
func (l *lateness) add(run *errandv1.Run) error {
	wrong := fmt.Errorf("run %s ended as %s %s: %s", run.GetId(), run.GetStatus(), run.GetReason(), run.GetMessage())
	if run.GetReason() == errandv1.Reason_REASON_START_DEADLINE {
		late := run.GetEndedAt().AsTime().Sub(run.GetQueuedAt().AsTime()) - deadlineAfter
		if late < 0 {
			return fmt.Errorf("%s early: %w", -late, wrong)
		}
		l.start = append(l.start, milliseconds(late))
		return nil
	}
	attempts := run.GetAttempts()
	if run.GetStatus() != errandv1.Status_STATUS_TIMED_OUT || len(attempts) != 1 || len(attempts[0].GetSignals()) != 2 {
		return wrong
	}
	sent := attempts[0].GetSignals()
	term, kill := sent[0].GetAt().AsTime(), sent[1].GetAt().AsTime()
	l.term = append(l.term, milliseconds(term.Sub(run.GetStartedAt().AsTime())-deadlineAfter))
	l.kill = append(l.kill, milliseconds(kill.Sub(term)-graceAfter))
	return nil
}
