package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
)

// seal puts the checksum before a value of the layout before.
func seal(key, value []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, legacySum(key, value)), value...)
}

// bucketLine is one pair of the golden file of the layout before.
type bucketLine struct{ bucket, key, value []byte }

func golden2(t *testing.T) (lines []bucketLine) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "format-2.txt"))
	must(t, err)
	defer f.Close()
	for text := bufio.NewScanner(f); text.Scan(); {
		part := strings.Fields(text.Text())
		k, err := hex.DecodeString(part[1])
		must(t, err)
		v, err := hex.DecodeString(part[2])
		must(t, err)
		lines = append(lines, bucketLine{[]byte(part[0]), k, v})
	}
	return lines
}

// writeLegacy makes a file of the layout before.
func writeLegacy(t *testing.T, dir string, lines []bucketLine) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, FileName), fileMode, &bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error {
		for _, line := range lines {
			bucket, err := tx.CreateBucketIfNotExists(line.bucket)
			if err != nil {
				return err
			}
			if err := bucket.Put(line.key, line.value); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, db.Close())
}

func isGolden2(t *testing.T, content nodes.JournalContent) {
	t.Helper()
	if content.Meta.GetUuid() != "0e2" || len(content.Entries) != 2 || content.Entries[0].GetRun() != "r.default.abc" ||
		content.Entries[0].GetExit().GetCode() != 143 || content.Entries[1].GetVoid().GetMessage() != "no such image" {
		t.Errorf("it holds %v", content)
	}
}

func TestJournalOfTheLayoutBeforeIsConverted(t *testing.T) {
	dir := t.TempDir()
	writeLegacy(t, dir, golden2(t))
	for range 2 { // the second time it is not
		j, err := Open(dir, "")
		must(t, err)
		isGolden2(t, load(t, j))
		if j.log.at.position < 2 {
			t.Errorf("position %d: it had two commits", j.log.at.position)
		}
		must(t, j.Close())
	}
	life(t, dir, "", func(j *Journal) { put1(t, j, "r.a.b") })
	if got := len(load(t, mustOpen(t, dir)).Entries); got != 3 {
		t.Errorf("%d entries", got)
	}
}

// dying is a disk whose process ends at a call: nothing is done from there on.
type dying struct {
	disk
	calls int
}

func (d *dying) step() error {
	if d.calls--; d.calls < 0 {
		return errDead
	}
	return nil
}

func (d *dying) create(name string) (file, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f, err := d.disk.create(name)
	return dyingFile{f, d}, err
}

func (d *dying) rename(from, to string) error {
	return errors.Join(d.step(), func() error {
		if d.calls < 0 {
			return nil
		}
		return d.disk.rename(from, to)
	}())
}

func (d *dying) remove(name string) error {
	if d.calls < 0 {
		return errDead
	}
	return d.disk.remove(name)
}

func (d *dying) sync() error {
	if err := d.step(); err != nil {
		return err
	}
	return d.disk.sync()
}

type dyingFile struct {
	file
	of *dying
}

func (f dyingFile) WriteAt(p []byte, at int64) (int, error) {
	if err := f.of.step(); err != nil {
		return f.file.WriteAt(p[:len(p)/2], at)
	}
	return f.file.WriteAt(p, at)
}

func (f dyingFile) Sync() error {
	if err := f.of.step(); err != nil {
		return err
	}
	return f.file.Sync()
}

