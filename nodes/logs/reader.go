package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"
)

// MaxTail is the most lines that Options.Tail reaches back.
const MaxTail = 1 << 20

const (
	pollMin = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
	// windowBytes is what a Reader reads at once; it holds the largest record.
	windowBytes = 256 << 10
)

// Options says what to read of a log.
type Options struct {
	// Offset is where to begin: 0, or the Next of a chunk that was read before.
	Offset int64
	// Tail begins so many lines before the end, if above 0; Offset is not used then.
	Tail int
	// Since leaves out what was written earlier.
	Since time.Time
	// Follow goes on until the end mark, and waits for a log that does not exist
	// yet. Without it, reading ends where the log ends now.
	Follow bool
}

// Chunk is what was read at once from one stream of the command: any number of lines,
// the last one perhaps unfinished, at most MaxRecord bytes. The chunks of a stream, put
// together, are what was written, byte for byte.
type Chunk struct {
	Stream Stream
	// At is when it was read from the command.
	At   time.Time
	Data []byte
	// Continues tells that an earlier chunk of the stream began the first line.
	Continues bool
	// Offset is where the chunk stands, Next where to go on after it.
	Offset, Next int64
	// Dropped is how many bytes are missing before this chunk. A chunk with it may
	// have no data and no stream.
	Dropped int64
}

// End is what the end mark says.
type End struct {
	// Complete is true when the log holds all that was written.
	Complete bool
	// Dropped counts the bytes of output that the log has lost.
	Dropped int64
	At      time.Time
}

// Reader reads one log. It is not safe for concurrent use.
type Reader struct {
	path string
	opts Options
	file *os.File
	// start is the offset of the open segment, offset where reading stands.
	start, offset int64
	// window holds the segment's bytes from windowAt on.
	window   []byte
	windowAt int64
	// rest is what the current record still holds.
	rest   Chunk
	missed int64
	end    End
	ended  bool
	// seen tells that the log existed at some time.
	seen bool
	// until is where the log ended when it was opened, beyond which only Follow reads: who
	// writes faster than it is read would keep a reader for ever.
	until int64
}

// OpenReader opens the log of a path. A log that does not exist is empty.
func OpenReader(path string, opts Options) (*Reader, error) {
	if opts.Offset < 0 || opts.Tail < 0 {
		return nil, errors.New("open log: negative offset or tail")
	}
	r := &Reader{path: path, opts: opts, offset: opts.Offset, until: math.MaxInt64}
	if !opts.Follow {
		var err error
		if r.until, err = endOf(path); err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
	}
	if opts.Tail > 0 {
		offset, err := tailOffset(path, min(opts.Tail, MaxTail))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open log: %w", err)
		}
		r.offset = offset
	}
	return r, nil
}

// endOf is the offset at which a log ends now.
func endOf(path string) (int64, error) {
	there, err := segments(path)
	if len(there) == 0 || err != nil {
		return 0, ignoreAbsence(err)
	}
	last := there[len(there)-1]
	info, err := os.Stat(last.path)
	if err != nil {
		return last.start, ignoreAbsence(err)
	}
	return last.start + info.Size(), nil
}

