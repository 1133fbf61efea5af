// Package filter reads a process's seccomp filter back from the kernel, as the program
// that the kernel runs, so that what a runtime has compiled once can be installed again
// without it.
package filter

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// InstructionBytes is the size of one instruction (struct sock_filter).
	InstructionBytes = 8
	// InstructionsMax is the kernel's bound on a filter (BPF_MAXINSNS).
	InstructionsMax = 4096

	// getFilter is PTRACE_SECCOMP_GET_FILTER.
	getFilter = 0x420c
	// stopMax bounds the wait for a process to stop.
	stopMax   = time.Second
	stopPause = 200 * time.Microsecond
)

// ErrUnknown is returned when the kernel does not tell, or when what it tells is not
// one whole filter: a kernel without CONFIG_CHECKPOINT_RESTORE, a caller that is under a
// filter itself or lacks CAP_SYS_ADMIN, a process with no filter or with several.
var ErrUnknown = errors.New("the kernel does not tell the filter")

// Read returns the filter of a process that has exactly one. The process is stopped for
// the time of two system calls, and goes on whatever becomes of the caller.
func Read(pid int) ([]byte, error) {
	// The kernel knows a tracer by its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ptrace(unix.PTRACE_SEIZE, pid, 0, nil); err != nil {
		return nil, fmt.Errorf("%w: seize process %d: %w", ErrUnknown, pid, err)
	}
	if err := stop(pid); err != nil {
		// A thread that ends lets go of all that it traces, stopped or not: so this one
		// must end, and is not unlocked as often as it was locked.
		runtime.LockOSThread()
		return nil, err
	}
	program, err := read(pid)
	if detachErr := unix.PtraceDetach(pid); detachErr != nil && !errors.Is(detachErr, unix.ESRCH) {
		runtime.LockOSThread()
		return nil, fmt.Errorf("let go of process %d: %w", pid, detachErr)
	}
	return program, err
}

// stop stops a process that was seized.
func stop(pid int) error {
	if err := ptrace(unix.PTRACE_INTERRUPT, pid, 0, nil); err != nil {
		return fmt.Errorf("%w: interrupt process %d: %w", ErrUnknown, pid, err)
	}
	for deadline := time.Now().Add(stopMax); time.Now().Before(deadline); time.Sleep(stopPause) {
		var state unix.WaitStatus
		got, err := unix.Wait4(pid, &state, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR), err == nil && got == 0:
		case err != nil:
			return fmt.Errorf("%w: wait for process %d: %w", ErrUnknown, pid, err)
		case state.Stopped():
			return nil
		default:
			return fmt.Errorf("%w: process %d has ended", ErrUnknown, pid)
		}
	}
	return fmt.Errorf("%w: process %d does not stop", ErrUnknown, pid)
}

// read reads the filter of a stopped process.
func read(pid int) ([]byte, error) {
	count, err := instructions(pid, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: of process %d: %w", ErrUnknown, pid, err)
	}
	if count <= 0 || count > InstructionsMax {
		return nil, fmt.Errorf("%w: of process %d: %d instructions", ErrUnknown, pid, count)
	}
	if _, err := instructions(pid, 1, nil); !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: process %d has several", ErrUnknown, pid)
	}
	program := make([]byte, count*InstructionBytes)
	if again, err := instructions(pid, 0, program); err != nil || again != count {
		return nil, fmt.Errorf("%w: of process %d: %w", ErrUnknown, pid, err)
	}
	return program, nil
}

// instructions asks for a filter of a stopped process by its number, or for its length
// only.
func instructions(pid, number int, into []byte) (int, error) {
	count, _, errno := unix.Syscall6(unix.SYS_PTRACE, getFilter, uintptr(pid), uintptr(number), uintptr(unsafe.Pointer(unsafe.SliceData(into))), 0, 0) //nolint:gosec // as long as the kernel was told
	if errno != 0 {
		return 0, errno
	}
	return int(count), nil
}

func ptrace(request, pid int, address uintptr, data unsafe.Pointer) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), address, uintptr(data), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
