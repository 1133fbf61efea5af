package containerd

import (
	"context"
	"fmt"
	"os"
	"sort"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	task "github.com/containerd/containerd/api/types/task"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// List returns the sandboxes of this node: those with a directory, a container or a
// lease that carries the node's uuid. So one of which somebody deleted a part is still
// found, and removed.
func (d *Driver) List(ctx context.Context) ([]sandbox.Info, error) {
	ctx = quiet.Context(ctx)
	notes, err := d.notes()
	if err != nil {
		return nil, err
	}
	filter := fmt.Sprintf("labels.%q==%q", labelNode, d.config.NodeUUID)
	containers, err := d.client.ContainerService().List(ctx, filter)
	if err != nil {
		return nil, filtered(err, "list containers of", d.config.Namespace)
	}
	for _, container := range containers {
		if _, known := notes[container.ID]; !known && idForm.MatchString(container.ID) {
			notes[container.ID] = noteOf(container.Labels)
		}
	}
	leased, err := d.leases.List(ctx, filter)
	if err != nil {
		return nil, filtered(err, "list leases of", d.config.Namespace)
	}
	for _, lease := range leased {
		if _, known := notes[lease.ID]; !known && idForm.MatchString(lease.ID) {
			notes[lease.ID] = noteOf(lease.Labels)
		}
	}
	states, err := d.taskStates(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]sandbox.Info, 0, len(notes))
	for id, n := range notes {
		if n.Node != d.config.NodeUUID {
			continue
		}
		found = append(found, sandbox.Info{
			ID: id, Run: n.Run, Attempt: n.Attempt, Placement: n.Placement, StartToken: n.StartToken, SpecHash: n.SpecHash,
			State: d.stateOf(id, states[id]),
		})
	}
	found = append(found, d.traces(ctx, notes)...)
	sort.Slice(found, func(i, j int) bool { return found[i].ID < found[j].ID })
	return found, nil
}

// traces returns those of which there is neither a directory nor a container or a lease,
// but something else: the runtime is a process of its own, which may go on with what it
// was asked to do when all that was asked for has been removed. What can not be looked at
// is looked at the next time.
func (d *Driver) traces(ctx context.Context, notes map[string]note) []sandbox.Info {
	place := Place{
		Address: d.config.Address, Namespace: d.config.Namespace, StateDir: d.config.StateDir, Snapshotter: d.config.Snapshotter,
		RootDir: d.config.RootDir,
	}
	groups, _ := d.parent.List()
	things, _ := place.Held(ctx, d.config.NodeUUID, func() []string { return groups })
	for _, group := range groups {
		things = append(things, sandbox.Thing{Sandbox: group})
	}
	seen, traces := map[string]bool{}, []sandbox.Info(nil)
	for _, thing := range things {
		id := thing.Sandbox
		if _, known := notes[id]; known || seen[id] || sandbox.IDIn(id) != id || id == "" {
			continue
		}
		seen[id] = true
		empty, err := d.parent.Group(id).Empty()
		traces = append(traces, sandbox.TraceOf(id, err != nil || !empty))
	}
	return traces
}

// notes reads the notes of all sandboxes that have a directory.
func (d *Driver) notes() (map[string]note, error) {
	entries, err := os.ReadDir(d.config.Dir)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	notes := make(map[string]note, len(entries))
	for _, entry := range entries {
		if !entry.IsDir() || !idForm.MatchString(entry.Name()) {
			continue
		}
		n, err := d.readNote(entry.Name())
		if err != nil {
			// A directory that a crash left before its note was written has no more to it.
			n = note{Node: d.config.NodeUUID}
		}
		notes[entry.Name()] = n
	}
	return notes, nil
}

// taskStates asks for all tasks at once; a hung shim is left out of the answer.
func (d *Driver) taskStates(ctx context.Context) (map[string]task.Status, error) {
	answer, err := d.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, filtered(err, "list tasks of", d.config.Namespace)
	}
	states := make(map[string]task.Status, len(answer.GetTasks()))
	for _, process := range answer.GetTasks() {
		id := process.GetID()
		if id == "" {
			id = process.GetContainerID()
		}
		states[id] = process.GetStatus()
	}
	return states, nil
}

// stateOf says how far a sandbox has come. Where the runtime says nothing, init and the
// cgroup do.
func (d *Driver) stateOf(id string, of task.Status) sandbox.State {
	switch of {
	case task.Status_CREATED:
		return sandbox.StateCreated
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		return sandbox.StateRunning
	case task.Status_STOPPED:
		return sandbox.StateExited
	}
	if empty, err := d.parent.Group(id).Empty(); err != nil || !empty {
		return sandbox.StateRunning
	}
	if s, malformed, err := d.readStatus(id); err == nil && !malformed && s.State == status.Empty {
		return sandbox.StateCreated
	}
	return sandbox.StateExited
}
