package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// smallJournal is a journal of two entries, which has changed since it was made.
func smallJournal(t *testing.T) (path string, content nodes.JournalContent) {
	t.Helper()
	dir := t.TempDir()
	j := mustOpen(t, dir)
	meta := &recordv1.JournalMeta{Node: "n1", Uuid: "u", Generation: 3, Cluster: "c"}
	write(t, j, nodes.JournalChange{Meta: meta, Puts: []*recordv1.JournalEntry{entry("r.a.a", 1, 1), entry("r.a.b", 1, 1), entry("r.a.c", 1, 1)}})
	write(t, j, nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry("r.a.b", 1, 1)}, Deletes: []nodes.PlacementKey{{Run: "r.a.c", Attempt: 1, Placement: 1}}})
	content = load(t, j)
	must(t, j.Close())
	return filepath.Join(dir, FileName), content
}

// turnBits turns one bit at each offset, one at a time, and returns how many were
// seen. One that is not seen must leave what the journal says as it was.
func turnBits(t *testing.T, path string, want nodes.JournalContent, offsets []int) (seen int) {
	t.Helper()
	sound, err := os.ReadFile(path)
	must(t, err)
	for _, at := range offsets {
		torn := bytes.Clone(sound)
		torn[at] ^= 1 << (at % 8)
		must(t, os.WriteFile(path, torn, fileMode))
		if err := check(path); err != nil {
			seen++
			continue
		}
		db, err := bolt.Open(path, fileMode, &bolt.Options{ReadOnly: true})
		must(t, err)
		got, _, err := read(db)
		must(t, err)
		must(t, db.Close())
		equal := func(a, b *recordv1.JournalEntry) bool { return proto.Equal(a, b) }
		if !proto.Equal(got.Meta, want.Meta) || !slices.EqualFunc(got.Entries, want.Entries, equal) {
			t.Errorf("byte %d turned: %v", at, got)
		}
	}
	return seen
}

func TestJournalWithATurnedBitInAValueIsRefused(t *testing.T) {
	path, want := smallJournal(t)
	file, err := os.ReadFile(path)
	must(t, err)
	stored := [][]byte{}
	db, err := bolt.Open(path, fileMode, &bolt.Options{ReadOnly: true})
	must(t, err)
	must(t, db.View(func(tx *bolt.Tx) error {
		for _, bucket := range [][]byte{headBucket, entriesBucket} {
			err := tx.Bucket(bucket).ForEach(func(k, v []byte) error {
				stored = append(stored, append(bytes.Clone(k), v...))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, db.Close())
	for _, pair := range stored {
		// A copy in a page that is free by now may be turned unseen, the one in use not.
		var offsets []int
		copies := 0
		for from := 0; ; copies++ {
			at := bytes.Index(file[from:], pair)
			if at < 0 {
				break
			}
			for i := range pair {
				offsets = append(offsets, from+at+i)
			}
			from += at + len(pair)
		}
		if copies == 0 {
			t.Fatalf("%q is not in the file", pair)
		}
		least := len(pair)
		if bytes.HasPrefix(pair, positionKey) {
			least -= len(positionKey) // under another name it is a position that is not known
		}
		if seen := turnBits(t, path, want, offsets); seen < least {
			t.Errorf("%q: %d of %d turned bits were seen", pair, seen, len(pair))
		}
		must(t, os.WriteFile(path, file, fileMode))
	}
}
