package process

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// controlFD is the supervisor's end of the pipe that it takes signals for the command
// from. The pipe has no name: whoever may look into the supervisor opens it there,
// also after a restart.
const controlFD = 6

// send sends a signal by way of the supervisor. delivered is false when there is none.
func (x *box) send(signal unix.Signal) (delivered bool, err error) {
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	// The descriptor keeps the number from being another's while it is used.
	process, err := supervisor.Open()
	if errors.Is(err, pid.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(process)
	path := "/proc/" + strconv.Itoa(supervisor.PID) + "/fd/" + strconv.Itoa(controlFD)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENXIO) {
		return false, nil
	}
	if errors.Is(err, unix.EACCES) && endsSoon(process) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open control pipe: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte{byte(signal)}) //nolint:gosec // 1 to 64
	switch {
	case errors.Is(err, unix.EPIPE):
		return false, nil
	case errors.Is(err, unix.EAGAIN):
		// Full: the supervisor does not read, and whoever kills it kills everything.
		return true, nil
	case err != nil:
		return false, fmt.Errorf("write to control pipe: %w", err)
	}
	return true, nil
}

// endsLimit is how long a process may take to end once it has no memory any more.
const endsLimit = time.Second

// endsSoon tells whether the process of a pidfd ends. One that does has lost its memory
// first, and with it, where the driver is not root, the right to look at its files.
func endsSoon(pidfd int) bool {
	for deadline := time.Now().Add(endsLimit); time.Now().Before(deadline); {
		left := int(time.Until(deadline).Milliseconds())
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, left) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
	return false
}
