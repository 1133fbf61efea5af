package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// adopted is how many sandboxes survive.
	adopted = 200
	// adoptionSubmitters create and cancel them.
	adoptionSubmitters = 8
	// adoptionDeadline bounds the wait for a daemon to have all of them.
	adoptionDeadline = 2 * time.Minute
)

// adoption measures how long a daemon that is started again takes to be ready, after a
// stop and after a crash. It is not before all sandboxes that went on without it are
// adopted (nodes.Node.Adopt).
func adoption(ctx context.Context, s sizes) ([]row, error) {
	var rows []row
	for _, of := range []struct {
		driver, image string
		flags         []string
	}{
		{driver: "process", flags: []string{"--drivers", "process"}},
		{driver: "containerd", image: "busybox", flags: []string{"--drivers", "containerd", "--containerd", "private"}},
	} {
		d, err := startDaemon(ctx, of.flags...)
		if err != nil {
			r := row{What: fmt.Sprintf("%d sandboxes adopted, %s driver", adopted, of.driver), Unit: "ms"}
			r.fail(err)
			rows = append(rows, r)
			continue
		}
		spec := &errandv1.RunSpec{Driver: of.driver, Image: of.image, Command: []string{"/bin/sleep", "3600"}}
		more, err := d.adoption(ctx, s, spec, of.flags)
		rows = append(rows, more...)
		if err := errors.Join(err, d.stop()); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (d *benchDaemon) adoption(ctx context.Context, s sizes, spec *errandv1.RunSpec, flags []string) (rows []row, err error) {
	if spec.GetImage() != "" {
		if _, err := d.importBusybox(ctx); err != nil {
			return nil, err
		}
	}
	ids := make([]string, adopted)
	defer func() {
		clearing, cancel := clearingUp(ctx)
		defer cancel()
		err = errors.Join(err, d.endAll(clearing, ids))
	}()
	var next atomic.Int64
	if _, err := driveWhile(ctx, adoptionSubmitters, counted(adopted), func(ctx context.Context, _ int) error {
		// Not to be interrupted: what has no id here could not be ended.
		created, err := d.Runs.Create(context.WithoutCancel(ctx), &errandv1.CreateRunRequest{Spec: spec})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		ids[next.Add(1)-1] = created.GetRun().GetId()
		return d.awaitStatus(ctx, created.GetRun().GetId(), errandv1.Status_STATUS_RUNNING)
	}); err != nil {
		return nil, err
	}
	for _, way := range []struct {
		name string
		end  func() error
	}{
		// Of the daemon that there is by then.
		{"SIGTERM", func() error { return d.Stop() }},
		{"kill -9", func() error { return d.Kill() }},
	} {
		ready := row{
			What: fmt.Sprintf("%s with %d %s sandboxes: start to ready, all adopted", way.name, adopted, spec.GetDriver()),
			Unit: "ms", Bar: atMost(1000),
			Note: fmt.Sprintf("%d restarts; afterwards all run in their first attempt, and all end by a cancel", s.starts),
		}
		for range s.starts {
			if err := way.end(); err != nil {
				return rows, err
			}
			if err := d.start(ctx, flags...); err != nil {
				return rows, err
			}
			ready.Values = append(ready.Values, milliseconds(d.Ready))
		}
		rows = append(rows, ready)
	}
	return rows, d.stillRunning(ctx, ids)
}

// awaitStatus waits until a run has come to a status.
func (d *benchDaemon) awaitStatus(ctx context.Context, id string, status errandv1.Status) error {
	ctx, cancel := context.WithTimeout(ctx, adoptionDeadline)
	defer cancel()
	stream, err := d.Runs.Watch(ctx, &errandv1.WatchRunRequest{Id: id})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer stream.Close() //nolint:errcheck // what it said is known
	for stream.Receive() {
		if stream.Msg().GetRun().GetStatus() == status {
			return nil
		}
	}
	return fmt.Errorf("run %s never read %s: %w", id, status, stream.Err())
}

// awaitSandboxes waits until so many are assigned to the node and have not ended.
func (d *benchDaemon) awaitSandboxes(ctx context.Context, count int) error {
	ctx, cancel := context.WithTimeout(ctx, adoptionDeadline)
	defer cancel()
	for {
		listed, err := d.Nodes.List(ctx, &errandv1.ListNodesRequest{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		held := 0
		for _, node := range listed.GetNodes() {
			held += int(node.GetSandboxes())
		}
		if held == count {
			return nil
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("the node has %d sandboxes, not %d: %w", held, count, err)
		}
	}
}

// stillRunning returns an error unless all runs still run, in their first attempt.
func (d *benchDaemon) stillRunning(ctx context.Context, ids []string) error {
	for _, id := range ids {
		got, err := d.Runs.Get(ctx, &errandv1.GetRunRequest{Id: id})
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		if run := got.GetRun(); run.GetStatus() != errandv1.Status_STATUS_RUNNING || len(run.GetAttempts()) != 1 {
			return fmt.Errorf("run %s is %s in %d attempts after the restarts", id, run.GetStatus(), len(run.GetAttempts()))
		}
	}
	return nil
}

// endAll ends the runs, and returns when their sandboxes are removed.
func (d *benchDaemon) endAll(ctx context.Context, ids []string) error {
	var next atomic.Int64
	if _, err := driveWhile(ctx, adoptionSubmitters, counted(len(ids)), func(ctx context.Context, _ int) error {
		id := ids[next.Add(1)-1]
		if id == "" {
			return nil
		}
		if _, err := d.Runs.Cancel(ctx, &errandv1.CancelRunRequest{Id: id, Force: true}); err != nil {
			return fmt.Errorf("cancel: %w", err)
		}
		ended, err := d.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
		if status := ended.GetRun().GetStatus(); err == nil && status != errandv1.Status_STATUS_CANCELED {
			return fmt.Errorf("run %s is %s after its cancel", id, status)
		}
		return err
	}); err != nil {
		return err
	}
	return d.awaitSandboxes(ctx, 0)
}
