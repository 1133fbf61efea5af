package logs_test

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/errand-run/errand/nodes/logs"
)

// A log of nothing but its end must not cost the buffer of one that is written: there
// may be thousands of them a second.
func TestLogWithoutOutputHasNoBuffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const logsMade, bytesMost = 50, 8 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range logsMade {
		w, err := logs.Create(path, logs.WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.End(true)
		w.Close()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / logsMade; each > bytesMost {
		t.Errorf("%d bytes a log, want at most %d", each, bytesMost)
	}
}
