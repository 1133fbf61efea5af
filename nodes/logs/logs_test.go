package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t testing.TB, path string, opts WriterOptions) *Writer {
	t.Helper()
	w, err := Create(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// read reads a log to its end.
func read(t testing.TB, path string, opts Options) ([]Chunk, *Reader) {
	t.Helper()
	r, err := OpenReader(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var chunks []Chunk
	for {
		c, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return chunks, r
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Data = bytes.Clone(c.Data)
		chunks = append(chunks, c)
	}
}

func text(chunks []Chunk, stream Stream) string {
	var b strings.Builder
	for _, c := range chunks {
		if c.Stream == stream {
			b.Write(c.Data)
		}
	}
	return b.String()
}

func TestLogReadsBackByteForByte(t *testing.T) {
	path, random := filepath.Join(t.TempDir(), "log"), rand.New(rand.NewPCG(1, 2))
	w := create(t, path, WriterOptions{SegmentBytes: 100 << 10, Segments: 1000})
	var want [3][]byte
	for range 2000 {
		stream := Stream(1 + random.IntN(2))
		piece := make([]byte, random.IntN(2000))
		for i := range piece {
			piece[i] = byte(random.IntN(256))
		}
		w.Append(stream, piece)
		want[stream] = append(want[stream], piece...)
		if random.IntN(10) == 0 {
			w.Flush()
		}
	}
	long := bytes.Repeat([]byte{0, 1, 2, 255}, 100_000)
	w.Append(Stdout, long)
	want[Stdout] = append(want[Stdout], long...)
	if !w.End(true) {
		t.Fatal("not complete")
	}
	chunks, r := read(t, path, Options{Follow: true})
	if text(chunks, Stdout) != string(want[Stdout]) || text(chunks, Stderr) != string(want[Stderr]) {
		t.Fatal("content differs")
	}
	if end, ok := r.End(); !ok || !end.Complete || end.Dropped != 0 {
		t.Fatalf("end %+v, %v", end, ok)
	}
	// From every offset on it is the same rest.
	for i := 0; i < len(chunks); i += 1 + len(chunks)/50 {
		rest, _ := read(t, path, Options{Offset: chunks[i].Next})
		for _, stream := range []Stream{Stdout, Stderr} {
			if text(rest, stream) != text(chunks[i+1:], stream) {
				t.Fatalf("the rest after chunk %d (offset %d) differs", i, chunks[i].Next)
			}
		}
		if len(rest) != len(chunks)-i-1 {
			t.Fatalf("%d chunks after chunk %d of %d", len(rest), i, len(chunks))
		}
	}
}

func TestChunksAreWhatWasReadAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	now := time.Unix(100, 0)
	w := create(t, path, WriterOptions{Now: func() time.Time { now = now.Add(time.Second); return now }})
	w.Append(Stdout, []byte("one\ntwo\nthr"))
	w.Append(Stderr, []byte("err\n"))
	w.Append(Stdout, []byte("ee\n\nlast"))
	w.Flush()
	chunks, r := read(t, path, Options{})
	var got []string
	for _, c := range chunks {
		got = append(got, fmt.Sprintf("%d %d %v %q", c.Stream, c.At.Unix(), c.Continues, c.Data))
	}
	want := []string{
		`1 101 false "one\ntwo\nthr"`, `2 102 false "err\n"`, `1 103 true "ee\n\nlast"`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v", got)
	}
	if _, ok := r.End(); ok {
		t.Fatal("an end mark where there is none")
	}
	since, _ := read(t, path, Options{Since: time.Unix(102, 0)})
	if len(since) != 2 {
		t.Fatalf("since: %d chunks", len(since))
	}
	// A tail begins within a record.
	for lines, want := range map[int][]string{
		1: {`1 103 false "last"`},
		2: {`1 103 false "\nlast"`},
		3: {`2 102 false "err\n"`, `1 103 true "ee\n\nlast"`},
		4: {`1 101 false "thr"`, `2 102 false "err\n"`, `1 103 true "ee\n\nlast"`},
		5: {`1 101 false "two\nthr"`, `2 102 false "err\n"`, `1 103 true "ee\n\nlast"`},
	} {
		tail, _ := read(t, path, Options{Tail: lines})
		got = nil
		for _, c := range tail {
			got = append(got, fmt.Sprintf("%d %d %v %q", c.Stream, c.At.Unix(), c.Continues, c.Data))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("tail %d: %v", lines, got)
		}
	}
}

func TestTailBeginsAtLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{SegmentBytes: 1000, Segments: 100})
	for i := range 500 {
		w.Append(Stdout, fmt.Appendf(nil, "line %d, first half,", i))
		w.Append(Stdout, fmt.Appendf(nil, " second half\n"))
		w.Flush()
	}
	for _, lines := range []int{1, 2, 17, 499, 500, 501, 1 << 30} {
		chunks, _ := read(t, path, Options{Tail: lines})
		got := text(chunks, Stdout)
		if n := strings.Count(got, "\n"); n != min(lines, 500) {
			t.Errorf("tail %d has %d lines", lines, n)
		}
		if want := fmt.Sprintf("line %d, first", max(0, 500-lines)); !strings.HasPrefix(got, want) {
			t.Errorf("tail %d begins with %.20q, want %q", lines, got, want)
		}
	}
}

func TestRotationKeepsTheNewestAndCountsTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := create(t, path, WriterOptions{SegmentBytes: 10_000, Segments: 4})
	var written int64
	for i := range 3000 {
		line := fmt.Appendf(nil, "line %d\n", i)
		w.Append(Stdout, line)
		written += int64(len(line))
		if i%10 == 9 {
			w.Flush()
		}
	}
	if w.End(true) {
		t.Fatal("a log that lost lines is complete")
	}
	files, _ := filepath.Glob(filepath.Join(path, "*"))
	if _, err := os.Lstat(segmentPath(path, 0)); len(files) != 4 || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%d files, and the first: %v", len(files), err)
	}
	var size int64
	for _, f := range files {
		info, _ := os.Stat(f)
		size += info.Size()
	}
	if size > 40_000+headerSize+9 {
		t.Fatalf("%d bytes on disk", size)
	}
	chunks, r := read(t, path, Options{Follow: true})
	got := text(chunks, Stdout)
	if !strings.HasSuffix(got, "line 2998\nline 2999\n") || chunks[0].Dropped == 0 {
		t.Fatalf("ends with %q, dropped before the first: %d", got[len(got)-20:], chunks[0].Dropped)
	}
	end, ok := r.End()
	if !ok || end.Complete || end.Dropped != written-int64(len(got)) {
		t.Fatalf("end %+v, %v; %d of %d bytes are there", end, ok, len(got), written)
	}
	// An offset that was rotated away tells of the gap and goes on with what is there.
	rest, _ := read(t, path, Options{Offset: 5000})
	if rest[0].Dropped == 0 || text(rest, Stdout) != got {
		t.Fatalf("from a lost offset: dropped %d", rest[0].Dropped)
	}
}

func TestFollowerSeesAllAcrossRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later", "log")
	r, err := OpenReader(path, Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const lines = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Error(err)
			return
		}
		w, err := Create(path, WriterOptions{SegmentBytes: 50_000, Segments: 100})
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		for i := range lines {
			w.Append(Stdout, fmt.Appendf(nil, "%d\n", i))
			if i%7 == 0 {
				w.Flush()
			}
		}
		w.End(true)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range lines {
		c, err := r.Next(ctx)
		if err != nil || string(c.Data) != fmt.Sprintf("%d\n", i) || c.Dropped != 0 {
			t.Fatalf("line %d: %+v, %v", i, c, err)
		}
	}
	if c, err := r.Next(ctx); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last: %+v, %v", c, err)
	}
	if end, ok := r.End(); !ok || !end.Complete {
		t.Fatalf("end %+v, %v", end, ok)
	}
	<-done
}

func TestFollowerEndsWithItsContext(t *testing.T) {
	r, err := OpenReader(filepath.Join(t.TempDir(), "never"), Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestTornRecordEndsItsSegment(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"cut header":   func(b []byte) []byte { return b[:len(b)-headerSize-3] },
		"cut data":     func(b []byte) []byte { return b[:len(b)-2] },
		"changed byte": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"zeros":        func(b []byte) []byte { return append(b[:len(b)-24], make([]byte, 24)...) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := create(t, path, WriterOptions{})
			w.Append(Stdout, []byte("whole\n"))
			w.Append(Stdout, []byte("bad\n"))
			w.Close()
			file := segmentPath(path, 0)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			chunks, r := read(t, path, Options{})
			if _, ok := r.End(); ok || text(chunks, Stdout) != "whole\n" {
				t.Fatalf("got %q", text(chunks, Stdout))
			}
			// A writer that comes later goes on behind it, and so does a reader.
			w = create(t, path, WriterOptions{})
			w.Append(Stdout, []byte("later\n"))
			w.End(true)
			chunks, r = read(t, path, Options{Follow: true})
			if _, ok := r.End(); !ok || text(chunks, Stdout) != "whole\nlater\n" {
				t.Fatalf("got %q", text(chunks, Stdout))
			}
			if last := chunks[len(chunks)-1]; last.Dropped == 0 {
				t.Error("the gap is not told")
			}
		})
	}
}

