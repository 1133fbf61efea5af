package main

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	instructionBytes = 8
	instructionsMax  = 4096
)

// install puts every thread of this process, and with them the command, under the
// seccomp filter that a file holds as the kernel runs it.
func install(path string) error {
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	count := len(program) / instructionBytes
	if count == 0 || count > instructionsMax || len(program)%instructionBytes != 0 {
		return unix.EINVAL
	}
	instructions := make([]unix.SockFilter, count)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&instructions[0])), len(program)), program) //nolint:gosec // of the same length
	// Without it a process that is not root may not take a filter on itself.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	list := unix.SockFprog{Len: uint16(count), Filter: &instructions[0]}
	refused, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&list))) //nolint:gosec // how the kernel is told
	runtime.KeepAlive(instructions)
	switch {
	case errno != 0:
		return errno
	case refused != 0:
		// The number of a thread that could not be put under it.
		return unix.EBUSY
	}
	return nil
}
