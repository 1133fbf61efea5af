package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// checksumBytes is what stands before each value: the CRC-32C of key and value.
const checksumBytes = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// seal puts the checksum before a value.
func seal(key, value []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, checksumBytes+len(value)), checksum(key, value)), value...)
}

// unseal returns the value, if it is the one that was sealed under this key.
func unseal(key, sealed []byte) (value []byte, sum uint32, err error) {
	if len(sealed) < checksumBytes {
		return nil, 0, fmt.Errorf("%w: a value is too short", ErrDamaged)
	}
	sum, value = binary.BigEndian.Uint32(sealed), sealed[checksumBytes:]
	if sum != checksum(key, value) {
		return nil, 0, fmt.Errorf("%w: a checksum does not match", ErrDamaged)
	}
	return value, sum, nil
}

// tally says what there is: how many entries, the sum of their checksums, and the
// checksum of the meta record, 0 without one. What is gone, or back, shows in it.
type tally struct{ entries, sum, meta uint64 }

const tallyBytes = 24

func (t tally) bytes() []byte {
	value := make([]byte, 0, tallyBytes)
	for _, number := range []uint64{t.entries, t.sum, t.meta} {
		value = binary.BigEndian.AppendUint64(value, number)
	}
	return value
}

func (t tally) store(head *bolt.Bucket) error {
	return head.Put(tallyKey, seal(tallyKey, t.bytes()))
}

// loadPosition returns how many commits the journal has seen. It is 0 when that is
// not known: the position stands with the tally that it was written with, and a
// version that knows no positions has left it beside one of its own.
func (t tally) loadPosition(head *bolt.Bucket) (uint64, error) {
	sealed := head.Get(positionKey)
	if sealed == nil {
		return 0, nil
	}
	value, _, err := unseal(positionKey, sealed)
	if err != nil {
		return 0, err
	}
	if len(value) != 8+tallyBytes || !bytes.Equal(value[8:], t.bytes()) {
		return 0, nil
	}
	return binary.BigEndian.Uint64(value), nil
}

func (t tally) storePosition(head *bolt.Bucket, position uint64) error {
	value := append(binary.BigEndian.AppendUint64(nil, position), t.bytes()...)
	return head.Put(positionKey, seal(positionKey, value))
}

// identity returns the name that the journal has had since it was first opened with
// a mark; a copy has the same.
func identity(db *bolt.DB) (id string, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		sealed := tx.Bucket(headBucket).Get(idKey)
		if sealed == nil {
			return nil
		}
		value, _, err := unseal(idKey, sealed)
		id = string(value)
		return err
	})
	if err != nil || id != "" {
		return id, err
	}
	id = rand.Text()
	return id, db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(headBucket).Put(idKey, seal(idKey, []byte(id)))
	})
}

func loadTally(head *bolt.Bucket) (tally, error) {
	value, _, err := unseal(tallyKey, head.Get(tallyKey))
	if err != nil {
		return tally{}, err
	}
	if len(value) != tallyBytes {
		return tally{}, fmt.Errorf("%w: the tally has %d bytes", ErrDamaged, len(value))
	}
	return tally{
		entries: binary.BigEndian.Uint64(value), sum: binary.BigEndian.Uint64(value[8:]), meta: binary.BigEndian.Uint64(value[16:]),
	}, nil
}

func (t *tally) add(sum uint32) {
	t.entries++
	t.sum += uint64(sum)
}

func (t *tally) remove(sum uint32) {
	t.entries--
	t.sum -= uint64(sum)
}

// forget takes the entry of a key, if there is one, out of the tally.
func (t *tally) forget(entries *bolt.Bucket, key []byte) error {
	sealed := entries.Get(key)
	if sealed == nil {
		return nil
	}
	_, sum, err := unseal(key, sealed)
	if err == nil {
		t.remove(sum)
	}
	return err
}