func TestConversionThatEndsAtAnyStepIsMadeAgain(t *testing.T) {
	for calls := range 100 {
		dir := t.TempDir()
		writeLegacy(t, dir, golden2(t))
		l, err := openFile(&dying{directory(dir), calls}, filepath.Join(dir, FileName), 8192)
		if l != nil {
			must(t, l.file.Close())
		}
		j, again := Open(dir, "")
		if again != nil {
			t.Fatalf("after %d calls: %v", calls, again)
		}
		isGolden2(t, load(t, j))
		must(t, j.Close())
		if _, err := os.Stat(filepath.Join(dir, freshName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %d calls: %v", calls, err)
		}
		if err == nil {
			if calls < 5 {
				t.Errorf("%d calls are all", calls)
			}
			return
		}
	}
	t.Error("it never ends")
}

func TestMarkOfTheLayoutBeforeGoesOn(t *testing.T) {
	id, tally := []byte("an id"), []byte{}
	lines := golden2(t)
	for i := range lines {
		if bytes.Equal(lines[i].key, tallyKey) {
			tally = lines[i].value[sumBytes:]
		}
	}
	position := func(n uint64) []byte {
		return seal(positionKey, append(binary.BigEndian.AppendUint64(nil, n), tally...))
	}
	for _, test := range []struct {
		name     string
		position []byte
		reverted bool
	}{
		{"as far as the mark", position(9), false},
		{"less far", position(8), true},
		{"a position of another state", seal(positionKey, append(binary.BigEndian.AppendUint64(nil, 3), make([]byte, len(tally))...)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, marks := t.TempDir(), filepath.Join(t.TempDir(), "run")
			m, err := openMark(marks, string(id))
			must(t, err)
			m.advance(9)
			must(t, m.close())
			writeLegacy(t, dir, append(golden2(t), bucketLine{headBucket, idKey, seal(idKey, id)}, bucketLine{headBucket, positionKey, test.position}))
			for range 2 {
				life(t, dir, marks, func(j *Journal) {
					if got := load(t, j).Reverted; got != test.reverted {
						t.Errorf("reverted: %v", got)
					}
				})
			}
			life(t, dir, marks, func(j *Journal) { put1(t, j, "r.a.d") })
			life(t, dir, marks, func(j *Journal) {
				if load(t, j).Reverted || j.log.at.position != 10 {
					t.Errorf("position %d after a write", j.log.at.position)
				}
			})
		})
	}
}

func TestDamagedJournalOfTheLayoutBeforeIsRefused(t *testing.T) {
	k := key(nodes.PlacementKey{Run: "r.a.b", Attempt: 2, Placement: 1})
	for name, change := range map[string]func(lines []bucketLine) []bucketLine{
		"an entry that is none": func(l []bucketLine) []bucketLine {
			return append(l, bucketLine{entriesBucket, k, seal(k, []byte{0xff})})
		},
		"an entry without a checksum": func(l []bucketLine) []bucketLine { return append(l, bucketLine{entriesBucket, k, []byte{1}}) },
		"an entry that is gone":       func(l []bucketLine) []bucketLine { return l[:len(l)-1] },
		"an entry that is back": func(l []bucketLine) []bucketLine {
			return append(l, bucketLine{entriesBucket, k, seal(k, records.Encode(entry("r.a.b", 2, 1)))})
		},
		"an entry in the place of another": func(l []bucketLine) []bucketLine {
			return append(l, bucketLine{entriesBucket, k, seal(k, records.Encode(entry("r.a.c", 2, 1)))})
		},
		"a head that is gone":                 func(l []bucketLine) []bucketLine { return append(l, bucketLine{headBucket, tallyKey, nil}) },
		"a bit that is turned in every value": func(l []bucketLine) []bucketLine { l[len(l)-1].value[9] ^= 1; return l },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeLegacy(t, dir, change(golden2(t)))
			before, err := os.ReadFile(filepath.Join(dir, FileName))
			must(t, err)
			if _, err := Open(dir, ""); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "--accept-loss-of journal") {
				t.Errorf("error %v", err)
			}
			after, err := os.ReadFile(filepath.Join(dir, FileName))
			must(t, err)
			if !bytes.Equal(before, after) {
				t.Error("it was changed")
			}
		})
	}
	for _, size := range []int64{3 * 4096, 5000, 4096} {
		dir := t.TempDir()
		writeLegacy(t, dir, golden2(t))
		must(t, os.Truncate(filepath.Join(dir, FileName), size))
		if _, err := Open(dir, ""); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d: %v", size, err)
		}
	}
}

// TestJournalOfAnotherFormatIsRefusedAsThat: one from before, and what the version
// before sees in one of this layout, which it reads as it reads its own.
func TestJournalOfAnotherFormatIsRefusedAsThat(t *testing.T) {
	dir := t.TempDir()
	writeLegacy(t, dir, []bucketLine{{headBucket, formatKey, []byte("1")}, {entriesBucket, []byte("k"), []byte("v")}})
	if _, err := Open(dir, ""); !errors.Is(err, ErrFormat) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), `format "1"`) {
		t.Errorf("error %v", err)
	}
	dir = t.TempDir()
	life(t, dir, "", func(j *Journal) { put1(t, j, "r.a.b") })
	db, err := bolt.Open(filepath.Join(dir, FileName), fileMode, &bolt.Options{ReadOnly: true})
	must(t, err)
	must(t, db.View(func(tx *bolt.Tx) error {
		if tx.Bucket(entriesBucket) == nil || string(tx.Bucket(headBucket).Get(formatKey)) != Format {
			return fmt.Errorf("format %q", tx.Bucket(headBucket).Get(formatKey))
		}
		for err := range tx.Check() {
			return err
		}
		return nil
	}))
	must(t, db.Close())
}
