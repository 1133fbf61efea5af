package api_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// cutter carries calls over HTTP/2 and may cut its connections.
type cutter struct {
	http.Transport

	mu      sync.Mutex
	conns   []net.Conn
	sent    bytes.Buffer
	changed chan struct{}
}

func newCutter() *cutter {
	c := &cutter{changed: make(chan struct{}, 1)}
	c.Protocols = &http.Protocols{}
	c.Protocols.SetUnencryptedHTTP2(true)
	c.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
		return &cutConn{Conn: conn, cutter: c}, nil
	}
	return c
}

// cutConn notes what is sent.
type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.cutter.mu.Lock()
	c.cutter.sent.Write(p[:n])
	c.cutter.mu.Unlock()
	select {
	case c.cutter.changed <- struct{}{}:
	default:
	}
	return n, err
}

// await waits until a text was sent.
func (c *cutter) await(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for {
		c.mu.Lock()
		found := bytes.Contains(c.sent.Bytes(), []byte(text))
		c.mu.Unlock()
		if found {
			return
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			t.Fatalf("%q was never sent", text)
		}
	}
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}
