package logs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Who does not follow reads to where the log ended when it was opened, however fast it
// grows meanwhile.
func TestReaderThatDoesNotFollowEndsWhereTheLogEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w, err := Create(path, WriterOptions{SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write := func(text string) {
		w.Append(Stdout, []byte(text))
		w.Flush()
	}
	for _, test := range []struct {
		opts Options
		want string
	}{{Options{}, "one\ntwo\n"}, {Options{Tail: 1}, "two\n"}} {
		write("one\n")
		write("two\n")
		r, err := OpenReader(path, test.opts)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for range 10 {
			chunk, err := r.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got += string(chunk.Data)
			write("more\n")
		}
		if got != test.want {
			t.Errorf("with %+v it read %q", test.opts, got)
		}
		if err := errors.Join(r.Close(), os.Remove(path+".log")); err != nil {
			t.Fatal(err)
		}
		if w, err = Create(path, WriterOptions{SegmentBytes: 4 << 10}); err != nil {
			t.Fatal(err)
		}
	}
}
