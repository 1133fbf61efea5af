package api

import (
	"bytes"
	"io"
	"sync"
)

const (
	// inputWindow is how much input a call holds that the command has not taken. Who sends
	// no more than that beyond what he was told is taken is received from at all times:
	// sizes and signals arrive, whether or not the command reads.
	inputWindow = 256 << 10
	// backlogKept is how much room a backlog keeps that has become empty.
	backlogKept = 64 << 10
)

// backlog holds input between the goroutine that receives it, which waits only when
// inputWindow is full, and the one that gives it to the command.
type backlog struct {
	mu      sync.Mutex
	changed sync.Cond
	held    bytes.Buffer
	// ended: nothing more comes, and what is held is read. closed: neither.
	ended, closed bool
}

func newBacklog() *backlog {
	b := &backlog{}
	b.changed.L = &b.mu
	return b
}

// Write implements io.Writer. It keeps nothing of p.
func (b *backlog) Write(p []byte) (written int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(p) > 0 {
		for b.held.Len() >= inputWindow && !b.ended && !b.closed {
			b.changed.Wait()
		}
		if b.ended || b.closed {
			return written, io.ErrClosedPipe
		}
		n := min(len(p), inputWindow-b.held.Len())
		b.held.Write(p[:n])
		p, written = p[n:], written+n
		b.changed.Broadcast()
	}
	return written, nil
}

// end lets Read return io.EOF after what is held.
func (b *backlog) end() { b.change(&b.ended) }

// close makes Read and Write return.
func (b *backlog) close() { b.change(&b.closed) }

func (b *backlog) change(what *bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*what = true
	b.changed.Broadcast()
}

// Read implements io.Reader. It blocks while nothing is held.
func (b *backlog) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.held.Len() == 0 && !b.ended && !b.closed {
		b.changed.Wait()
	}
	switch {
	case b.closed:
		return 0, io.ErrClosedPipe
	case b.held.Len() == 0:
		return 0, io.EOF
	}
	n, _ := b.held.Read(p)
	if b.held.Len() == 0 && b.held.Cap() > backlogKept {
		b.held = bytes.Buffer{}
	}
	b.changed.Broadcast()
	return n, nil
}
