package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Cause says in a few words what an error comes down to. It is for records, which
// users read: the names and paths on the way to the cause are the node's own and
// belong into its log.
func Cause(err error) string {
	var start *StartError
	var errno syscall.Errno
	switch {
	case errors.As(err, &start):
		return start.Message
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, context.Canceled):
		return "it was broken off"
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// WantOfMemory says that the kernel has killed processes of a sandbox whose command did
// not end by that.
func WantOfMemory(kills int) string {
	if kills == 1 {
		return "the kernel killed a process of it for want of memory"
	}
	return fmt.Sprintf("the kernel killed %d processes of it for want of memory", kills)
}
