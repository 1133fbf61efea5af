package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestLogThatIsRemovedWhileItIsWrittenIsNotComplete(t *testing.T) {
	remove := func(start int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, segmentName(start))); err != nil {
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
		// marked tells that a reader finds the end mark.
		marked bool
	}{
		"the segment that is written": {remove(second), len(block), int64(len(block)), true},
		"an earlier segment":          {remove(0), len(block), int64(len(block)), true},
		"every segment": {func(t *testing.T, dir string) {
			remove(0)(t, dir)
			remove(second)(t, dir)
		}, 0, 2 * int64(len(block)), true},
		"its directory": {func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, 0, 0, false},
		"another file in its place": {func(t *testing.T, dir string) {
			remove(second)(t, dir)
			if err := os.WriteFile(filepath.Join(dir, segmentName(second)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, len(block), int64(len(block)), true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			w := create(t, dir, WriterOptions{SegmentBytes: 1000})
			for range 2 {
				w.Append(Stdout, block)
				w.Flush()
			}
			c.remove(t, dir)
			if w.End(true) {
				t.Error("complete")
			}
			chunks, r := read(t, dir, Options{})
			if got := text(chunks, Stdout); len(got) != c.left {
				t.Errorf("%d bytes are left, want %d", len(got), c.left)
			}
			end, ok := r.End()
			if ok != c.marked || end.Complete || end.Dropped != c.dropped {
				t.Errorf("end %+v, %v", end, ok)
			}
		})
	}
}

// A log whose segment was removed before it held anything has lost nothing.
func TestLogRemovedBeforeAnyOutputIsCompleteAndHasItsEndMark(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, WriterOptions{})
	w.Prepare()
	if err := os.Remove(filepath.Join(dir, segmentName(0))); err != nil {
		t.Fatal(err)
	}
	if !w.End(true) {
		t.Error("not complete")
	}
	if _, r := read(t, dir, Options{}); !r.ended || !r.end.Complete {
		t.Errorf("end %+v, %v", r.end, r.ended)
	}
}
