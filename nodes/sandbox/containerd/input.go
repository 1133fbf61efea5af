package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/input"
)

var _ sandbox.Inputs = (*Driver)(nil)

// OpenInput opens what init takes the command's input from. Init itself is found as in
// Signal.
func (d *Driver) OpenInput(ctx context.Context, id string) (sandbox.Input, error) {
	if _, err := d.readNote(id); err != nil {
		return nil, err
	}
	ended := records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	process, err := d.ask(quiet.Context(ctx), id)
	if errdefs.IsNotFound(err) || err == nil && process.GetPid() == 0 {
		return nil, ended
	}
	if err != nil {
		return nil, filtered(err, "input of", id)
	}
	pidfd, err := unix.PidfdOpen(int(process.GetPid()), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, ended
	}
	if err != nil {
		return nil, records.Errorf(records.ClassInternal, "input of sandbox %s: %w", id, err)
	}
	defer unix.Close(pidfd)
	// The pidfd pins the number: what is seen of it now is true of the process.
	if !inGroup(int(process.GetPid()), d.parent.Group(id).Path()) {
		return nil, ended
	}
	opened, err := input.Open(int(process.GetPid()))
	switch {
	case err == nil:
		return opened, nil
	case errors.Is(err, input.ErrNone):
		return nil, records.Errorf(records.ClassInvalid, "the command of sandbox %s takes no input: it was made without, or by an earlier version of Errand", id)
	case errors.Is(err, unix.ESRCH):
		return nil, ended
	}
	return nil, fmt.Errorf("input of sandbox %s: %w", id, err)
}
