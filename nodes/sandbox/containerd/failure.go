package containerd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/cluster/records"
)

// notADirectory is what runc says of an image whose /proc or /sys is something else. No
// other try can help.
const notADirectory = "must be mounted on ordinary directory"

// causes are the words of the runtime that may be shown. What runc and containerd
// say may quote the environment, so nothing of it passes but these, which are the
// texts of the kernel and of the runtimes themselves.
var causes = []string{
	"no space left on device",
	"disk quota exceeded",
	"read-only file system",
	"cannot allocate memory",
	"out of memory",
	"too many open files",
	"resource temporarily unavailable",
	"resource busy",
	"input/output error",
	"structure needs cleaning",
	"operation not permitted",
	"permission denied",
	"not a directory",
	"no such file or directory",
	"file exists",
	"file name too long",
	"too many levels of symbolic links",
	notADirectory,
	"container init exited prematurely",
	"unable to apply cgroup configuration",
	"unable to start init",
	"error mounting",
	"error setting rlimit",
	"seccomp",
	"overlayfs",
	"parent snapshot",
	"connection refused",
	"ttrpc: closed",
	"signal: killed",
	"context deadline exceeded",
	"executable file not found",
}

// cause returns what may be shown of a runtime's error.
func cause(err error) string {
	text := strings.ToLower(err.Error())
	var found []string
	for _, phrase := range causes {
		if strings.Contains(text, phrase) {
			found = append(found, phrase)
		}
	}
	if len(found) == 0 && classOf(err) == records.ClassUnavailable {
		return "containerd does not answer"
	}
	if len(found) == 0 {
		return "the runtime gave no cause that may be shown"
	}
	return strings.Join(found, ", ")
}

// unanswered is why nobody answers at a socket, without what gRPC puts around it.
func unanswered(address string, err error) string {
	var path *fs.PathError
	if _, missing := os.Stat(address); errors.As(missing, &path) {
		return path.Err.Error()
	}
	text := status.Convert(err).Message()
	if _, why, ok := strings.Cut(text, address+": "); ok {
		text = strings.TrimPrefix(strings.TrimSuffix(why, `"`), "connect: ")
	}
	return text
}

// native turns what a service of containerd answered into its own error classes.
func native(err error) error {
	if err == nil {
		return nil
	}
	return errgrpc.ToNative(err)
}

// classOf gives an error of containerd one of our classes.
func classOf(err error) records.Class {
	err = native(err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errdefs.IsCanceled(err), errdefs.IsDeadlineExceeded(err):
		return records.ClassDeadline
	case errdefs.IsUnavailable(err):
		return records.ClassUnavailable
	case errdefs.IsNotFound(err):
		return records.ClassNotFound
	case errdefs.IsAlreadyExists(err), errdefs.IsConflict(err):
		return records.ClassConflict
	case errdefs.IsInvalidArgument(err):
		return records.ClassInvalid
	}
	return records.ClassInternal
}

// filtered makes an error of an operation that holds nothing of the runtime's own
// text but its cause. It wraps nothing: whoever unwraps it must not find the text.
func filtered(err error, what, id string) error {
	return records.Errorf(classOf(err), "%s %s: %s", what, id, cause(err))
}
