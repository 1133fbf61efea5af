package page

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookAgain is how soon a lookout looks again that has found the fence passed: what
	// is killed may not be gone yet, and more may come.
	lookAgain = 200 * time.Millisecond
	// lookMax is how long a lookout sleeps that does not know the session's window.
	lookMax = 10 * time.Second
)

// Lookout is the fence as somebody sees it who has other things to do, and kills when
// nobody else does. It sleeps until the deadline that it has read, or for one window of
// the session if that is shorter: within that time a deadline is not moved to before its
// wake. So it wakes about once per window, and not at all when there is no fence. It
// belongs to one goroutine.
type Lookout struct {
	file  *File
	timer int
}

// Watch looks out for the fence at a path, which must be there. The first look is due as
// if there had been one now.
func Watch(path string) (*Lookout, error) {
	file, err := open(path, 0)
	if err != nil {
		return nil, fmt.Errorf("watch fence %s: %w", path, err)
	}
	l := &Lookout{file: file}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("watch fence: %w", os.NewSyscallError("timerfd_create", err)), file.Close())
	}
	if err := l.wakeAt(l.due(Boottime())); err != nil {
		l.Close()
		return nil, fmt.Errorf("watch fence: %w", err)
	}
	return l, nil
}

// FD is a descriptor that becomes readable when it is time to look; -1 for no lookout.
func (l *Lookout) FD() int {
	if l == nil {
		return -1
	}
	return l.timer
}

// Look tells whether everything of the session is to be killed now, and goes to sleep
// until the next look is due. Who finds the deadline over sets the latch, as a guard
// does.
func (l *Lookout) Look() (kill bool) {
	now := Boottime()
	kill, _ = l.file.Passed(now)
	next := now + lookAgain
	if !kill {
		next = l.due(now)
	}
	// A timer that can not be set keeps the descriptor readable: then it looks at once.
	_ = l.wakeAt(next)
	return kill
}

// due is when to look next for who has found nothing to do.
func (l *Lookout) due(now time.Duration) time.Duration {
	state, ok := l.file.Load()
	switch {
	case !ok:
		return now + lookMax
	case state.FencedAt > 0:
		return now
	case state.Window > 0:
		return min(now+state.Window, state.Deadline)
	default:
		return min(now+lookMax, state.Deadline)
	}
}

// wakeAt sets the timer to a moment of the boottime clock. What it has counted before is
// gone with that.
func (l *Lookout) wakeAt(at time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(at, 1).Nanoseconds())}
	if err := unix.TimerfdSettime(l.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	return nil
}

// Close ends the lookout.
func (l *Lookout) Close() {
	if l != nil {
		_ = unix.Close(l.timer)
		_ = l.file.Close()
	}
}
