package page

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
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
// nobody else does: on a thread of its own, which waits for nothing else, so that a disk
// that hangs holds no kill up. It sleeps until the deadline that it has read, or for one
// window of the session if that is shorter: within that time a deadline is not moved to
// before its wake. So it wakes about once per window.
type Lookout struct {
	file  *File
	timer int
	kill  func()
	// stopped: it is to end, which it has when ended is closed.
	stopped atomic.Bool
	ended   chan struct{}
}

// Watch looks out for the fence at a path, which must be there, until Close. kill is to
// kill everything of the session that is the caller's; it is called when the fence has
// passed, and again and again from then on, since more may come. Who finds the deadline
// over sets the latch, as a guard does.
func Watch(path string, kill func()) (*Lookout, error) {
	file, err := open(path, 0)
	if err != nil {
		return nil, fmt.Errorf("watch fence %s: %w", path, err)
	}
	l := &Lookout{file: file, kill: kill, ended: make(chan struct{})}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("watch fence: %w", os.NewSyscallError("timerfd_create", err)), file.Close())
	}
	// The first look is due as if there had been one now.
	if err := l.wakeAt(l.due(Boottime())); err != nil {
		return nil, errors.Join(fmt.Errorf("watch fence: %w", err), unix.Close(l.timer), file.Close())
	}
	go l.run()
	return l, nil
}

func (l *Lookout) run() {
	defer close(l.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !l.stopped.Load() {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(l.timer), Events: unix.POLLIN}}, -1) //nolint:gosec // a descriptor
		if err == nil && !l.stopped.Load() {
			l.look()
		}
	}
}

// look kills if it is time to, and goes to sleep until the next look is due.
func (l *Lookout) look() {
	now := Boottime()
	next := l.due(now)
	if passed, _ := l.file.Passed(now); passed {
		l.kill()
		next = Boottime() + lookAgain
	}
	// A timer that can not be set stays due: then it looks at once.
	_ = l.wakeAt(next)
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

// Close ends the lookout, after a kill that is under way. Without one it does nothing.
func (l *Lookout) Close() {
	if l == nil {
		return
	}
	// In this order, as run sets the timer first and looks then whether it is to end.
	l.stopped.Store(true)
	if l.wakeAt(1) == nil {
		<-l.ended
		_ = unix.Close(l.timer)
		_ = l.file.Close()
	}
}
