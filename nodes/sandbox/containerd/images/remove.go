package images

import (
	"context"
	"fmt"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

const (
	// removeWaitMax is how long a removal waits for sandboxes that have ended: they are
	// cleared away within that after the end of their run.
	removeWaitMax = 5 * time.Second
	// removePause is how often it looks: containerd tells nobody when a container goes.
	removePause = 50 * time.Millisecond
	// taskMax bounds the question whether a sandbox still runs: its shim may hang.
	taskMax = time.Second

	// labelRun is the label of a container that names its run.
	labelRun = "errand/run"
)

// Remove takes an image's name away and returns it normalised. One that a sandbox is
// made of is of records.ClassConflict, one that is not there of ClassNotFound. Sandboxes
// that have ended are waited for, a moment: a run reads terminal before they are gone.
func (s *Store) Remove(ctx context.Context, typed string) (string, error) {
	ctx = quiet.Context(ctx)
	name, err := Normalize(typed)
	if err != nil {
		return "", records.Errorf(records.ClassInvalid, "%w", err)
	}
	if err := s.awaitUnused(ctx, name); err != nil {
		return "", err
	}
	if err := s.client.ImageService().Delete(ctx, name, images.SynchronousDelete()); err != nil {
		if errdefs.IsNotFound(err) {
			return "", records.Errorf(records.ClassNotFound, "there is no image %s", name)
		}
		return "", classify("remove image "+name, err)
	}
	return name, nil
}

// awaitUnused returns when no sandbox is, or is being, made of an image, and with a
// conflict when one goes on, or does not go.
func (s *Store) awaitUnused(ctx context.Context, name string) error {
	for begun := time.Now(); ; {
		if s.held(name) {
			return records.Errorf(records.ClassConflict, "a sandbox is being made of image %s", name)
		}
		made, err := s.client.ContainerService().List(ctx, fmt.Sprintf("image==%q", name))
		if err != nil {
			return classify("look for sandboxes of "+name, err)
		}
		if len(made) == 0 {
			return nil
		}
		for _, container := range made {
			if s.runs(ctx, container) {
				return records.Errorf(records.ClassConflict, "a sandbox is made of image %s%s", name, ofRun(container, " and goes on"))
			}
		}
		if time.Since(begun) > removeWaitMax {
			return records.Errorf(records.ClassConflict, "a sandbox is made of image %s%s and is not cleared away yet: try again in a moment", name, ofRun(made[0], ", which has ended,"))
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return records.Errorf(records.ClassDeadline, "wait for the sandboxes of image %s: %w", name, ctx.Err())
		}
	}
}

// ofRun names the run of a sandbox and what becomes of it; a container of somebody else
// has none.
func ofRun(container containers.Container, what string) string {
	if run := container.Labels[labelRun]; run != "" {
		return ": that of run " + run + what
	}
	return ""
}

// runs tells whether a container has a task that has not ended, or may have one.
func (s *Store) runs(ctx context.Context, container containers.Container) bool {
	ctx, cancel := context.WithTimeout(ctx, taskMax)
	defer cancel()
	answer, err := s.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: container.ID})
	if err != nil {
		return !errdefs.IsNotFound(errgrpc.ToNative(err))
	}
	return answer.GetProcess().GetStatus() != task.Status_STOPPED
}

// held tells whether a sandbox is being made of an image.
func (s *Store) held(name string) bool {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	return s.uses.held[name] > 0
}
