package journal

import (
	"fmt"
	"syscall"
	"testing"
)

// BenchmarkWrite is a change of one entry, alone, and the CPU that it takes.
func BenchmarkWrite(b *testing.B) {
	j, err := Open(b.TempDir(), b.TempDir())
	must(b, err)
	defer j.Close()
	done := make(chan error)
	cpu := func() int64 {
		var u syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	change := puts(fmt.Sprintf("r.default.%026d", 1))
	b.ReportAllocs()
	before := cpu()
	for b.Loop() {
		j.Write(change, func(err error) { done <- err })
		must(b, <-done)
	}
	b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "cpu-us/op")
}
