package machine

import (
	"fmt"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/journal"
)

// TestDiskHoldsWhatTheJournalHolds makes drawn changes on the disk and in a real
// journal, opened anew every now and then, copied and put back, and compares what
// they hold.
func TestDiskHoldsWhatTheJournalHolds(t *testing.T) {
	root, round := t.TempDir(), 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		dir := fmt.Sprintf("%s/%d", root, round)
		if err := os.Mkdir(dir, 0o700); err != nil {
			r.Fatal(err)
		}
		marks, file, copied := dir+"/marks", dir+"/"+journal.FileName, false
		var older DiskCopy
		kept, err := journal.Open(dir, marks)
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = kept.Close() }()
		b := newBench(t, 1, calm())
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			switch what := rapid.IntRange(0, 9).Draw(r, "what"); what {
			case 0, 1, 2:
				b.life.Crash()
				if err := kept.Close(); err != nil {
					r.Fatal(err)
				}
				switch {
				case what == 1:
					copied = true
					older = b.disk.Copy()
					copyFile(r, file, file+".kept")
				case what == 2 && copied:
					b.disk.Revert(older)
					copyFile(r, file+".kept", file)
				}
				b.life = b.Launch()
				if kept, err = journal.Open(dir, marks); err != nil {
					r.Fatal(err)
				}
				compare(r, b, kept)
				continue
			}
			// Some at a time: they meet, and the order of the calls counts.
			var last func() (bool, error)
			done := make(chan error, 3)
			n := rapid.IntRange(1, 3).Draw(r, "changes")
			for range n {
				change := drawChange(r)
				last = b.write(change)
				kept.Write(change, func(err error) { done <- err })
			}
			b.until("write", func() bool { ok, _ := last(); return ok })
			if _, err := last(); err != nil {
				r.Fatal(err)
			}
			for range n {
				if err := <-done; err != nil {
					r.Fatal(err)
				}
			}
			compare(r, b, kept)
		}
		compare(r, b, kept)
	})
}

func copyFile(r *rapid.T, from, to string) {
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		r.Fatal(err)
	}
}

func drawChange(r *rapid.T) nodes.JournalChange {
	key := func() nodes.PlacementKey {
		return nodes.PlacementKey{
			Run: rapid.SampledFrom([]string{"r.a.b", "r.a.bb", "t.a.b"}).Draw(r, "run"), Attempt: rapid.Int32Range(1, 2).Draw(r, "attempt"),
			Placement: rapid.SampledFrom([]int32{1, 300}).Draw(r, "placement"),
		}
	}
	var change nodes.JournalChange
	if rapid.Bool().Draw(r, "meta") {
		change.Meta = &recordv1.JournalMeta{Node: "n1", Generation: rapid.Int64Range(0, 9).Draw(r, "generation")}
	}
	for range rapid.IntRange(0, 3).Draw(r, "puts") {
		k := key()
		change.Puts = append(change.Puts, &recordv1.JournalEntry{
			Run: k.Run, Attempt: k.Attempt, Placement: k.Placement, Commit: rapid.Int64Range(0, 9).Draw(r, "commit"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(r, "deletes") {
		change.Deletes = append(change.Deletes, key())
	}
	return change
}

// compare compares all that a disk and a journal hold.
func compare(r rapid.TB, b *bench, kept nodes.Journal) {
	loaded := make(chan nodes.JournalContent, 1)
	kept.Load(func(content nodes.JournalContent, err error) {
		if err != nil {
			r.Errorf("load: %v", err)
		}
		loaded <- content
	})
	want := <-loaded
	var got *nodes.JournalContent
	b.life.Journal().Load(func(content nodes.JournalContent, _ error) { got = &content })
	b.until("load", func() bool { return got != nil })
	same := got.Reverted == want.Reverted && (got.Meta == nil) == (want.Meta == nil) && proto.Equal(got.Meta, want.Meta) && len(got.Entries) == len(want.Entries)
	for i := range got.Entries {
		same = same && proto.Equal(got.Entries[i], want.Entries[i])
	}
	if !same {
		r.Fatalf("the disk holds %v %v (reverted: %v), the journal %v %v (reverted: %v)",
			got.Meta, got.Entries, got.Reverted, want.Meta, want.Entries, want.Reverted)
	}
}
