package journal

import (
	"slices"
	"testing"
)

// TestWritesWaitForLittleOfACompaction: what was written meanwhile is carried over while
// writes wait only if it is little, or if rounds beside them do not get it down.
func TestWritesWaitForLittleOfACompaction(t *testing.T) {
	const little, much = 64 << 10, 320 << 10
	for _, c := range []struct {
		name string
		// meanwhile is what is written during each round, in bytes of the file.
		meanwhile func(round int) int64
		rounds    int
	}{
		{"nothing", func(int) int64 { return 0 }, 0},
		{"little", func(int) int64 { return little }, 0},
		{"much, and then little", func(round int) int64 { return []int64{much, little}[round] }, 1},
		{"much all the time", func(int) int64 { return much }, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, err := open(newMemoryDisk(1), FileName, "", roomBytes)
			must(t, err)
			change := puts(longRun("x"), longRun("y"), longRun("z"))
			change.Puts = slices.Repeat(change.Puts, 20)
			write := func(bytes int64) {
				for end := j.log.at.offset + bytes; j.log.at.offset < end; {
					must(t, j.commit([]request{{change: change}}))
				}
			}
			write(64 << 10)
			j.beginCompaction()
			old, rounds := j.log, 0
			for current := j.compaction; ; current = j.compaction {
				<-current.done
				write(c.meanwhile(rounds))
				j.endCompaction(current)
				if j.compaction == nil {
					break
				}
				if rounds++; j.log != old || rounds > 8 {
					t.Fatalf("round %d", rounds)
				}
			}
			if rounds != c.rounds || j.log == old {
				t.Errorf("%d rounds, another file: %v", rounds, j.log != old)
			}
			all, err := j.log.read()
			must(t, err)
			content, err := all.content()
			must(t, err)
			if len(content.Entries) != 3 {
				t.Errorf("%d entries", len(content.Entries))
			}
		})
	}
}
