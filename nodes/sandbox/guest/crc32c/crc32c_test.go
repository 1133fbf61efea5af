package crc32c

import (
	"hash/crc32"
	"testing"
)

func TestSumIsThatOfTheStandardLibrary(t *testing.T) {
	b := make([]byte, 2*short)
	for i := range b {
		b[i] = byte(i * 7)
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for _, n := range []int{0, 1, 9, short - 1, short, short + 1, len(b)} {
		want := crc32.Checksum(b[:n], castagnoli)
		if got := Sum(b[:n]); got != want {
			t.Errorf("%d bytes: %08x, want %08x", n, got, want)
		}
		for _, cut := range []int{0, n / 2, n} {
			if got := Update(Sum(b[:cut]), b[cut:n]); got != want {
				t.Errorf("%d bytes, cut at %d: %08x, want %08x", n, cut, got, want)
			}
		}
	}
}
