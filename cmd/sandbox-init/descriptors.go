package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeInherited closes every descriptor from first on that this process was started
// with by accident: those that were not made to be closed on exec, as the runtime's
// own are. Kept open, they would hold pipes of whoever started the daemon.
func closeInherited(first int) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		// No /proc in this sandbox: at least the command does not get them.
		_ = unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
		return
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < first {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
