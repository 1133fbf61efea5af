package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// killLimit is how long a supervisor may take to kill everything before it is killed
// itself.
const killLimit = 5 * time.Second

// stoppedEvery is how often it is looked whether that supervisor is stopped.
const stoppedEvery = 100 * time.Millisecond

// state returns where the sandbox stands.
func (x *box) state() sandbox.State {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case closed(x.ended):
		return sandbox.StateExited
	case x.started:
		return sandbox.StateRunning
	default:
		return sandbox.StateCreated
	}
}

// Signal sends a signal to the command's process group. SIGKILL ends everything.
func (d *Driver) Signal(_ context.Context, id string, signal int) (delivered bool, err error) {
	x, err := d.find(id)
	if err != nil {
		return false, err
	}
	if x.state() != sandbox.StateRunning {
		return false, nil
	}
	delivered, err = x.send(unix.Signal(signal))
	if err != nil {
		return false, fmt.Errorf("signal sandbox %s: %w", id, err)
	}
	return delivered, nil
}

// Kill has the supervisor kill everything and waits for it to say so.
func (d *Driver) Kill(ctx context.Context, id string) (leftover bool, err error) {
	x, err := d.find(id)
	if err != nil {
		return d.killTrace(ctx, id)
	}
	switch x.state() {
	case sandbox.StateCreated:
		return false, nil
	case sandbox.StateExited:
		return d.killRest(ctx, x, false)
	}
	wasAlive, err := x.send(unix.SIGKILL)
	if err != nil {
		return true, fmt.Errorf("kill sandbox %s: %w", id, err)
	}
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	hung, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	look := time.NewTicker(stoppedEvery)
	defer look.Stop()
	for !hungUp(hung, supervisor) {
		select {
		case <-x.ended:
			return d.killRest(ctx, x, wasAlive)
		case <-look.C:
		case <-hung.Done():
		case <-d.closing:
			return true, records.Errorf(records.ClassUnavailable, "kill sandbox %s: %w", id, errClosed)
		}
	}
	if ctx.Err() != nil {
		return true, records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", id, ctx.Err())
	}
	// The supervisor hangs. With it everything dies, and its last word counts.
	x.mu.Lock()
	x.killed = true
	x.mu.Unlock()
	if err := supervisor.Signal(unix.SIGKILL); err != nil && !errors.Is(err, pid.ErrGone) {
		return true, fmt.Errorf("kill supervisor of sandbox %s: %w", id, err)
	}
	select {
	case <-x.ended:
		return d.killRest(ctx, x, true)
	case <-ctx.Done():
		return true, records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", id, ctx.Err())
	case <-d.closing:
		return true, records.Errorf(records.ClassUnavailable, "kill sandbox %s: %w", id, errClosed)
	}
}

// hungUp tells whether a supervisor is not to be waited for any longer.
func hungUp(limit context.Context, supervisor pid.Ref) bool {
	return limit.Err() != nil || supervisor.Stopped()
}

// killRest makes sure of an empty cgroup; a supervisor that died left it to others.
func (d *Driver) killRest(ctx context.Context, x *box, wasAlive bool) (leftover bool, err error) {
	x.mu.Lock()
	// A command that ended by itself in the same moment was not killed.
	lost := x.exit.Code == nil && x.exit.Reason == recordv1.Reason_REASON_SANDBOX_LOST
	leftover = x.leftover || wasAlive && (lost || x.exit.Signal == int32(unix.SIGKILL))
	x.mu.Unlock()
	if err := x.awaitExecs(ctx); err != nil {
		return true, records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", x.meta.Info.ID, err)
	}
	if x.group == nil {
		return leftover, nil
	}
	killed, err := x.group.Kill(ctx)
	if err != nil {
		return true, records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", x.meta.Info.ID, err)
	}
	return leftover || killed, nil
}

