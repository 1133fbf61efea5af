package logs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
)

// countRemoved counts as dropped what is in segments that no reader can find any more,
// because somebody removed them. If the one that is written is among them, the next
// record begins another.
func (w *Writer) countRemoved() {
	current := w.start
	gone := w.file != nil && !w.found()
	if gone {
		w.closeSegment()
	}
	w.kept = slices.DeleteFunc(w.kept, func(kept segment) bool {
		removed := gone
		if kept.start != current {
			_, err := os.Lstat(kept.path)
			removed = errors.Is(err, fs.ErrNotExist)
		}
		if removed {
			w.dropped += kept.output
		}
		return removed
	})
}

// found tells whether the open segment is where readers look for it.
func (w *Writer) found() bool {
	open, err := w.file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Lstat(segmentPath(w.path, w.start))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return os.SameFile(open, there)
}
