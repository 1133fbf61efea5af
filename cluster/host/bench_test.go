package host_test

import "testing"

// A simulated world makes a host for each start of each of its nodes.
func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		newBench(1)
	}
}
