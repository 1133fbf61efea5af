package process

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// poller waits for many descriptors in one goroutine and closes them when they have
// become readable or hung up.
type poller struct {
	epoll, wake int
	done        chan struct{}

	mu     sync.Mutex
	calls  map[int]func(said bool)
	closed bool
}

func newPoller() (*poller, error) {
	p := &poller{done: make(chan struct{}), calls: map[int]func(bool){}}
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make poller: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = p.watch(p.wake)
	}
	if err != nil {
		_ = unix.Close(p.epoll)
		return nil, fmt.Errorf("make poller: %w", err)
	}
	go p.run()
	return p, nil
}

// add calls once, on the poller's goroutine, when fd is ready, and owns fd from now
// on, also when it fails. said tells that there is something to read, and not an end
// only. call must not block for long.
func (p *poller) add(fd int, call func(said bool)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = unix.Close(fd)
		return errClosed
	}
	p.calls[fd] = call
	if err := p.watch(fd); err != nil {
		delete(p.calls, fd)
		_ = unix.Close(fd)
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

func (p *poller) watch(fd int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}) //nolint:gosec // a descriptor
}

func (p *poller) run() {
	defer close(p.done)
	var events [128]unix.EpollEvent
	for {
		n, err := unix.EpollWait(p.epoll, events[:], -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, event := range events[:max(n, 0)] {
			fd := int(event.Fd)
			if fd == p.wake {
				return
			}
			p.mu.Lock()
			call := p.calls[fd]
			delete(p.calls, fd)
			p.mu.Unlock()
			// Closing takes it out of the epoll set: no other process has it.
			_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
			_ = unix.Close(fd)
			call(event.Events&unix.EPOLLIN != 0)
		}
	}
}

// close ends the goroutine and closes every descriptor; no call is made after it.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-p.done
	for fd := range p.calls {
		_ = unix.Close(fd)
	}
	_ = unix.Close(p.epoll)
	_ = unix.Close(p.wake)
}
