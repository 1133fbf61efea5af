package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/input"
)

var _ sandbox.Inputs = (*Driver)(nil)

// OpenInput opens what the supervisor takes the command's input from.
func (d *Driver) OpenInput(_ context.Context, id string) (sandbox.Input, error) {
	x, err := d.find(id)
	if err != nil {
		return nil, err
	}
	ended := records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	if x.state() != sandbox.StateRunning {
		return nil, ended
	}
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	process, err := supervisor.Open()
	if err != nil {
		return nil, ended
	}
	defer unix.Close(process)
	opened, err := input.Open(supervisor.PID)
	switch {
	case err == nil:
		return opened, nil
	case errors.Is(err, input.ErrNone):
		return nil, records.Errorf(records.ClassInvalid, "the command of sandbox %s takes no input: it was made without, or by an earlier version of Errand", id)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EACCES) && endsSoon(process):
		return nil, ended
	}
	return nil, fmt.Errorf("input of sandbox %s: %w", id, err)
}
