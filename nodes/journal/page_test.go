//go:build !race

package journal

import (
	"os"
	"testing"
)

// TestJournalWithATurnedBitInAPageIsRefusedOrSaysTheSame turns a bit in every byte
// behind the two meta pages, which are bbolt's own and have a checksum each. The
// race detector's build ends the process where bbolt follows a bad offset.
func TestJournalWithATurnedBitInAPageIsRefusedOrSaysTheSame(t *testing.T) {
	path, want := smallJournal(t)
	file, err := os.ReadFile(path)
	must(t, err)
	var offsets []int
	for at := 2 * os.Getpagesize(); at < len(file); at++ {
		// Of room that nobody has written to a sample is enough.
		if file[at] != 0 || at%64 == 0 {
			offsets = append(offsets, at)
		}
	}
	if seen := turnBits(t, path, want, offsets); seen < 100 {
		t.Errorf("%d turned bits were seen", seen)
	}
}
