package api

import (
	"container/list"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// lateRequestTime is how long a caller may still send once the node stops: what was
// under way on the network arrives, and who is silent holds nothing up.
const lateRequestTime = 250 * time.Millisecond

// How many connections there may be, where the process may open as many files.
const (
	// connectionsMax leaves every stream one of its own.
	connectionsMax = streamsMax
	// strangersMax bounds those over which no call with the token has come. Every user of
	// the machine can make them.
	strangersMax = 1024
	// strangerAnswersMax bounds the answers under way to requests without the token. Who
	// takes none of them, as with a window of 0 in HTTP/2, would hold one for each stream
	// of each connection.
	strangerAnswersMax = 1024
)

// connections are those of one listener. When the node stops, each that has not sent a
// whole request by then and soon after is ended; http.Server alone would give it
// seconds, up to the end of the stop timeout.
//
// They are bounded, so that whoever opens many takes neither the files from the node that
// it needs to run commands, nor, at the end of them, the store: of too many strangers the
// one that has been there longest is closed, and of too many in all the newest.
type connections struct {
	net.Listener
	max, strangersMax int
	log               *zap.Logger

	mu   sync.Mutex
	open map[*connection]struct{}
	// strangers are those over which no call with the token has come, the oldest first.
	strangers *list.List
	// crowded is set from when there were too many until there are half as many.
	crowded bool
	// until is zero before the stop.
	until time.Time

	// answers are those under way to requests without the token.
	answers atomic.Int32
}

func newConnections(listener net.Listener, log *zap.Logger) *connections {
	c := &connections{Listener: listener, log: log, open: map[*connection]struct{}{}, strangers: list.New()}
	c.max, c.strangersMax = connectionBounds(filesMax())
	return c
}

// connectionBounds are how many connections there may be, and how many strangers among
// them, where the process may have so many files open: half of them are for the rest.
func connectionBounds(files uint64) (all, strangers int) {
	all = int(min(connectionsMax, max(files/2, 2)))
	return all, min(strangersMax, all/2)
}

func filesMax() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 2 * connectionsMax // it never fails
	}
	return limit.Cur
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	for {
		accepted, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if conn := c.admit(accepted); conn != nil {
			return conn, nil
		}
	}
}

// admit makes a connection one of them, or closes it and returns nil.
func (c *connections) admit(accepted net.Conn) *connection {
	conn := &connection{Conn: accepted, all: c}
	var oldest *connection
	c.mu.Lock()
	full := len(c.open) >= c.max
	if !full {
		if c.strangers.Len() >= c.strangersMax {
			oldest = c.strangers.Remove(c.strangers.Front()).(*connection)
			oldest.stranger = nil
		}
		c.open[conn] = struct{}{}
		conn.stranger = c.strangers.PushBack(conn)
	}
	until := c.until
	first := (full || oldest != nil) && !c.crowded
	c.crowded = c.crowded || first
	open := len(c.open)
	c.mu.Unlock()
	if first {
		c.log.Warn("too many connections: those that have shown no token are closed, the oldest first", zap.Int("connections", open))
	}
	if oldest != nil {
		_ = oldest.Close()
	}
	if full {
		_ = accepted.Close()
		return nil
	}
	if !until.IsZero() {
		conn.cut(until)
	}
	return conn
}

// know takes note that a call with the token has come over a connection, or that it is
// closed.
func (c *connections) know(conn *connection, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.stranger != nil {
		c.strangers.Remove(conn.stranger)
		conn.stranger = nil
	}
	if closed {
		delete(c.open, conn)
	}
	if c.strangers.Len() <= c.strangersMax/2 && len(c.open) <= c.max/2 {
		c.crowded = false
	}
}

// known takes note that a call with the token has come over a request's connection.
func known(r *http.Request) {
	if conn, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		conn.known.Store(true)
		conn.all.know(conn, false)
	}
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
	// stranger is its place among the strangers, nil if it is none; all.mu guards it.
	stranger *list.Element
	// known is set once a call with the token has come over it.
	known atomic.Bool
	// answers are those of connections.answers that go to it.
	answers atomic.Int32

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

// Read implements net.Conn. Requests of a stranger are begun before more of them are
// received: the server alone would receive all that he may send first.
func (c *connection) Read(p []byte) (int, error) {
	if !c.known.Load() {
		runtime.Gosched()
	}
	return c.Conn.Read(p)
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
	c.all.know(c, true)
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

// answerStranger answers a request without the token, unless there are too many that are
// not taken: then each connection may have one, and the one that has more is closed.
func (c *connection) answerStranger(w http.ResponseWriter, r *http.Request, next http.Handler) {
	all, own := c.all.answers.Add(1), c.answers.Add(1)
	defer func() { c.answers.Add(-1); c.all.answers.Add(-1) }()
	if all > strangerAnswersMax && own > 1 {
		_ = c.Close()
		panic(http.ErrAbortHandler)
	}
	next.ServeHTTP(w, r)
	if r.ProtoMajor >= 2 {
		// Else it would leave, or stay, after it was counted.
		_ = http.NewResponseController(w).Flush() // the peer has gone if this fails
	}
}

// receiving tells connections which of them have sent a whole request, and bounds what is
// answered to those who have not shown the token.
func (s *Server) receiving(next http.Handler) http.Handler {
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
		if !conn.known.Load() && !s.showsToken(r) {
			conn.answerStranger(w, r, next)
			return
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
