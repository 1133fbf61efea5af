package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	// legacyFormat is that of the bbolt file that was the journal before.
	legacyFormat = "2"
	// legacyTimeout bounds the wait for bbolt's own lock, behind ours.
	legacyTimeout = time.Second
)

var (
	headBucket    = []byte("head")
	entriesBucket = []byte("entries")
	formatKey     = []byte("format")
	metaKey       = []byte("meta")
	tallyKey      = []byte("tally")
	idKey         = []byte("id")
	positionKey   = []byte("position")
)

// legacy is all that a journal of the layout before holds.
type legacy struct {
	// id is empty in one that was never opened with a mark, and position is 0 when it is
	// not known.
	id       string
	position uint64
	meta     []byte
	keys     [][]byte
	values   [][]byte
}

// convert makes a file of this layout of what one of the layout before holds, and
// puts it in its place. Until then the one before is not touched.
func convert(d disk, path string, room int64) (*log, error) {
	old, err := readLegacy(path)
	if err != nil {
		return nil, err
	}
	if old.id == "" {
		old.id = rand.Text()
	}
	l, err := found(d, old.id, room, old.position, func(l *log) error {
		if old.meta != nil {
			if err := l.carry(old.position, changeMeta, nil, old.meta); err != nil {
				return err
			}
		}
		for i, k := range old.keys {
			if err := l.carry(old.position, changePut, k, old.values[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("convert it from format %s: %w", legacyFormat, err)
	}
	return l, nil
}

// readLegacy reads a file without the right to change it. bbolt maps it and trusts
// what it finds: a bad page is a panic there, and reading past a torn end is a
// fault of the processor. Both are caught here and only here.
func readLegacy(path string) (old legacy, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			// What it panicked with speaks of bbolt's insides.
			old, err = legacy{}, fmt.Errorf("%w: its pages do not fit together", ErrDamaged)
		}
	}()
	db, err := bolt.Open(path, fileMode, &bolt.Options{Timeout: legacyTimeout, ReadOnly: true})
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, bolterrors.ErrTimeout):
		return legacy{}, err
	case err != nil:
		return legacy{}, fmt.Errorf("%w: it can not be read (%w)", ErrDamaged, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(old.read)
	return old, err
}

// read copies everything; what can not be decoded, or is not what was written, is
// damage.
func (old *legacy) read(tx *bolt.Tx) error {
	head, entries := tx.Bucket(headBucket), tx.Bucket(entriesBucket)
	if head == nil || entries == nil {
		return fmt.Errorf("%w: it is not the file of a journal", ErrDamaged)
	}
	switch format := string(head.Get(formatKey)); format {
	case legacyFormat:
	case Format:
		return fmt.Errorf("%w: there is nothing behind its first pages", ErrDamaged)
	default:
		return fmt.Errorf("%w: format %q, this version reads %q and %q", ErrFormat, format, Format, legacyFormat)
	}
	tally, _, err := unseal(tallyKey, head.Get(tallyKey))
	if err != nil {
		return err
	}
	var count, sums, metaSum uint64
	if sealed := head.Get(metaKey); sealed != nil {
		value, sum, err := unseal(metaKey, sealed)
		if err != nil {
			return err
		}
		old.meta, metaSum = append([]byte{}, value...), uint64(sum)
	}
	err = entries.ForEach(func(k, sealed []byte) error {
		value, sum, err := unseal(k, sealed)
		if err == nil {
			_, err = decodeEntry(k, value)
		}
		if err != nil {
			return err
		}
		old.keys, old.values = append(old.keys, bytes.Clone(k)), append(old.values, bytes.Clone(value))
		count, sums = count+1, sums+uint64(sum)
		return nil
	})
	if err != nil {
		return err
	}
	var have []byte
	for _, number := range []uint64{count, sums, metaSum} {
		have = binary.BigEndian.AppendUint64(have, number)
	}
	if !bytes.Equal(have, tally) {
		return fmt.Errorf("%w: what it holds is not all that was written", ErrDamaged)
	}
	if _, err := (&held{meta: old.meta}).content(); err != nil {
		return err
	}
	return old.readIdentity(head, tally)
}

// readIdentity reads id and position. The position stands with the tally that it was
// written with; beside another it is that of a version that knew no positions.
func (old *legacy) readIdentity(head *bolt.Bucket, tally []byte) error {
	if sealed := head.Get(idKey); sealed != nil {
		value, _, err := unseal(idKey, sealed)
		if err != nil {
			return err
		}
		if len(value) > idMax {
			return fmt.Errorf("%w: its id has %d bytes", ErrDamaged, len(value))
		}
		old.id = string(value)
	}
	if sealed := head.Get(positionKey); sealed != nil {
		value, _, err := unseal(positionKey, sealed)
		if err != nil {
			return err
		}
		if len(value) == 8+len(tally) && bytes.Equal(value[8:], tally) {
			old.position = binary.BigEndian.Uint64(value)
		}
	}
	return nil
}

func legacySum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// unseal returns a value, if it is the one whose checksum, with this key, stands
// before it.
func unseal(key, sealed []byte) (value []byte, sum uint32, err error) {
	if len(sealed) < sumBytes {
		return nil, 0, fmt.Errorf("%w: a value is too short", ErrDamaged)
	}
	sum, value = binary.BigEndian.Uint32(sealed), sealed[sumBytes:]
	if sum != legacySum(key, value) {
		return nil, 0, fmt.Errorf("%w: a checksum does not match", ErrDamaged)
	}
	return value, sum, nil
}
