package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// The defaults of WriterOptions: 64 MiB in four files.
const (
	DefaultSegmentBytes = 16 << 20
	DefaultSegments     = 4
)

// bufferBytes is what a Writer collects before it writes.
const bufferBytes = 256 << 10

// recordMin is how much output a record takes at least, however small a segment is.
const recordMin = 1 << 10

// WriterOptions sets the limits of a log.
type WriterOptions struct {
	// SegmentBytes is the size of a segment; 0 means DefaultSegmentBytes.
	SegmentBytes int64
	// Segments is how many are kept, at least 2; 0 means DefaultSegments.
	Segments int
	// Now tells the time of a record; nil means time.Now.
	Now func() time.Time
}

// Writer writes one log. It is not safe for concurrent use, and a log has one
// writer at a time.
//
// No method but Create returns an error of the disk: a command must not end
// because its log can not be written. What is lost is counted and marked.
type Writer struct {
	path string
	opts WriterOptions
	file *os.File
	// start and size are those of the segment that is being written.
	start, size int64
	// resumed is the size that the next segment to be opened has already.
	resumed int64
	// kept are the segments on disk with the bytes of output in each, oldest first.
	kept []segment
	buf  []byte
	// buffered are the bytes of output in buf.
	buffered int64
	// open tells for each stream whether its last record ended within a line.
	open [3]bool
	// dropped is all that was lost, gap is what no gap record tells of yet.
	dropped, gap int64
	// unwritten: a write has failed, and output was lost with it.
	unwritten bool
}

type segment struct {
	found
	output int64
}

// Create opens a log for writing. The directory that its path lies in must exist. A
// log that exists is continued in a new segment, unless its last one has no output: a
// placement that never came to its command costs no segment.
func Create(path string, opts WriterOptions) (*Writer, error) {
	if opts.SegmentBytes <= 0 {
		opts.SegmentBytes = DefaultSegmentBytes
	}
	if opts.Segments <= 0 {
		opts.Segments = DefaultSegments
	}
	opts.Segments = max(opts.Segments, 2)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	there, err := segments(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("create log: %w", err)
	}
	w := &Writer{path: path, opts: opts}
	for _, f := range there {
		info, err := os.Stat(f.path)
		if err != nil {
			return nil, fmt.Errorf("create log: %w", err)
		}
		w.kept = append(w.kept, segment{found: f, output: info.Size()})
		w.start = f.start + info.Size()
	}
	if n := len(w.kept); n > 0 && onlyEnds(w.kept[n-1].path, w.kept[n-1].output) {
		w.start, w.resumed = w.kept[n-1].start, w.kept[n-1].output
		w.kept[n-1].output = 0
	}
	return w, nil
}

// onlyEnds tells whether a segment of a size has whole end marks and nothing else.
func onlyEnds(path string, size int64) bool {
	const endSize, marksMax = headerSize + 9, 4096
	if size == 0 || size%endSize != 0 || size > endSize*marksMax {
		return false
	}
	content, err := os.ReadFile(path)
	if err != nil || int64(len(content)) != size {
		return false
	}
	for mark := range slices.Chunk(content, endSize) {
		if h, ok := parseHeader(mark); !ok || h.kind != kindEnd || !h.valid(mark) {
			return false
		}
	}
	return true
}

// Prepare makes the segment that is written first. It saves the time at the log's end
// for who has some before; a log that can not be made shows later.
func (w *Writer) Prepare() {
	if w.file == nil {
		w.openSegment()
	}
}

// Append adds output. It takes any number of bytes and keeps none of them.
func (w *Writer) Append(stream Stream, data []byte) {
	for len(data) > 0 {
		n, _ := w.Fill(stream, func(b []byte) (int, error) { return copy(b, data), nil })
		data = data[n:]
	}
}

