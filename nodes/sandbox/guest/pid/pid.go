// Package pid names a process so that a later one with the same number is not
// taken for it: by its number and its start time.
package pid

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Ref names a process.
type Ref struct {
	PID int
	// Start is in clock ticks since boot, as /proc/PID/stat has it.
	Start uint64
}

// ErrGone is returned when the process has ended; a zombie has.
var ErrGone = errors.New("process is gone")

// Of returns the name of a process that exists, zombie or not.
func Of(pid int) (Ref, error) {
	return stat(strconv.Itoa(pid))
}

// Self returns the name of this process as it is in the PID namespace that /proc
// shows.
func Self() (Ref, error) {
	return stat("self")
}

// stat reads what /proc says of a process.
func stat(pid string) (Ref, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Ref{}, ErrGone
	}
	if err != nil {
		return Ref{}, fmt.Errorf("look up process %s: %w", pid, err)
	}
	// The name in parentheses may hold anything; fields are counted after it.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return Ref{}, fmt.Errorf("look up process %s: %d fields", pid, len(fields))
	}
	number, _, _ := bytes.Cut(b, []byte(" "))
	self, err := strconv.Atoi(string(number))
	if err != nil {
		return Ref{}, fmt.Errorf("look up process %s: %w", pid, err)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return Ref{}, fmt.Errorf("look up process %s: %w", pid, err)
	}
	return Ref{PID: self, Start: start}, nil
}

// String returns the form that Parse reads: "PID START".
func (r Ref) String() string {
	return strconv.Itoa(r.PID) + " " + strconv.FormatUint(r.Start, 10)
}

// Parse reads a Ref.
func Parse(s string) (Ref, error) {
	number, start, ok := strings.Cut(strings.TrimSpace(s), " ")
	pid, err1 := strconv.ParseInt(number, 10, 32)
	ticks, err2 := strconv.ParseUint(start, 10, 64)
	if !ok || err1 != nil || err2 != nil || pid <= 0 {
		return Ref{}, fmt.Errorf("malformed process name %.40q", s)
	}
	return Ref{PID: int(pid), Start: ticks}, nil
}

// Alive tells whether this very process still runs; a zombie does not. One that can not
// be looked up counts as alive.
func (r Ref) Alive() bool {
	fd, err := r.Open()
	if err == nil {
		_ = unix.Close(fd)
	}
	return !errors.Is(err, ErrGone)
}

// Stopped tells whether this very process is stopped by a signal: it does nothing until
// another lets it go on.
func (r Ref) Stopped() bool {
	fd, err := r.Open()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	b, err := os.ReadFile("/proc/" + strconv.Itoa(r.PID) + "/stat")
	if err != nil {
		return false
	}
	state := bytes.TrimSpace(b[bytes.LastIndexByte(b, ')')+1:])
	return bytes.HasPrefix(state, []byte("T"))
}

// Open returns a pidfd of this very process, or ErrGone.
func (r Ref) Open() (fd int, err error) {
	if r.PID <= 0 {
		return -1, ErrGone
	}
	fd, err = unix.PidfdOpen(r.PID, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return -1, ErrGone
		}
		return -1, fmt.Errorf("open process %d: %w", r.PID, err)
	}
	// The descriptor pins the number: what is compared now stays true.
	there, err := Of(r.PID)
	if err == nil && (there != r || ended(fd)) {
		err = ErrGone
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ended tells whether the process of a pidfd has ended with all of its threads. The
// state in /proc is that of the first thread, which may be dead before the others, and
// before what the kernel kills together with the process.
func ended(fd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// Signal sends a signal to this very process, or returns ErrGone.
func (r Ref) Signal(signal unix.Signal) error {
	fd, err := r.Open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrGone
		}
		return fmt.Errorf("signal process %d: %w", r.PID, err)
	}
	return nil
}
