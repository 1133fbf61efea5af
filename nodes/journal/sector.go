package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A batch of changes takes whole sectors: what was acknowledged is never written
// over. A disk writes a sector or leaves it as it was, in any order until a sync, so
// each has a checksum of its own and ends with a byte that is not 0. By that the three
// things that may stand behind the last batch are told apart: nothing, a batch whose
// write was cut short, and damage. The checksum begins with that of all batches before
// and with the sector's offset; a sector in another place, or of another file, is none.
//
//	0    length of the data, and sectorLast in the last of its batch
//	2    data; zeros follow
//	507  checksum of all before
//	511  sectorMark
const (
	sectorBytes = 512
	sectorData  = sumAt - lengthBytes
	lengthBytes = 2
	sumAt       = sectorBytes - sumBytes - 1
	sumBytes    = 4
	// sectorMark has more than one bit: no single one that turns makes it 0.
	sectorMark = 0xe5
	sectorLast = 0x8000
	// positionBytes begin a batch.
	positionBytes = 8
	// scanBytes is the size of a read.
	scanBytes = 64 << 10
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeroSector [sectorBytes]byte
)

// place is where a batch begins: its offset, the checksum over all batches before,
// and the position of the last of those.
type place struct {
	offset   int64
	chain    uint32
	position uint64
}

func sectorSum(chain uint32, offset int64, sector []byte) uint32 {
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(offset)) //nolint:gosec // offsets are not negative
	return crc32.Update(crc32.Update(chain, castagnoli, at[:]), castagnoli, sector[:sumAt])
}

// sectorsFor is the room in bytes that a payload takes.
func sectorsFor(payload int) int64 {
	return int64(max(1, (payload+sectorData-1)/sectorData)) * sectorBytes
}

// appendSectors appends a batch and returns the place behind it. The payload begins
// with the position.
func appendSectors(out []byte, at place, payload []byte) ([]byte, place) {
	next := at
	next.position = binary.BigEndian.Uint64(payload)
	for len(payload) > 0 {
		n := min(len(payload), sectorData)
		length := uint16(n)
		if n == len(payload) {
			length |= sectorLast
		}
		out = append(out, zeroSector[:]...)
		sector := out[len(out)-sectorBytes:]
		binary.BigEndian.PutUint16(sector, length)
		copy(sector[lengthBytes:], payload[:n])
		binary.BigEndian.PutUint32(sector[sumAt:], sectorSum(at.chain, next.offset, sector))
		sector[sectorBytes-1] = sectorMark
		next.chain = crc32.Update(next.chain, castagnoli, sector[sumAt:sumAt+sumBytes])
		next.offset += sectorBytes
		payload = payload[n:]
	}
	return out, next
}

// errNotWritten says of a sector that no write of it has come to its end.
var errNotWritten = errors.New("not written")

// openSector returns the data of a sector of the batch that begins at a place.
func openSector(at place, offset int64, sector []byte) (data []byte, last bool, err error) {
	if sector[sectorBytes-1] == 0 {
		return nil, false, errNotWritten
	}
	length := binary.BigEndian.Uint16(sector)
	last = length&sectorLast != 0
	n := int(length &^ sectorLast)
	if sector[sectorBytes-1] != sectorMark || n == 0 || n > sectorData || !last && n != sectorData ||
		binary.BigEndian.Uint32(sector[sumAt:]) != sectorSum(at.chain, offset, sector) {
		return nil, false, fmt.Errorf("%w: the sector at %d is not what was written", ErrDamaged, offset)
	}
	return sector[lengthBytes : lengthBytes+n], last, nil
}

// scan reads batches from a place on, which is where the reader begins, and has each
// visited: the changes are valid until visit returns. It returns the place behind the
// last one. Behind that is nothing, or, if torn, what came to the disk of a batch that
// nobody was told of. All else is damage.
func scan(r io.Reader, from place, visit func(position uint64, changes []byte) error) (end place, torn bool, err error) {
	end = from
	var (
		buffered = bufio.NewReaderSize(r, scanBytes)
		sector   [sectorBytes]byte
		payload  []byte
		tail     bool
		chain    = from.chain
	)
	for offset := from.offset; ; offset += sectorBytes {
		switch _, err := io.ReadFull(buffered, sector[:]); {
		case errors.Is(err, io.EOF):
			return end, torn || len(payload) > 0, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return end, false, fmt.Errorf("%w: it ends within a sector", ErrDamaged)
		case err != nil:
			return end, false, err
		}
		data, last, err := openSector(end, offset, sector[:])
		if errors.Is(err, errNotWritten) {
			tail = true
			torn = torn || !bytes.Equal(sector[:], zeroSector[:])
			continue
		}
		if err != nil {
			return end, false, err
		}
		if tail {
			torn = true
			continue
		}
		payload = append(payload, data...)
		chain = crc32.Update(chain, castagnoli, sector[sumAt:sumAt+sumBytes])
		if !last {
			continue
		}
		if len(payload) < positionBytes {
			return end, false, fmt.Errorf("%w: the batch before %d has no position", ErrDamaged, offset)
		}
		end = place{offset: offset + sectorBytes, chain: chain, position: binary.BigEndian.Uint64(payload)}
		if err := visit(end.position, payload[positionBytes:]); err != nil {
			return end, false, err
		}
		payload = payload[:0]
	}
}
