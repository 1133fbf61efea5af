package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// lateRequestTime is how long a caller may still send once the node stops: what was
// under way on the network arrives, and who is silent holds nothing up.
const lateRequestTime = 250 * time.Millisecond

// connections are those of one listener. When the node stops, each that has not sent a
// whole request by then and soon after is ended; http.Server alone would give it
// seconds, up to the end of the stop timeout.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[*connection]struct{}
	// until is zero before the stop.
	until time.Time
}

func newConnections(listener net.Listener) *connections {
	return &connections{Listener: listener, open: map[*connection]struct{}{}}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: accepted, all: c}
	c.mu.Lock()
	c.open[conn] = struct{}{}
	until := c.until
	c.mu.Unlock()
	if !until.IsZero() {
		conn.cut(until)
	}
	return conn, nil
}

// cut ends, at a time, what has not sent its request by then.
func (c *connections) cut(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = until
	for conn := range c.open {
		conn.cut(until)
	}
}

// connection is one caller's. While it is received from, no read lasts beyond until;
// while it is answered, reads are as the server wants them: one that fails would end
// the call.
type connection struct {
	net.Conn
	all *connections

	mu sync.Mutex
	// answering is set from the end of a request until the next is begun, and for good
	// on HTTP/2, where each stream is cut by itself.
	answering bool
	// wanted is the deadline that the server has set.
	wanted time.Time
	until  time.Time
}

// connectionKey finds a request's connection in its context.
type connectionKey struct{}

func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// SetReadDeadline implements net.Conn.
func (c *connection) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = t
	return c.apply()
}

// SetDeadline implements net.Conn.
func (c *connection) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

func (c *connection) cut(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = until
	_ = c.apply() // fails only on one that is closed
}

// answer tells whether a whole request has been received.
func (c *connection) answer(whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answering != whole {
		c.answering = whole
		if !c.until.IsZero() {
			_ = c.apply()
		}
	}
}

func (c *connection) apply() error {
	deadline := c.wanted
	if !c.answering && !c.until.IsZero() && (deadline.IsZero() || c.until.Before(deadline)) {
		deadline = c.until
	}
	return c.Conn.SetReadDeadline(deadline)
}

// receiving tells connections which of them have sent a whole request.
func receiving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connectionKey{}).(*connection)
		if !ok {
			next.ServeHTTP(w, r) // served in another way than by Serve
			return
		}
		whole := r.ProtoMajor >= 2 || r.Body == nil || r.Body == http.NoBody
		conn.answer(whole)
		if !whole {
			r.Body = &receivedBody{ReadCloser: r.Body, conn: conn}
			// Whoever answers without reading the body holds the connection no longer.
			_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only on one that is closed
		}
		next.ServeHTTP(w, r)
	})
}

// receivedBody notes the end of a request.
type receivedBody struct {
	io.ReadCloser
	conn *connection
}

// Read implements io.Reader.
func (b *receivedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.conn.answer(true)
	}
	return n, err
}
