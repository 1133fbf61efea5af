package logger

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/logs"
)

// pipeBytes is what pipes are widened to, so that a busy command and its log switch
// less often.
const pipeBytes = 1 << 20

// Pump carries bytes from a command's two pipes into its log. It belongs to one
// goroutine.
type Pump struct {
	w *logs.Writer
	// fds are the pipes' read ends, -1 after their end.
	fds [2]int
	// begun tells whether what was read before it was asked may be the command's; nil
	// once it may.
	begun func() bool
}

// NewPump makes a pump of two read ends, which it owns from now on.
func NewPump(w *logs.Writer, stdout, stderr int) *Pump {
	for _, fd := range []int{stdout, stderr} {
		// Without the right to, the pipe stays as it is.
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes)
	}
	return &Pump{w: w, fds: [2]int{stdout, stderr}}
}

// Open tells whether a pipe may still bring output.
func (p *Pump) Open() bool { return p.fds[0] >= 0 || p.fds[1] >= 0 }

// Turn waits until there is output or one of the other descriptors is readable,
// takes what there is, and returns which of the others are readable. What was taken
// is in the log as soon as the pipes are idle. A negative timeout waits for ever.
func (p *Pump) Turn(timeout time.Duration, others ...int) (ready []bool, took bool) {
	fds := make([]unix.PollFd, 2, 2+len(others))
	for i, fd := range append(p.fds[:2:2], others...) {
		if i >= 2 {
			fds = append(fds, unix.PollFd{})
		}
		fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} //nolint:gosec // a descriptor
	}
	ready = make([]bool, len(others))
	n := poll(fds, 0)
	if n == 0 {
		p.w.Flush()
		n = poll(fds, timeout)
	}
	if n <= 0 {
		return ready, false
	}
	for i := range p.fds {
		if fds[i].Revents != 0 {
			p.take(i)
			took = true
		}
	}
	for i := range others {
		ready[i] = fds[2+i].Revents != 0
	}
	return ready, took
}

func poll(fds []unix.PollFd, timeout time.Duration) int {
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.Poll(fds, ms)
	if err != nil {
		return -1
	}
	return n
}

// streams are those of the pipes, in their order.
var streams = [2]logs.Stream{logs.Stdout, logs.Stderr}

func (p *Pump) take(i int) {
	n, err := p.w.Fill(streams[i], func(b []byte) (int, error) {
		n, err := unix.Read(p.fds[i], b)
		switch {
		case n <= 0 || p.begun == nil:
		case p.begun():
			p.begun = nil
		default:
			return 0, unix.EAGAIN
		}
		return n, err
	})
	if n > 0 || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return
	}
	_ = unix.Close(p.fds[i])
	p.fds[i] = -1
}

// Drain reads the pipes until both are at their end or empty, for no longer than
// limit, and returns whether they are.
func (p *Pump) Drain(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for p.Open() {
		if _, took := p.Turn(0); !took {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// turnUntil takes what there is until another descriptor is readable, for no longer than
// limit, and returns whether it is.
func (p *Pump) turnUntil(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		if ready, _ := p.Turn(left, fd); ready[0] {
			return true
		}
	}
}

// DrainToEnd reads the pipes until both are at their end, for no longer than limit,
// and returns whether they are.
func (p *Pump) DrainToEnd(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for p.Open() {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		p.Turn(left)
	}
	return true
}

// Close gives up the pipes.
func (p *Pump) Close() {
	for i, fd := range p.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
			p.fds[i] = -1
		}
	}
}
