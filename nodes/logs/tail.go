package logs

import (
	"errors"
	"io/fs"
)

// tailOffset returns the offset of the line that is lines before the end. It reads
// the newest segments only, as many as it needs.
func tailOffset(dir string, lines int) (int64, error) {
	starts, err := segments(dir)
	if err != nil {
		return 0, err
	}
	// later are the line starts of the segments read so far, in order.
	var later []int64
	for i := len(starts) - 1; i >= 0 && len(later) < lines; i-- {
		begun, err := lineStarts(dir, starts[i], lines-len(later))
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
func lineStarts(dir string, start int64, lines int) ([]int64, error) {
	r := &Reader{dir: dir, offset: start}
	defer r.Close()
	opened, err := r.openAt(start)
	if err != nil {
		return nil, err
	}
	if !opened {
		return nil, fs.ErrNotExist
	}
	ring := make([]int64, 0, lines)
	next := 0
	for {
		h, record, err := r.record()
		if err != nil {
			return nil, err
		}
		if record == nil {
			return append(ring[next:len(ring):len(ring)], ring[:next]...), nil
		}
		r.take(h, record)
		for len(r.rest.Data) > 0 {
			chunk := r.line()
			if chunk.Continues {
				continue
			}
			if len(ring) < lines {
				ring = append(ring, chunk.Offset)
				continue
			}
			ring[next] = chunk.Offset
			next = (next + 1) % lines
		}
	}
}
