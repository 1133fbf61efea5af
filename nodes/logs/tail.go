package logs

import (
	"bytes"
	"errors"
	"io/fs"
)

// tailOffset returns the offset of the line that is lines before the end. It reads
// the newest segments only, as many as it needs.
func tailOffset(path string, lines int) (int64, error) {
	there, err := segments(path)
	if err != nil {
		return 0, err
	}
	// later are the line starts of the segments read so far, in order.
	var later []int64
	for i := len(there) - 1; i >= 0 && len(later) < lines; i-- {
		begun, err := lineStarts(there[i], lines-len(later))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return 0, err
		}
		later = append(begun, later...)
	}
	if len(later) < lines || len(later) == 0 {
		return 0, nil
	}
	return later[0], nil
}

// lineStarts returns the offsets at which the last lines of a segment begin.
func lineStarts(segment found, lines int) ([]int64, error) {
	r := &Reader{offset: segment.start}
	defer func() { _ = r.Close() }() // it was only read
	opened, err := r.openAt(segment)
	if err != nil {
		return nil, err
	}
	if !opened {
		return nil, fs.ErrNotExist
	}
	ring := make([]int64, 0, lines)
	next := 0
	begins := func(offset int64) {
		if len(ring) < lines {
			ring = append(ring, offset)
			return
		}
		ring[next] = offset
		next = (next + 1) % lines
	}
	for {
		h, record, err := r.record()
		if err != nil {
			return nil, err
		}
		if record == nil {
			return append(ring[next:len(ring):len(ring)], ring[:next]...), nil
		}
		r.take(h, record)
		if len(r.rest.Data) == 0 {
			continue
		}
		chunk := r.all()
		if !chunk.Continues {
			begins(chunk.Offset)
		}
		// A line within a record has the offset of its first byte, one at its begin that
		// of the record's header.
		for at := 0; ; {
			length := bytes.IndexByte(chunk.Data[at:], '\n') + 1
			if at += length; length == 0 || at == len(chunk.Data) {
				break
			}
			begins(chunk.Next - int64(len(chunk.Data)-at))
		}
	}
}