// Fill adds what one call of read puts into the buffer that it is given, without
// copying it again, and returns what read returned.
func (w *Writer) Fill(stream Stream, read func([]byte) (int, error)) (int, error) {
	if w.buf == nil { // many a log has nothing but its end
		w.buf = make([]byte, 0, bufferBytes)
	}
	// What is written at once goes into one segment, which must not outgrow its size.
	record := int(min(MaxRecord, max(w.opts.SegmentBytes-headerSize, recordMin)))
	if min(cap(w.buf), max(int(w.opts.SegmentBytes), headerSize+record))-len(w.buf) < headerSize+record {
		w.Flush()
	}
	from := len(w.buf)
	room := w.buf[from+headerSize : from+headerSize+record]
	n, err := read(room)
	if n <= 0 {
		return n, err
	}
	w.buf = w.buf[:from+headerSize+n]
	var flags byte
	if w.open[stream] {
		flags = flagContinues
	}
	putHeader(w.buf[from:], byte(stream), flags, w.opts.Now().UnixNano())
	w.open[stream] = room[n-1] != '\n'
	w.buffered += int64(n)
	return n, err
}

// Dropped returns how many bytes of output the log lost so far: to its limit, or
// because they could not be written.
func (w *Writer) Dropped() int64 { return w.dropped }

// Unwritten tells whether output was lost because it could not be written.
func (w *Writer) Unwritten() bool { return w.unwritten }

// Flush makes all that was added visible to readers.
func (w *Writer) Flush() {
	if len(w.buf) == 0 {
		return
	}
	output := w.buffered
	if w.writeGap() && w.write(w.buf, output) {
		output = 0
	}
	w.dropped += output
	w.gap += output
	w.unwritten = w.unwritten || output > 0
	w.buf, w.buffered = w.buf[:0], 0
}

// writeGap marks what could not be written before.
func (w *Writer) writeGap() bool {
	if w.gap == 0 {
		return true
	}
	var record [headerSize + 8]byte
	putInt64(record[headerSize:], w.gap)
	putHeader(record[:], kindGap, 0, w.opts.Now().UnixNano())
	if !w.write(record[:], 0) {
		return false
	}
	w.gap = 0
	return true
}

// write writes whole records, all or nothing.
func (w *Writer) write(records []byte, output int64) bool {
	if w.file != nil && w.size+int64(len(records)) > w.opts.SegmentBytes && w.size > 0 {
		w.closeSegment()
	}
	if w.file == nil && !w.openSegment() {
		return false
	}
	if _, err := w.file.WriteAt(records, w.size); err != nil {
		// What stands after the last whole record would look torn to readers.
		if w.file.Truncate(w.size) != nil {
			w.closeSegment()
		}
		return false
	}
	w.size += int64(len(records))
	w.kept[len(w.kept)-1].output += output
	return true
}

func (w *Writer) openSegment() bool {
	place := found{start: w.start, path: segmentPath(w.path, w.start)}
	f, err := os.OpenFile(place.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) && w.start > 0 && os.Mkdir(w.path, 0o700) == nil {
		f, err = os.OpenFile(place.path, os.O_WRONLY|os.O_CREATE, 0o600)
	}
	if err != nil {
		return false
	}
	w.file, w.size = f, 0
	if w.resumed > 0 {
		if info, err := f.Stat(); err == nil { // it may be another, if somebody removed it
			w.size = min(w.resumed, info.Size())
		}
		w.resumed = 0
	}
	if n := len(w.kept); n == 0 || w.kept[n-1].path != place.path {
		w.kept = append(w.kept, segment{found: place})
	}
	for len(w.kept) > w.opts.Segments {
		// A segment that can not be removed is not tried again.
		_ = os.Remove(w.kept[0].path)
		w.dropped += w.kept[0].output
		w.kept = w.kept[1:]
	}
	return true
}

func (w *Writer) closeSegment() {
	if w.file == nil {
		return
	}
	if info, err := w.file.Stat(); err == nil {
		w.size = max(w.size, info.Size())
	}
	_ = w.file.Close()
	w.file = nil
	w.start += w.size
	w.size = 0
}

// End writes the end mark and returns whether the log is complete: drained says
// that all output was read, and nothing of it may have been lost since: neither to the
// log's limit or the disk, nor with a segment that somebody removed meanwhile.
func (w *Writer) End(drained bool) (complete bool) {
	w.Flush()
	w.countRemoved()
	var record [headerSize + 9]byte
	complete = drained && w.dropped == 0
	putInt64(record[headerSize:], w.dropped)
	if complete {
		record[headerSize+8] = 1
	}
	putHeader(record[:], kindEnd, 0, w.opts.Now().UnixNano())
	return w.writeGap() && w.write(record[:], 0) && complete
}

// Close flushes and releases the log. It writes no end mark.
func (w *Writer) Close() {
	w.Flush()
	w.closeSegment()
}
