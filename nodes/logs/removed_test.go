package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestLogThatIsRemovedWhileItIsWrittenIsNotComplete(t *testing.T) {
	remove := func(start int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Remove(segmentPath(path, start)); err != nil {
				t.Fatal(err)
			}
		}
	}
	block := bytes.Repeat([]byte("0123456\n"), 100)
	second := int64(headerSize + len(block))
	for name, c := range map[string]struct {
		remove  func(*testing.T, string)
		left    int
		dropped int64
	}{
		"the segment that is written": {remove(second), len(block), int64(len(block))},
		"an earlier segment":          {remove(0), len(block), int64(len(block))},
		"every segment": {func(t *testing.T, path string) {
			remove(0)(t, path)
			remove(second)(t, path)
		}, 0, 2 * int64(len(block))},
		"its directory": {func(t *testing.T, path string) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}, len(block), int64(len(block))},
		"another file in its place": {func(t *testing.T, path string) {
			remove(second)(t, path)
			if err := os.WriteFile(segmentPath(path, second), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, len(block), int64(len(block))},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := create(t, path, WriterOptions{SegmentBytes: 1000})
			for range 2 {
				w.Append(Stdout, block)
				w.Flush()
			}
			c.remove(t, path)
			if w.End(true) {
				t.Error("complete")
			}
			chunks, r := read(t, path, Options{})
			if got := text(chunks, Stdout); len(got) != c.left {
				t.Errorf("%d bytes are left, want %d", len(got), c.left)
			}
			end, ok := r.End()
			if !ok || end.Complete || end.Dropped != c.dropped {
				t.Errorf("end %+v, %v", end, ok)
			}
		})
	}
}

// A log whose segment was removed before it held anything has lost nothing.
func TestLogRemovedBeforeAnyOutputIsCompleteAndHasItsEndMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{})
	w.Prepare()
	if err := os.Remove(segmentPath(path, 0)); err != nil {
		t.Fatal(err)
	}
	if !w.End(true) {
		t.Error("not complete")
	}
	if _, r := read(t, path, Options{}); !r.ended || !r.end.Complete {
		t.Errorf("end %+v, %v", r.end, r.ended)
	}
}