func ignoreAbsence(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Next returns the next chunk; its data is valid until the next call. At the end it
// returns io.EOF. With Follow it waits for the end mark; where none comes, because
// the log's writer is dead, only the context ends it. What can be had without waiting
// is returned even when the context is over. Any other error is one of the disk or the
// context's.
func (r *Reader) Next(ctx context.Context) (Chunk, error) {
	wait := pollMin
	for {
		chunk, ok, err := r.step()
		if err != nil {
			return Chunk{}, err
		}
		if ok && !chunk.At.Before(r.opts.Since) {
			return chunk, nil
		}
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		if ok {
			continue
		}
		if r.ended || !r.opts.Follow {
			if r.missed > 0 {
				chunk = Chunk{Offset: r.offset, Next: r.offset, Dropped: r.missed}
				r.missed = 0
				return chunk, nil
			}
			return Chunk{}, io.EOF
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return Chunk{}, ctx.Err()
		case <-timer.C:
		}
		wait = min(wait*2, pollMax)
	}
}

// End returns what the end mark says, once Next has returned io.EOF; ok is false if
// there was none.
func (r *Reader) End() (end End, ok bool) { return r.end, r.ended }

// Found tells whether there is a log: whether Next has found a file of it.
func (r *Reader) Found() bool { return r.file != nil }

// Offset returns where reading would go on: the Next of the last chunk.
func (r *Reader) Offset() int64 { return r.offset }

// Close releases the reader.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// step returns the next chunk that is there; ok is false when there is none now.
func (r *Reader) step() (chunk Chunk, ok bool, err error) {
	for len(r.rest.Data) == 0 {
		if r.file == nil {
			if found, err := r.open(); err != nil || !found {
				return Chunk{}, false, err
			}
			// It may already stand within a record.
			continue
		}
		if r.offset >= r.until {
			return Chunk{}, false, nil
		}
		h, record, err := r.record()
		if err != nil {
			return Chunk{}, false, err
		}
		if record == nil {
			more, err := r.advance()
			if err != nil || !more {
				return Chunk{}, false, err
			}
			continue
		}
		r.take(h, record)
	}
	return r.all(), true, nil
}

// take accepts a record that begins at r.offset, or before it if reading begins
// within its data.
func (r *Reader) take(h header, record []byte) {
	data := record[headerSize:]
	r.ended = h.kind == kindEnd
	switch h.kind {
	case kindEnd:
		r.end = End{Complete: data[8] == 1, Dropped: int64At(data), At: h.at}
		r.offset += int64(len(record))
	case kindGap:
		r.missed += int64At(data)
		r.offset += int64(len(record))
	default:
		r.rest = Chunk{
			Stream: Stream(h.kind), At: h.at, Data: data, Continues: h.flags&flagContinues != 0,
			Offset: r.offset, Next: r.offset + int64(len(record)),
		}
		if len(data) == 0 {
			r.offset = r.rest.Next
		}
	}
}

// all takes what the current record still holds. Cut into lines it would cost a hundred
// times as much on its way to where it is shown.
func (r *Reader) all() Chunk {
	chunk := r.rest
	r.rest.Data = nil
	r.offset = chunk.Next
	chunk.Dropped, r.missed = r.missed, 0
	return chunk
}

// record returns the whole record at r.offset, or nil if there is none yet.
func (r *Reader) record() (header, []byte, error) {
	b, err := r.peek(headerSize)
	if err != nil || b == nil {
		return header{}, nil, err
	}
	h, ok := parseHeader(b)
	if ok {
		b, err = r.peek(headerSize + h.length)
		if err != nil || b == nil {
			return header{}, nil, err
		}
		ok = h.valid(b)
	}
	if !ok {
		// Perhaps being written: read it again next time.
		r.window = r.window[:0]
		return header{}, nil, nil
	}
	return h, b, nil
}

// peek returns n bytes at r.offset, or nil if the segment has fewer.
func (r *Reader) peek(n int) ([]byte, error) {
	from := r.offset - r.windowAt
	if from < 0 || from+int64(n) > int64(len(r.window)) {
		if r.window == nil {
			r.window = make([]byte, 0, windowBytes)
		}
		r.windowAt, from = r.offset, 0
		got, err := r.file.ReadAt(r.window[:windowBytes], r.offset-r.start)
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("read log: %w", err)
		}
		r.window = r.window[:got]
	}
	if from+int64(n) > int64(len(r.window)) {
		return nil, nil
	}
	return r.window[from : from+int64(n)], nil
}

// open opens the segment that holds r.offset, or the next one after it.
func (r *Reader) open() (bool, error) {
	there, err := segments(r.path)
	if errors.Is(err, fs.ErrNotExist) && !r.seen {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read log: %w", err)
	}
	r.seen = true
	if len(there) == 0 {
		return false, nil
	}
	pick := there[0]
	for _, segment := range there {
		if segment.start <= r.offset {
			pick = segment
		}
	}
	return r.openAt(pick)
}

// openAt opens a segment; false means that rotation was faster.
func (r *Reader) openAt(segment found) (bool, error) {
	f, err := os.Open(segment.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read log: %w", err)
	}
	_ = r.Close()
	wanted, start := r.offset, segment.start
	r.file, r.start, r.offset, r.window = f, start, start, r.window[:0]
	if wanted < start {
		if wanted > 0 || start > 0 {
			r.missed += start - wanted
		}
		return true, nil
	}
	return true, r.seek(wanted)
}

// seek goes from the segment's start to an offset that may be within a record.
func (r *Reader) seek(wanted int64) error {
	for r.offset < wanted {
		h, record, err := r.record()
		if err != nil {
			return err
		}
		if record == nil {
			// Torn, or an offset that this log never gave: what comes next is new.
			return nil
		}
		next := r.offset + int64(len(record))
		if skip := wanted - r.offset - headerSize; next > wanted {
			if skip > 0 && h.kind <= byte(Stderr) {
				r.take(h, record)
				r.rest.Data = r.rest.Data[skip:]
				r.rest.Offset, r.rest.Continues = wanted, record[headerSize+skip-1] != '\n'
				r.offset = wanted
			}
			return nil
		}
		r.ended = h.kind == kindEnd
		if r.ended {
			r.take(h, record)
			continue
		}
		r.offset = next
	}
	return nil
}

// advance goes to the next segment if there is one.
func (r *Reader) advance() (bool, error) {
	there, err := segments(r.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("read log: removed: %w", err)
		}
		return false, fmt.Errorf("read log: %w", err)
	}
	for _, segment := range there {
		if segment.start <= r.start {
			continue
		}
		// The writer closed this segment before it made the next: look once more, so
		// that nothing written in between is taken for torn.
		r.window = r.window[:0]
		if _, record, err := r.record(); err != nil || record != nil {
			return record != nil, err
		}
		return r.openAt(segment)
	}
	return false, nil
}
