package client

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// inputPieceMax is how much of the input one message holds.
	inputPieceMax = 32 << 10
	// piecesAhead is how many pieces of the input are read before they can be sent.
	piecesAhead = 16
)

// piece is some input, or why there is no more.
type piece struct {
	data []byte
	err  error
}

// read brings what there is to read until the context ends.
func (f *feed) read(ctx context.Context, from io.Reader, to chan<- piece) {
	for {
		buffer := make([]byte, inputPieceMax)
		n, err := from.Read(buffer)
		f.brought.Add(int64(n))
		if err != nil && !errors.Is(err, io.EOF) {
			f.left = err
			close(f.leaving)
		}
		for _, p := range []piece{{data: buffer[:n]}, {err: err}} {
			if len(p.data) == 0 && p.err == nil {
				continue
			}
			select {
			case to <- p:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// feed is what a command is given: input, and what does not wait for it to read. Input is
// held back here rather than on the way, where it would hold up the rest.
type feed struct {
	pieces  <-chan piece
	resizes <-chan *errandv1.TerminalSize
	signals <-chan int32
	// sent counts the bytes that were given on, window bounds those of them that are not
	// taken; 0 is no bound.
	sent, window int64
	taken        chan int64
	// known is the last that came through taken.
	known int64
	// brought counts the bytes that were read, settled those that were given on over
	// earlier connections.
	brought atomic.Int64
	settled int64
	// leaving is closed, with left set, when the input has ended with an error, which need
	// not have come to its turn yet.
	leaving chan struct{}
	left    error
}

// newFeed begins to read the input, which may be nil, until the context ends.
func newFeed(ctx context.Context, from io.Reader, resizes <-chan *errandv1.TerminalSize, signals <-chan int32) *feed {
	f := &feed{resizes: resizes, signals: signals, taken: make(chan int64, 1), leaving: make(chan struct{})}
	if from != nil {
		pieces := make(chan piece, piecesAhead)
		f.pieces = pieces
		go f.read(ctx, from, pieces)
	}
	return f
}

// begin counts anew, over a connection whose node has said its window.
func (f *feed) begin(window int64) {
	f.settled += f.sent
	f.sent, f.known, f.window = 0, 0, window
}

// flush waits until all that was given on is taken. It is false when the context ends
// before that.
func (f *feed) flush(ctx context.Context) bool {
	for f.known < f.sent {
		select {
		case f.known = <-f.taken:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// lost is how much of what was read is not known to be taken, but for what was given on
// over earlier connections. Nobody calls next or take meanwhile.
func (f *feed) lost() int64 {
	f.unsure()
	return f.brought.Load() - f.settled - f.known
}

// unsure is how much was given on and is not known to be taken. Nobody calls next or take
// meanwhile.
func (f *feed) unsure() int64 {
	select {
	case f.known = <-f.taken:
	default:
	}
	return f.sent - f.known
}

// take notes how much the command has taken. It is for the goroutine that receives.
func (f *feed) take(total int64) {
	select {
	case <-f.taken: // an earlier one
	default:
	}
	f.taken <- total
}

// given is one thing for the command: a piece of the input, a size or a signal.
type given struct {
	piece  piece
	resize *errandv1.TerminalSize
	signal int32
}

// next waits for something to give. ok is false when the context has ended.
func (f *feed) next(ctx context.Context) (g given, ok bool) {
	for {
		pieces := f.pieces
		if ahead := f.sent - f.known; f.window > 0 && ahead > 0 && ahead+inputPieceMax > f.window {
			pieces = nil
		}
		select {
		case f.known = <-f.taken:
		case size, open := <-f.resizes:
			if open {
				return given{resize: size}, true
			}
			f.resizes = nil
		case signal, open := <-f.signals:
			if open {
				return given{signal: signal}, true
			}
			f.signals = nil
		case p := <-pieces:
			f.sent += int64(len(p.data))
			if p.err != nil {
				f.pieces = nil
			}
			return given{piece: p}, true
		case <-ctx.Done():
			return given{}, false
		}
	}
}
