package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// earlier gives a log the layout of earlier versions, whose first segment lay in the
// directory with the others.
func earlier(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(segmentPath(path, 0), filepath.Join(path, segmentName(0))); err != nil {
		t.Fatal(err)
	}
}

func TestLogOfTheEarlierLayoutIsReadAndContinued(t *testing.T) {
	for name, segmentBytes := range map[string]int64{"of one segment": 0, "of several segments": 1000} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := create(t, path, WriterOptions{SegmentBytes: segmentBytes, Segments: 100})
			var want strings.Builder
			add := func(w *Writer) {
				for i := range 100 {
					line := fmt.Sprintf("line %d of %d\n", i, want.Len())
					want.WriteString(line)
					w.Append(Stdout, []byte(line))
					w.Flush()
				}
			}
			add(w)
			if !w.End(true) {
				t.Fatal("not complete")
			}
			w.Close()
			earlier(t, path)
			chunks, r := read(t, path, Options{Follow: true})
			if end, ok := r.End(); !ok || !end.Complete || text(chunks, Stdout) != want.String() {
				t.Fatalf("end %+v, %v, %d of %d bytes", end, ok, len(text(chunks, Stdout)), want.Len())
			}
			tail, _ := read(t, path, Options{Tail: 100})
			if text(tail, Stdout) != want.String() {
				t.Errorf("a tail of all lines has %d of %d bytes", len(text(tail, Stdout)), want.Len())
			}
			w = create(t, path, WriterOptions{SegmentBytes: segmentBytes, Segments: 100})
			add(w)
			if !w.End(true) {
				t.Fatal("continued: not complete")
			}
			chunks, r = read(t, path, Options{Follow: true})
			if end, ok := r.End(); !ok || !end.Complete || text(chunks, Stdout) != want.String() {
				t.Errorf("continued: end %+v, %v, %d of %d bytes", end, ok, len(text(chunks, Stdout)), want.Len())
			}
			if _, err := os.Lstat(segmentPath(path, 0)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a second first segment: %v", err)
			}
		})
	}
}

func TestSegmentOfTheEarlierLayoutIsRotatedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{})
	w.Append(Stdout, []byte("first\n"))
	w.Close()
	earlier(t, path)
	w = create(t, path, WriterOptions{SegmentBytes: 100, Segments: 2})
	for range 2 {
		w.Append(Stdout, bytes.Repeat([]byte("x"), 90))
		w.Flush()
	}
	if w.End(true) {
		t.Error("a log that lost its first segment is complete")
	}
	if there, err := inDirectory(path); err != nil || len(there) != 2 {
		t.Errorf("segments %v, %v", there, err)
	}
	_, r := read(t, path, Options{})
	if end, ok := r.End(); !ok || end.Complete || end.Dropped == 0 {
		t.Errorf("end %+v, %v", end, ok)
	}
}

// A version that prepared a log and crashed has left an empty first segment.
func TestEmptySegmentOfTheEarlierLayoutHidesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{})
	w.Prepare()
	w.Close()
	earlier(t, path)
	w = create(t, path, WriterOptions{})
	w.Append(Stdout, []byte("out\n"))
	if !w.End(true) {
		t.Error("not complete")
	}
	if there, err := segments(path); err != nil || len(there) != 1 || there[0].path != segmentPath(path, 0) {
		t.Errorf("segments %v, %v", there, err)
	}
	chunks, r := read(t, path, Options{Follow: true})
	if end, ok := r.End(); !ok || !end.Complete || text(chunks, Stdout) != "out\n" {
		t.Errorf("end %+v, %v, %q", end, ok, text(chunks, Stdout))
	}
}

func TestFollowOfALogThatIsRemovedEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{})
	w.Append(Stdout, []byte("out\n"))
	w.Flush()
	r, err := OpenReader(path, Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := r.Next(ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(segmentPath(path, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(ctx); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}
