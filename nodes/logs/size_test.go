package logs

import (
	"bytes"
	"testing"
)

// TestSegmentsDoNotOutgrowTheirSize: also those that are smaller than what a writer
// collects, or than the longest record.
func TestSegmentsDoNotOutgrowTheirSize(t *testing.T) {
	for _, size := range []int64{16 << 10, 100 << 10, 300 << 10} {
		dir := t.TempDir()
		w := create(t, dir, WriterOptions{SegmentBytes: size, Segments: 4})
		line := append(bytes.Repeat([]byte("x"), 999), '\n')
		for range 2000 {
			w.Append(Stdout, line)
		}
		w.Append(Stdout, bytes.Repeat(line, 2000))
		w.End(true)
		w.Close()
		total := int64(0)
		for _, s := range w.kept {
			total += s.output
		}
		chunks, _ := read(t, dir, Options{})
		kept := int64(len(text(chunks, Stdout)))
		if kept > 4*size || kept < 2*size || total > 4*size {
			t.Errorf("four segments of %d bytes keep %d bytes of output", size, kept)
		}
	}
}