// Wait returns the end of the command, once nothing of the sandbox is alive and its
// log is complete.
func (d *Driver) Wait(ctx context.Context, id string) (sandbox.Exit, error) {
	x, err := d.find(id)
	if err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-x.ended:
	case <-ctx.Done():
		return sandbox.Exit{}, records.Errorf(records.ClassDeadline, "wait for sandbox %s: %w", id, ctx.Err())
	case <-d.closing:
		return sandbox.Exit{}, records.Errorf(records.ClassUnavailable, "wait for sandbox %s: %w", id, errClosed)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	exit := x.exit
	if exit.Code != nil {
		code := *exit.Code
		exit.Code = &code
	}
	return exit, nil
}

// Flush tells whether the supervisor completed the log, which it does before it
// tells of the end.
func (d *Driver) Flush(ctx context.Context, id string) (complete bool, err error) {
	x, err := d.find(id)
	if err != nil || x.state() == sandbox.StateCreated {
		return true, nil
	}
	if _, err := d.Wait(ctx, id); err != nil {
		return false, fmt.Errorf("flush: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.exit.LogUnwritten {
		return false, fmt.Errorf("flush sandbox %s: %w", id, sandbox.ErrLogUnwritten)
	}
	return x.logComplete, nil
}

// Remove kills what is left, removes the cgroup and gives the file to others.
func (d *Driver) Remove(ctx context.Context, id string) error {
	x, err := d.find(id)
	if err != nil {
		return d.removeTrace(ctx, id)
	}
	if _, err := d.Kill(ctx, id); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if x.state() != sandbox.StateCreated {
		select {
		case <-x.gone:
		case <-ctx.Done():
			return records.Errorf(records.ClassDeadline, "remove sandbox %s: %w", id, ctx.Err())
		case <-d.closing:
			return records.Errorf(records.ClassUnavailable, "remove sandbox %s: %w", id, errClosed)
		}
	}
	if x.group != nil {
		if err := x.group.Remove(ctx); err != nil {
			return fmt.Errorf("remove sandbox %s: %w", id, err)
		}
	}
	if err := d.stock.giveBack(x.path); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	d.mu.Lock()
	delete(d.boxes, id)
	d.mu.Unlock()
	return nil
}

// List returns all sandboxes, by id, and then the cgroups that are none of theirs. Some
// of those may be other drivers'.
func (d *Driver) List(context.Context) ([]sandbox.Info, error) {
	// First, since one that is made meanwhile is in the second.
	groups, err := d.groups()
	if err != nil {
		return nil, err
	}
	all := d.snapshot()
	infos, known := make([]sandbox.Info, 0, len(all)), make(map[string]bool, len(all))
	for _, x := range all {
		info := x.meta.Info
		info.State = x.state()
		infos, known[info.ID] = append(infos, info), true
	}
	for _, id := range groups {
		if !known[id] && sandbox.IDIn(id) == id {
			empty, err := d.parent.Group(id).Empty()
			infos = append(infos, sandbox.TraceOf(id, err != nil || !empty))
		}
	}
	return infos, nil
}

// groups are the names of the cgroups that there are, in order.
func (d *Driver) groups() ([]string, error) {
	if d.parent == nil {
		return nil, nil
	}
	names, err := d.parent.List()
	slices.Sort(names)
	return names, err
}

// killTrace kills what runs in the cgroup of a sandbox that is none of the driver's.
func (d *Driver) killTrace(ctx context.Context, id string) (killed bool, err error) {
	if d.parent == nil || sandbox.IDIn(id) != id {
		return false, nil
	}
	if killed, err = d.parent.Group(id).Kill(ctx); err != nil {
		return killed, records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", id, err)
	}
	return killed, nil
}

// removeTrace removes the cgroup of a sandbox that is none of the driver's.
func (d *Driver) removeTrace(ctx context.Context, id string) error {
	if d.parent == nil || sandbox.IDIn(id) != id {
		return nil
	}
	if _, err := d.killTrace(ctx, id); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if err := d.parent.Group(id).Remove(ctx); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}
