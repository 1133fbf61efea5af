package store

import (
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// proxy stands between a store and its server and loses what it is told to.
type proxy struct {
	listener net.Listener
	socket   string
	running  sync.WaitGroup

	mu   sync.Mutex
	cond *sync.Cond
	// refuse closes new connections at once, dropAnswers swallows what the server
	// says. Connections up to silentUpTo forward nothing, but stay open.
	refuse      bool
	dropAnswers bool
	silentUpTo  int
	accepted    int
	conns       map[net.Conn]bool
	closed      bool
	// dropped counts the bytes of swallowed answers.
	dropped int
}

// startProxy forwards a loopback port to the socket of the embedded store in dir.
func startProxy(t *testing.T, dir string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, socket: filepath.Join(dir, SocketName), conns: map[net.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	p.running.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.cond.Broadcast()
		p.mu.Unlock()
		_ = listener.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.accepted++
		number := p.accepted
		p.mu.Unlock()
		server, err := net.Dial("unix", p.socket)
		if err != nil || refuse {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.running.Go(func() { p.forward(number, server, client, false) })
		p.running.Go(func() { p.forward(number, client, server, true) })
	}
}

func (p *proxy) forward(number int, to, from net.Conn, answers bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		for number <= p.silentUpTo && !p.closed {
			p.cond.Wait()
		}
		drop := answers && p.dropAnswers
		if drop {
			p.dropped += n
		}
		p.mu.Unlock()
		if drop {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// set changes what is lost.
func (p *proxy) set(change func(p *proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
	p.cond.Broadcast()
}

// cut breaks every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}
