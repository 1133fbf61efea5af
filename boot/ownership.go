package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownership adds to an error of what lies in the data directory what to do about it,
// where that is a matter of who owns it or how it is mounted.
func ownership(dataDir string, err error) error {
	switch {
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %s is mounted read-only: see why (a disk that fails is), mount it for writing, or name another directory with --data", err, dataDir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: this daemon runs as the user %d: start it as the one that all in %s belongs to, or give that to the user: chown -R %d %s",
			err, os.Geteuid(), dataDir, os.Geteuid(), dataDir)
	default:
		return err
	}
}

// writable returns why nothing can be made in a directory, nil if it can.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}
