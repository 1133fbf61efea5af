package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// makeControl makes the control FIFO and opens it as the supervisor has it: for both
// directions, so that it has no end while one lives, and what is sent before the
// supervisor reads is kept for it.
func (x *box) makeControl() (fd int, err error) {
	path := x.path(fileControl)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return -1, fmt.Errorf("make control FIFO: %w", err)
	}
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open control FIFO: %w", err)
	}
	return fd, nil
}

// send sends a signal by way of the supervisor. delivered is false when there is none.
func (x *box) send(signal unix.Signal) (delivered bool, err error) {
	fd, err := unix.Open(x.path(fileControl), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open control FIFO: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte{byte(signal)})
	switch {
	case errors.Is(err, unix.EPIPE):
		return false, nil
	case errors.Is(err, unix.EAGAIN):
		// Full: the supervisor does not read, and whoever kills it kills everything.
		return true, nil
	case err != nil:
		return false, fmt.Errorf("write to control FIFO: %w", err)
	}
	return true, nil
}
