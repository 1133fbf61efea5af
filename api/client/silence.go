package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// ErrSilent is in an Error of codes.Unreachable where something took the connection and
// then said nothing: a process that is frozen, or a machine that is overloaded.
var ErrSilent = errors.New("connections are taken there, and nothing answers")

// answerBytesMax is how much is read of the answer to the question whether a node is
// there, in bytes.
const answerBytesMax = 4096

// hearing is when a node was last heard, on whatever connection.
type hearing struct {
	mu sync.Mutex
	at time.Time
}

func (h *hearing) note() {
	now := time.Now()
	h.mu.Lock()
	h.at = now
	h.mu.Unlock()
}

func (h *hearing) since() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.at)
}

// attention is given to a stream on which there may be nothing to say for hours: when the
// node has not been heard for a while it is asked over another connection whether it is
// there, and if it does not say so the stream ends. A kernel answers for a process that
// is frozen, so the connection itself shows nothing.
type attention struct {
	ctx    context.Context // the stream's
	cancel context.CancelCauseFunc
	asking sync.WaitGroup
}

// attend begins; the caller ends it.
func (c *Client) attend(ctx context.Context) *attention {
	a := &attention{}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	if c.direct {
		return a
	}
	c.hearing.note()
	a.asking.Go(func() {
		timer := time.NewTimer(c.silent)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-a.ctx.Done():
				return
			}
			left := c.silent - c.hearing.since()
			if left <= 0 {
				if !c.there(a.ctx) {
					a.cancel(ErrSilent)
					return
				}
				left = c.silent
			}
			timer.Reset(left)
		}
	})
	return a
}

// end ends the stream and waits until nobody asks any more.
func (a *attention) end() {
	a.cancel(nil)
	a.asking.Wait()
}

// why is err, or that the node was silent if that has ended the stream.
func (a *attention) why(err error) error {
	if err != nil && errors.Is(context.Cause(a.ctx), ErrSilent) {
		return ErrSilent
	}
	return err
}

// there asks whether the node is there. Whatever it answers, it is; but a proxy that has
// no answer of it says so by itself.
func (c *Client) there(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.silent)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := c.http.Do(request)
	if err != nil {
		return false
	}
	_, _ = io.CopyN(io.Discard, response.Body, answerBytesMax) // so that the connection can be used again
	_ = response.Body.Close()
	if response.StatusCode == http.StatusBadGateway || response.StatusCode == http.StatusGatewayTimeout {
		return false
	}
	c.reached.Store(true)
	c.hearing.note()
	return true
}

// silent tells whether a call ended because something took its connection and said
// nothing.
func silent(err error) bool {
	return !dialing(err) && (errors.Is(err, ErrSilent) || errors.Is(err, context.DeadlineExceeded) ||
		// The transport has no error of its own for a ping without an answer.
		strings.HasSuffix(err.Error(), "http2: client connection lost"))
}

// dialing tells whether a connection could not be made: nothing was sent over it.
func dialing(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// maybeDone tells whether the node may have done what it was asked although no answer of
// it came.
func maybeDone(err error) bool {
	return !connect.IsWireError(err) && !dialing(err) && !unsendable(err) && !errors.Is(err, ErrGone)
}
