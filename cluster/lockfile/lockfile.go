// Package lockfile makes something one process's own by a lock on a file, which holds the
// process's number for who finds it taken.
//
// The kernel gives a lock back when its holder is no more, however that has ended, but not
// in the same moment: a child that the holder was just making has all of the holder's files
// until it executes its program, and on a busy machine that takes a while. So a lock whose
// holder is no more is waited for.
package lockfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freedMax is how long a lock may outlive its holder, freedEvery how often it is tried.
	freedMax   = 10 * time.Second
	freedEvery = 10 * time.Millisecond
	fileMode   = 0o600
)

// TakenError is returned when another process has the lock.
type TakenError struct {
	// Path is the file, Holder the process that has left its number there, 0 if none has.
	Path   string
	Holder int
}

// Error implements error.
func (e *TakenError) Error() string { return e.Path + " is locked" + e.By() }

// By names the holder, as ", process 7", and is empty where none is known.
func (e *TakenError) By() string {
	if e.Holder == 0 {
		return ""
	}
	return ", process " + strconv.Itoa(e.Holder)
}

// Take makes the file, if there is none, and locks it for as long as it is open. It returns
// at once, and waits up to ten seconds where the holder that the file names is no more. The
// error is, or wraps, a *TakenError where another one has it.
func Take(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := take(lock); err != nil {
		_ = lock.Close()
		return nil, err
	}
	// Over what was there, which a full disk takes; one that has no room for a new file's
	// first block leaves the number out, no more.
	pid := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if _, err := lock.WriteAt(pid, 0); err == nil {
		_ = lock.Truncate(int64(len(pid)))
	}
	return lock, nil
}

func take(lock *os.File) error {
	for deadline := time.Now().Add(freedMax); ; time.Sleep(freedEvery) { // nothing tells of another's lock
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		if pid := holder(lock.Name()); pid == 0 || !gone(pid) || time.Now().After(deadline) {
			return &TakenError{Path: lock.Name(), Holder: pid}
		}
	}
}

// holder is the process that has left its number in a lock, 0 if none has.
func holder(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// gone tells whether a process has ended; one that can not be looked up has not.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	// The state comes after the name in brackets, which may hold anything: a zombie has ended.
	state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(state) > 0 && (state[0] == 'Z' || state[0] == 'X')
}
