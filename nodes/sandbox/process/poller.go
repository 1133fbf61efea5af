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
	calls  map[int32]func()
	closed bool
}

func newPoller() (*poller, error) {
	p := &poller{done: make(chan struct{}), calls: map[int32]func(){}}
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make poller: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.wake)})
	}
	if err != nil {
		_ = unix.Close(p.epoll)
		return nil, fmt.Errorf("make poller: %w", err)
	}
	go p.run()
	return p, nil
}

// add calls once, on the poller's goroutine, when fd is ready, and owns fd from now
// on, also when it fails. call must not block for long.
func (p *poller) add(fd int, call func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = unix.Close(fd)
		return errClosed
	}
	p.calls[int32(fd)] = call
	err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		delete(p.calls, int32(fd))
		_ = unix.Close(fd)
		return fmt.Errorf("poll: %w", err)
	}
	return nil
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
			if event.Fd == int32(p.wake) {
				return
			}
			p.mu.Lock()
			call := p.calls[event.Fd]
			delete(p.calls, event.Fd)
			p.mu.Unlock()
			// Closing takes it out of the epoll set: no other process has it.
			_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, int(event.Fd), nil)
			_ = unix.Close(int(event.Fd))
			call()
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
		_ = unix.Close(int(fd))
	}
	_ = unix.Close(p.epoll)
	_ = unix.Close(p.wake)
}
