package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
)

// The file begins with a notice to versions that know the journal as a bbolt file:
// a small one, of three pages, which says that it has another format, and which they
// refuse for that. Behind it stands the head, written once before the file gets its
// name, and then the batches.
const (
	noticePage  = 1024
	noticeBytes = 3 * noticePage
	headBytes   = 1024
	// firstSector is where the batches begin.
	firstSector = noticeBytes + headBytes

	magic     = "errand journal3\n"
	saltAt    = len(magic)
	sealedAt  = saltAt + 8
	idAt      = sealedAt + 8
	idMax     = 64
	headSumAt = headBytes - sumBytes
)

// head is what a file says of itself.
type head struct {
	// id is the name that the journal has had since it was made; a copy has the same.
	id string
	// salt tells this file's sectors from those of every other.
	salt uint64
	// sealed is up to where the file was synced before it got its name: nothing before
	// that may be missing.
	sealed int64
}

// start is where the first batch begins.
func (h head) start() place {
	sum := crc32.Checksum(binary.BigEndian.AppendUint64([]byte(magic), h.salt), castagnoli)
	return place{offset: firstSector, chain: crc32.Update(sum, castagnoli, []byte(h.id))}
}

// bytes is all that stands before the batches.
func (h head) bytes() []byte {
	out := make([]byte, headBytes)
	copy(out, magic)
	binary.BigEndian.PutUint64(out[saltAt:], h.salt)
	binary.BigEndian.PutUint64(out[sealedAt:], uint64(h.sealed)) //nolint:gosec // not negative
	out[idAt] = byte(copy(out[idAt+1:idAt+1+idMax], h.id))       //nolint:gosec // at most idMax
	binary.BigEndian.PutUint32(out[headSumAt:], crc32.Checksum(out[:headSumAt], castagnoli))
	return append(notice(), out...)
}

// isAppended tells from how a file begins whether it is one of this layout.
func isAppended(begin []byte) bool {
	return len(begin) >= noticeBytes+len(magic) && string(begin[noticeBytes:noticeBytes+len(magic)]) == magic
}

// readHead reads what stands before the batches of a file of this layout.
func readHead(begin []byte) (head, error) {
	if len(begin) < firstSector {
		return head{}, fmt.Errorf("%w: it ends in its head", ErrDamaged)
	}
	text := begin[noticeBytes:firstSector]
	if binary.BigEndian.Uint32(text[headSumAt:]) != crc32.Checksum(text[:headSumAt], castagnoli) || text[idAt] > idMax {
		return head{}, fmt.Errorf("%w: its head is not what was written", ErrDamaged)
	}
	h := head{
		salt: binary.BigEndian.Uint64(text[saltAt:]), sealed: int64(binary.BigEndian.Uint64(text[sealedAt:])), //nolint:gosec // checked
		id: string(text[idAt+1 : idAt+1+int(text[idAt])]),
	}
	if !bytes.Equal(begin[:firstSector], h.bytes()) {
		return head{}, fmt.Errorf("%w: its first pages are not what was written", ErrDamaged)
	}
	return h, nil
}

// notice is the bbolt file: two meta pages and the root, a leaf with two buckets in
// it, of which one names the format. It is always the same.
func notice() []byte {
	little := binary.LittleEndian
	page := func(id uint64, flags, count uint16) []byte {
		out := little.AppendUint64(nil, id)
		return little.AppendUint32(little.AppendUint16(little.AppendUint16(out, flags), count), 0)
	}
	const (
		leaf, meta   = 2, 4
		elementBytes = 16
		isBucket     = 1
	)
	type pair struct {
		flags      uint32
		key, value []byte
	}
	leafOf := func(id uint64, pairs ...pair) []byte {
		out := page(id, leaf, uint16(len(pairs))) //nolint:gosec // at most two
		var data []byte
		for i, p := range pairs {
			at := (len(pairs)-i)*elementBytes + len(data)
			for _, number := range []int{int(p.flags), at, len(p.key), len(p.value)} {
				out = little.AppendUint32(out, uint32(number)) //nolint:gosec // within a page
			}
			data = append(append(data, p.key...), p.value...)
		}
		return append(out, data...)
	}
	bucket := func(pairs ...pair) []byte { return append(make([]byte, 16), leafOf(0, pairs...)...) }
	out := make([]byte, noticeBytes)
	for id := range uint64(2) {
		text := page(id, meta, 0)
		begin := len(text)
		for _, number := range []uint32{0xed0cdaed, 2, noticePage, 0} {
			text = little.AppendUint32(text, number)
		}
		for _, number := range []uint64{2, 0, math.MaxUint64, 3, id} { // root, its sequence, no free list, pages, transaction
			text = little.AppendUint64(text, number)
		}
		sum := fnv.New64a()
		_, _ = sum.Write(text[begin:])
		copy(out[id*noticePage:], little.AppendUint64(text, sum.Sum64()))
	}
	copy(out[2*noticePage:], leafOf(2,
		pair{isBucket, entriesBucket, bucket()}, pair{isBucket, headBucket, bucket(pair{0, formatKey, []byte(Format)})}))
	return out
}