// apply makes a batch of changes part of a transaction and returns the position
// behind it, which is also behind the one that was marked.
func apply(tx *bolt.Tx, batch []request, marked uint64) (position uint64, err error) {
	entries, head := tx.Bucket(entriesBucket), tx.Bucket(headBucket)
	t, err := loadTally(head)
	if err != nil {
		return 0, err
	}
	if position, err = t.loadPosition(head); err != nil {
		return 0, err
	}
	position = max(position, marked) + 1
	for _, r := range batch {
		if r.change.Meta != nil {
			value := records.Encode(r.change.Meta)
			t.meta = uint64(checksum(metaKey, value))
			if err := head.Put(metaKey, seal(metaKey, value)); err != nil {
				return 0, err
			}
		}
		for _, entry := range r.change.Puts {
			if err := put(entries, &t, key(nodes.KeyOf(entry)), records.Encode(entry)); err != nil {
				return 0, err
			}
		}
		for _, of := range r.change.Deletes {
			k := key(of)
			if err := t.forget(entries, k); err != nil {
				return 0, err
			}
			if err := entries.Delete(k); err != nil {
				return 0, err
			}
		}
	}
	return position, errors.Join(t.store(head), t.storePosition(head, position))
}

func put(entries *bolt.Bucket, t *tally, key, value []byte) error {
	if err := t.forget(entries, key); err != nil {
		return err
	}
	t.add(checksum(key, value))
	return entries.Put(key, seal(key, value))
}

// read decodes everything and says at which position it is; what can not be
// decoded, or is not what was written, is damage.
func read(db *bolt.DB) (content nodes.JournalContent, position uint64, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		head, entries := tx.Bucket(headBucket), tx.Bucket(entriesBucket)
		if head == nil || entries == nil {
			return fmt.Errorf("%w: it is not the file of a journal", ErrDamaged)
		}
		if format := string(head.Get(formatKey)); format != Format {
			return fmt.Errorf("%w: format %q, this version reads %q", ErrFormat, format, Format)
		}
		want, err := loadTally(head)
		if err != nil {
			return err
		}
		var have tally
		if content.Meta, have.meta, err = readMeta(head); err != nil {
			return err
		}
		if content.Entries, err = readEntries(entries, &have); err != nil {
			return err
		}
		if have != want {
			return fmt.Errorf("%w: what it holds is not all that was written", ErrDamaged)
		}
		position, err = have.loadPosition(head)
		return err
	})
	if err != nil {
		return nodes.JournalContent{}, 0, err
	}
	return content, position, nil
}

// readMeta returns the meta record and its checksum, nil in a journal that was
// never written.
func readMeta(head *bolt.Bucket) (*recordv1.JournalMeta, uint64, error) {
	sealed := head.Get(metaKey)
	if sealed == nil {
		return nil, 0, nil
	}
	value, sum, err := unseal(metaKey, sealed)
	if err != nil {
		return nil, 0, err
	}
	meta := &recordv1.JournalMeta{}
	if err := proto.Unmarshal(value, meta); err != nil {
		return nil, 0, fmt.Errorf("%w: the head can not be decoded", ErrDamaged)
	}
	return meta, uint64(sum), nil
}

// readEntries returns the entries, in order, and adds them to a tally.
func readEntries(bucket *bolt.Bucket, have *tally) (entries []*recordv1.JournalEntry, err error) {
	err = bucket.ForEach(func(k, sealed []byte) error {
		value, sum, err := unseal(k, sealed)
		if err != nil {
			return err
		}
		entry := &recordv1.JournalEntry{}
		if err := proto.Unmarshal(value, entry); err != nil {
			return fmt.Errorf("%w: an entry can not be decoded", ErrDamaged)
		}
		if string(key(nodes.KeyOf(entry))) != string(k) {
			return fmt.Errorf("%w: the entry of run %s is in the place of another", ErrDamaged, entry.GetRun())
		}
		entries = append(entries, entry)
		have.add(sum)
		return nil
	})
	return entries, err
}