func TestEndMarkOfAnEarlierPlacementIsNotTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for i := range 3 {
		w := create(t, path, WriterOptions{})
		w.Append(Stdout, fmt.Appendf(nil, "%d\n", i))
		w.End(true)
		w.Close()
	}
	chunks, r := read(t, path, Options{Follow: true})
	if _, ok := r.End(); !ok || text(chunks, Stdout) != "0\n1\n2\n" {
		t.Fatalf("got %q", text(chunks, Stdout))
	}
}

// A directory that can not be written is like a full disk.
func TestWriteErrorsAreCountedAndMarked(t *testing.T) {
	dir, away := filepath.Join(t.TempDir(), "logs"), filepath.Join(t.TempDir(), "away")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "log")
	w := create(t, path, WriterOptions{SegmentBytes: 100, Segments: 100})
	w.Append(Stdout, []byte("before\n"))
	w.Flush()
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		w.Append(Stdout, bytes.Repeat([]byte("lost"), 50))
		w.Flush()
	}
	if w.Dropped() != 2000 || !w.Unwritten() {
		t.Fatalf("dropped %d, unwritten %t", w.Dropped(), w.Unwritten())
	}
	if err := os.Rename(away, dir); err != nil {
		t.Fatal(err)
	}
	w.Append(Stdout, []byte("after\n"))
	if w.End(true) {
		t.Fatal("complete")
	}
	chunks, r := read(t, path, Options{Follow: true})
	if got := text(chunks, Stdout); got != "before\nafter\n" || chunks[1].Dropped != 2000 {
		t.Fatalf("got %q, dropped %d", got, chunks[1].Dropped)
	}
	if end, ok := r.End(); !ok || end.Complete || end.Dropped != 2000 {
		t.Fatalf("end %+v, %v", end, ok)
	}
}

func FuzzReader(f *testing.F) {
	path := filepath.Join(f.TempDir(), "log")
	w := create(f, path, WriterOptions{})
	w.Append(Stdout, []byte("one\ntwo"))
	w.Append(Stderr, []byte("three\n"))
	w.End(true)
	b, err := os.ReadFile(segmentPath(path, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, int64(0), 0)
	f.Add(b[:30], int64(25), 2)
	f.Fuzz(func(t *testing.T, b []byte, offset int64, tail int) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(segmentPath(path, 0), b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := OpenReader(path, Options{Offset: offset, Tail: tail})
		if err != nil {
			return
		}
		defer r.Close()
		total := 0
		for {
			c, err := r.Next(context.Background())
			if err != nil {
				return
			}
			if total += len(c.Data); total > len(b) {
				t.Fatal("more bytes than the log has")
			}
		}
	})
}

func BenchmarkWriteLines(b *testing.B) {
	w := create(b, filepath.Join(b.TempDir(), "log"), WriterOptions{})
	line := []byte(strings.Repeat("x", 47) + "\n")
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		w.Append(Stdout, line)
	}
}

func BenchmarkReadLines(b *testing.B) {
	path := filepath.Join(b.TempDir(), "log")
	w := create(b, path, WriterOptions{})
	block := []byte(strings.Repeat(strings.Repeat("x", 47)+"\n", 1000))
	for range 300 {
		w.Append(Stdout, block)
	}
	w.End(true)
	b.SetBytes(300 * int64(len(block)))
	for b.Loop() {
		r, err := OpenReader(path, Options{})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := r.Next(context.Background()); err != nil {
				break
			}
		}
		_ = r.Close()
	}
}

func TestPreparedLogIsOneFileAndReadsAsOneThatIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w, err := Create(path, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Prepare()
	w.Prepare()
	r, err := OpenReader(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatalf("an empty log reads as %v", err)
	}
	w.Append(Stdout, []byte("out\n"))
	if !w.End(true) {
		t.Error("not complete")
	}
	w.Close()
	after, err := OpenReader(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if chunk, err := after.Next(t.Context()); err != nil || string(chunk.Data) != "out\n" || chunk.Offset != 0 {
		t.Fatalf("got %+v, %v", chunk, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 || entries[0].Name() != "log.log" {
		t.Errorf("files %v, %v", entries, err)
	}
}

// A run may be placed many times before its command starts; each leaves an end mark, and none
// of them is output that could be lost to the limit.
func TestStartsThatCameToNothingAreNoOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.1")
	for range 3 * DefaultSegments {
		w := create(t, path, WriterOptions{})
		w.End(true)
		w.Close()
	}
	w := create(t, path, WriterOptions{})
	w.Append(Stdout, []byte("hello\n"))
	if complete := w.End(true); !complete || w.Dropped() != 0 {
		t.Errorf("complete %v, %d bytes dropped", complete, w.Dropped())
	}
	w.Close()
	there, err := segments(path)
	if err != nil || len(there) != 1 || there[0].start != 0 {
		t.Errorf("segments %+v, %v", there, err)
	}
}
