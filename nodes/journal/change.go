package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// The kinds of change in a batch. Each has a key and a value, which may be empty.
const (
	changeMeta = 1 + iota
	changePut
	changeDelete
	// changeSize says how large the file is: one that is smaller was cut.
	changeSize
)

// key is the place of an entry: run, attempt and placement in order.
func key(of nodes.PlacementKey) []byte {
	out := make([]byte, 0, len(of.Run)+9)
	out = append(append(out, of.Run...), 0)
	out = binary.BigEndian.AppendUint32(out, uint32(of.Attempt))    //nolint:gosec // bits, not a quantity
	return binary.BigEndian.AppendUint32(out, uint32(of.Placement)) //nolint:gosec // bits, not a quantity
}

// appendChange appends one change of a kind.
func appendChange(out []byte, kind byte, key, value []byte) []byte {
	out = binary.AppendUvarint(append(out, kind), uint64(len(key)))
	out = binary.AppendUvarint(append(out, key...), uint64(len(value)))
	return append(out, value...)
}

func appendSize(out []byte, size int64) []byte {
	return appendChange(out, changeSize, nil, binary.BigEndian.AppendUint64(nil, uint64(size))) //nolint:gosec // not negative
}

// appendChanges appends all of a change of the port.
func appendChanges(out []byte, change nodes.JournalChange) []byte {
	if change.Meta != nil {
		out = appendChange(out, changeMeta, nil, records.Encode(change.Meta))
	}
	for _, entry := range change.Puts {
		out = appendChange(out, changePut, key(nodes.KeyOf(entry)), records.Encode(entry))
	}
	for _, of := range change.Deletes {
		out = appendChange(out, changeDelete, key(of), nil)
	}
	return out
}

// eachChange visits the changes of a batch.
func eachChange(changes []byte, visit func(kind byte, key, value []byte) error) error {
	take := func() (part []byte, ok bool) {
		n, used := binary.Uvarint(changes)
		if used <= 0 || n > uint64(len(changes)-used) { //nolint:gosec // n is from 1 to what there is
			return nil, false
		}
		part, changes = changes[used:used+int(n)], changes[used+int(n):] //nolint:gosec // at most the length
		return part, true
	}
	for len(changes) > 0 {
		kind := changes[0]
		changes = changes[1:]
		key, ok := take()
		value, ok2 := take()
		if !ok || !ok2 || kind < changeMeta || kind > changeSize || kind == changeSize && len(value) != 8 {
			return fmt.Errorf("%w: a change can not be decoded", ErrDamaged)
		}
		if err := visit(kind, key, value); err != nil {
			return err
		}
	}
	return nil
}

// held is what the changes up to some place leave.
type held struct {
	meta    []byte
	entries map[string][]byte
	// size is the last that a batch has stated.
	size int64
}

func newHeld() *held { return &held{entries: map[string][]byte{}} }

func (h *held) apply(kind byte, key, value []byte) error {
	switch kind {
	case changeMeta:
		h.meta = bytes.Clone(value)
		if h.meta == nil {
			h.meta = []byte{}
		}
	case changePut:
		h.entries[string(key)] = bytes.Clone(value)
	case changeDelete:
		delete(h.entries, string(key))
	case changeSize:
		h.size = max(h.size, int64(binary.BigEndian.Uint64(value))) //nolint:gosec // an absurd one is damage either way
	}
	return nil
}

// content decodes what is held, in order; what can not be decoded is damage.
func (h *held) content() (content nodes.JournalContent, err error) {
	if h.meta != nil {
		content.Meta = &recordv1.JournalMeta{}
		if err := proto.Unmarshal(h.meta, content.Meta); err != nil {
			return nodes.JournalContent{}, fmt.Errorf("%w: the head can not be decoded", ErrDamaged)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(h.entries)) {
		entry, err := decodeEntry([]byte(k), h.entries[k])
		if err != nil {
			return nodes.JournalContent{}, err
		}
		content.Entries = append(content.Entries, entry)
	}
	return content, nil
}

func decodeEntry(k, value []byte) (*recordv1.JournalEntry, error) {
	entry := &recordv1.JournalEntry{}
	if err := proto.Unmarshal(value, entry); err != nil {
		return nil, fmt.Errorf("%w: an entry can not be decoded", ErrDamaged)
	}
	if !bytes.Equal(key(nodes.KeyOf(entry)), k) {
		return nil, fmt.Errorf("%w: the entry of run %s is in the place of another", ErrDamaged, entry.GetRun())
	}
	return entry, nil
}
