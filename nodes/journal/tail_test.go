package journal

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

func same(a, b nodes.JournalContent) bool {
	return proto.Equal(a.Meta, b.Meta) && slices.EqualFunc(a.Entries, b.Entries, func(a, b *recordv1.JournalEntry) bool { return proto.Equal(a, b) })
}

// reopened is what a journal says whose file has these bytes.
func reopened(data []byte) (nodes.JournalContent, error) {
	d := newMemoryDisk(1)
	d.names[FileName] = &memoryFile{disk: d, data: data}
	l, err := openFile(d, "/no/such/directory", 8192)
	if err != nil {
		return nodes.JournalContent{}, err
	}
	all, err := l.read()
	if err != nil {
		return nodes.JournalContent{}, err
	}
	return all.content()
}

// end is the offset behind the last batch.
func end(t *testing.T, data []byte) int {
	t.Helper()
	h, err := readHead(data)
	must(t, err)
	at, torn, err := scan(bytes.NewReader(data[firstSector:]), h.start(), func(uint64, []byte) error { return nil })
	if err != nil || torn {
		t.Fatal(torn, err)
	}
	return int(at.offset)
}

func TestLastBatchThatWasCutShortIsDropped(t *testing.T) {
	d, before, all := smallDisk(t)
	data := d.names[FileName].data
	last := end(t, data)
	begin := last - 3*sectorBytes
	if got, err := reopened(bytes.Clone(data)); err != nil || !same(got, all) {
		t.Fatalf("uncut: %v, %v", got, err)
	}
	for at := begin; at < last; at++ {
		cut := bytes.Clone(data)
		clear(cut[at:])
		if got, err := reopened(cut); err != nil || !same(got, before) {
			t.Fatalf("nothing from byte %d of the batch on: %v, %v", at-begin, got, err)
		}
		// Crashes leave the size: it was synced before. A file that ends is a copy that
		// somebody has cut.
		if _, err := reopened(bytes.Clone(data[:at])); !errors.Is(err, ErrDamaged) {
			t.Fatalf("it ends at byte %d of the batch: %v", at-begin, err)
		}
	}
	for missing := range 7 { // any of the three sectors
		cut := bytes.Clone(data)
		for i := range 3 {
			if missing>>i&1 == 0 {
				clear(cut[begin+i*sectorBytes:][:sectorBytes])
			}
		}
		if got, err := reopened(cut); err != nil || !same(got, before) {
			t.Errorf("sectors %03b of the batch: %v, %v", missing, got, err)
		}
	}
}

func TestBatchThatIsMissingBeforeTheLastIsDamage(t *testing.T) {
	d, _, _ := smallDisk(t)
	data := d.names[FileName].data
	for at := firstSector; at < end(t, data)-3*sectorBytes; at += sectorBytes {
		cut := bytes.Clone(data)
		clear(cut[at : at+sectorBytes])
		if _, err := reopened(cut); !errors.Is(err, ErrDamaged) {
			t.Errorf("the sector at %d: %v", at, err)
		}
	}
}

func TestSectorsInTheWrongPlaceAreDamage(t *testing.T) {
	d, _, _ := smallDisk(t)
	data := d.names[FileName].data
	last := end(t, data)
	for name, change := range map[string]func(data []byte){
		"the last batch again":   func(data []byte) { copy(data[last:], data[last-3*sectorBytes:last]) },
		"two in the other order": func(data []byte) { copy(data[firstSector:], data[firstSector+sectorBytes:][:sectorBytes]) },
		"of another file": func(data []byte) {
			o, _, _ := smallDisk(t)
			copy(data[firstSector:last], o.names[FileName].data[firstSector:])
		},
		"garbage behind the end":   func(data []byte) { data[last+3*sectorBytes-1] = 1 },
		"nothing before the seal":  func(data []byte) { clear(data[firstSector:]) },
		"nothing behind the pages": func(data []byte) { clear(data[noticeBytes:]) },
	} {
		torn := bytes.Clone(data)
		change(torn)
		if _, err := reopened(torn); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJournalWithATurnedBitIsRefusedOrSaysTheSame turns every bit of head and
// batches, and one of each byte of the notice and of the room.
func TestJournalWithATurnedBitIsRefusedOrSaysTheSame(t *testing.T) {
	d, _, all := smallDisk(t)
	data := d.names[FileName].data
	last := end(t, data)
	for at := range data {
		for bit := range 8 {
			if (at < noticeBytes || at >= last) && bit != at%8 {
				continue
			}
			torn := bytes.Clone(data)
			torn[at] ^= 1 << bit
			got, err := reopened(torn)
			if err == nil && (at < last || !same(got, all)) {
				t.Fatalf("bit %d of byte %d: %v", bit, at, got)
			}
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Fatalf("bit %d of byte %d: %v", bit, at, err)
			}
		}
	}
}

// TestBatchBeforeACloseIsNeverTakenForOneThatWasCutShort: the empty batch behind it
// says that it was durable.
func TestBatchBeforeACloseIsNeverTakenForOneThatWasCutShort(t *testing.T) {
	dir := t.TempDir()
	j, err := onDisk(directory(dir), "", 8192)
	must(t, err)
	must(t, try(j, puts("r.a.a")))
	at := j.log.at.offset
	closeOnDisk(t, j)
	must(t, j.log.file.Close())
	f, err := directory(dir).open(FileName)
	must(t, err)
	_, err = f.WriteAt(zeroSector[:], at-sectorBytes)
	must(t, errors.Join(err, f.Close()))
	if _, err := Open(dir, ""); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v in %s", err, filepath.Base(dir))
	}
}

func FuzzScan(f *testing.F) {
	d, _, _ := smallDisk(f)
	data := d.names[FileName].data
	f.Add(data[:firstSector+6*sectorBytes], false)
	f.Add(data[firstSector:], true)
	f.Add(make([]byte, 3*sectorBytes), true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		from := place{offset: firstSector}
		if sealed && len(data) > 0 { // as if the checksums were right, so that the fuzzer comes further
			var out []byte
			out, _ = appendSectors(nil, from, append(make([]byte, positionBytes), data...))
			data = out
		} else if h, err := readHead(data); err == nil {
			from, data = h.start(), data[firstSector:]
		}
		all := newHeld()
		end, _, err := scan(bytes.NewReader(data), from, func(_ uint64, changes []byte) error { return eachChange(changes, all.apply) })
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, io.EOF) {
			t.Errorf("error %v", err)
		}
		if end.offset < from.offset || end.offset > from.offset+int64(len(data)) {
			t.Errorf("it ends at %d", end.offset)
		}
		if _, err := all.content(); err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("content: %v", err)
		}
	})
}
