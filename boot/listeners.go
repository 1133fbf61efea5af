package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/errand-run/errand/api/client"
)

// listeners are several listeners as one, and the connections that came through them.
type listeners struct {
	all      []net.Listener
	accepted chan accepted
	done     chan struct{}
	closing  sync.Once
	closed   error
	work     sync.WaitGroup

	mu   sync.Mutex
	open map[*trackedConn]struct{}
	over bool
}

type accepted struct {
	conn net.Conn
	err  error
}

// listenOn accepts on all of the listeners until Close, which closes them.
func listenOn(all ...net.Listener) *listeners {
	l := &listeners{all: all, accepted: make(chan accepted), done: make(chan struct{}), open: map[*trackedConn]struct{}{}}
	for _, one := range all {
		l.work.Go(func() { l.serve(one) })
	}
	return l
}

func (l *listeners) serve(from net.Listener) {
	for {
		conn, err := from.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.done:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil && !temporary(err) {
			return
		}
	}
}

// temporary tells whether a listener goes on after an error, as when the process has
// no descriptor left. net/http asks in the same way.
func temporary(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Temporary() //nolint:staticcheck // there is no other way to ask
}

// Accept implements net.Listener.
func (l *listeners) Accept() (net.Conn, error) {
	select {
	case got := <-l.accepted:
		if got.err != nil {
			return nil, got.err
		}
		return l.track(got.conn), nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections stay.
func (l *listeners) Close() error {
	l.closing.Do(func() {
		close(l.done)
		for _, one := range l.all {
			if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				l.closed = errors.Join(l.closed, fmt.Errorf("close the listener on %s: %w", one.Addr(), err))
			}
		}
		l.work.Wait()
	})
	return l.closed
}

// Addr implements net.Listener.
func (l *listeners) Addr() net.Addr { return l.all[0].Addr() }

// cut closes every connection, and each that comes.
func (l *listeners) cut() {
	l.mu.Lock()
	l.over = true
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for conn := range open { // in any order: all of them are closed
		_ = conn.Conn.Close()
	}
}

// track returns a connection that cut can close.
func (l *listeners) track(conn net.Conn) net.Conn {
	tracked := &trackedConn{Conn: conn, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		_ = conn.Close()
	} else {
		l.open[tracked] = struct{}{}
	}
	return tracked
}

type trackedConn struct {
	net.Conn
	of *listeners
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// pipe is a listener without an address, for callers in this process.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), done: make(chan struct{})} }

// dial makes a connection. The error is client.ErrGone once the pipe is closed.
func (p *pipe) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	var err error
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		err = fmt.Errorf("%w: it has stopped", client.ErrGone)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, near.Close(), far.Close())
}

// Accept implements net.Listener.
func (p *pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr implements net.Listener.
func (p *pipe) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "in-process" }
