package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func TestCauseIsWhatAnErrorComesDownTo(t *testing.T) {
	path := &os.PathError{Op: "open", Path: "/var/lib/errand/sandboxes/e1/status", Err: syscall.ENOSPC}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"a system call on a path": {fmt.Errorf("create sandbox e1: %w", fmt.Errorf("create status file: %w", path)), "no space left on device"},
		"a refusal of the driver": {fmt.Errorf("create: %w", sandbox.Transientf(recordv1.Reason_REASON_IMAGE_PULL, "registry away")), "registry away"},
		"a deadline":              {records.Errorf(records.ClassDeadline, "create e1: %w", context.DeadlineExceeded), "it took too long"},
		"broken off":              {fmt.Errorf("create e1: %w", context.Canceled), "it was broken off"},
		"joined errors":           {fmt.Errorf("create e1: %w", errors.Join(errors.New("undo"), syscall.EDQUOT)), "disk quota exceeded"},
		"words at the end":        {records.Errorf(records.ClassUnavailable, "reach containerd: %w", errors.New("it is away")), "it is away"},
		"words alone":             {errors.New("it exists"), "it exists"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sandbox.Cause(test.err); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
