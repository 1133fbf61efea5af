package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	freshName = FileName + ".new"
	// roomBytes is what the size of a file is a multiple of; half of it at least is ahead
	// of the batches when it has been made or has grown. It is written with zeros, so that a batch changes nothing but data: its
	// sync has no block to enter anywhere.
	roomBytes = 4 << 20
	// bufferMax is what is kept of the memory that a batch was encoded in.
	bufferMax = 1 << 20
)

// log is one file of a journal. Once it could not be written or synced it is broken:
// nobody knows what of its last batch is on the disk, and a sync that works later does
// not say so either. It is then only read, up to at.
type log struct {
	disk disk
	file file
	head head
	// room is roomBytes, but in tests.
	room int64
	// at is behind the last batch that is durable.
	at place
	// size is how far the file is zeroed behind at, and stated is that of the last batch
	// that has said so.
	size, stated int64
	// compactAt is the offset from which on another file is to be made.
	compactAt int64
	broken    bool
	// settled says that the last batch has no changes: whoever wrote it had synced all
	// that comes before.
	settled bool
	// named says that the file has got its name.
	named bool

	payload, sectors []byte
}

// openLog opens a file of this layout. It writes nothing.
func openLog(d disk, f file, begin []byte, room int64) (*log, *held, error) {
	h, err := readHead(begin)
	if err != nil {
		return nil, nil, err
	}
	l := &log{disk: d, file: f, head: h, room: room}
	if l.size, err = f.Size(); err != nil {
		return nil, nil, err
	}
	all := newHeld()
	start := h.start()
	end, torn, err := scan(io.NewSectionReader(f, start.offset, l.size-start.offset), start, func(_ uint64, changes []byte) error {
		l.settled = true
		return eachChange(changes, func(kind byte, key, value []byte) error {
			l.settled = l.settled && kind == changeSize
			return all.apply(kind, key, value)
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if end.offset < h.sealed || l.size < all.size {
		return nil, nil, fmt.Errorf("%w: its end is missing", ErrDamaged)
	}
	l.at, l.stated = end, all.size
	// What is left of a batch must not be taken for a part of the next.
	l.broken, l.named = torn, true
	l.settled = l.settled && !torn
	l.compactAt = h.sealed + max(room/2, h.sealed)
	return l, all, nil
}

// newLog begins a file under another name; seal gives it its own.
func newLog(d disk, id string, room int64) (*log, error) {
	var salt [8]byte
	_, _ = rand.Read(salt[:])
	f, err := d.create(freshName)
	if err != nil {
		return nil, err
	}
	h := head{id: id, salt: binary.BigEndian.Uint64(salt[:])}
	return &log{disk: d, file: f, head: h, room: room, at: h.start(), size: firstSector}, nil
}

// begin starts a batch.
func (l *log) begin(position uint64) {
	if cap(l.payload) > bufferMax {
		l.payload, l.sectors = nil, nil
	}
	l.payload = binary.BigEndian.AppendUint64(l.payload[:0], position)
}

// write writes the batch that was begun, and does not sync it.
func (l *log) write() error {
	const sizeBytes = 11 // of a changeSize
	if need := sectorsFor(len(l.payload) + sizeBytes); l.at.offset+need > l.size {
		if err := l.grow(need); err != nil {
			return err // nothing stands there but zeros
		}
	}
	if l.size != l.stated {
		l.payload = appendSize(l.payload, l.size)
	}
	var next place
	l.sectors, next = appendSectors(l.sectors[:0], l.at, l.payload)
	if _, err := l.file.WriteAt(l.sectors, l.at.offset); err != nil {
		l.broken = true
		return err
	}
	l.at, l.stated = next, l.size
	return nil
}

// append writes the batch that was begun, and syncs it. After an error the log is
// where it was.
func (l *log) append() error {
	at, stated := l.at, l.stated
	err := l.write()
	if err == nil {
		if err = l.file.Datasync(); err != nil {
			l.broken = true
		}
	}
	if err != nil {
		l.at, l.stated = at, stated
	}
	return err
}

// again writes the batches behind the seal once more, byte by byte as they are: then a
// sync is about all of them, also one whose own sync has failed. What is left of one
// that was cut short is written over with zeros.
func (l *log) again() error {
	piece := make([]byte, scanBytes)
	for at := l.head.sealed; at < l.at.offset; at += scanBytes {
		part := piece[:min(scanBytes, l.at.offset-at)]
		if _, err := l.file.ReadAt(part, at); err != nil {
			return err
		}
		if _, err := l.file.WriteAt(part, at); err != nil {
			return err
		}
	}
	zeros := make([]byte, scanBytes)
	for at := l.at.offset; at < l.size; at += scanBytes {
		if _, err := l.file.WriteAt(zeros[:min(scanBytes, l.size-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// grow makes room for a batch and more. The size comes first: so it is never one that
// was not meant.
func (l *log) grow(need int64) error {
	size := (l.at.offset + need + l.room/2 + l.room - 1) / l.room * l.room
	if err := l.file.Truncate(size); err != nil {
		return err
	}
	zeros := make([]byte, scanBytes)
	for at := l.size; at < size; at += scanBytes {
		if _, err := l.file.WriteAt(zeros[:min(scanBytes, size-at)], at); err != nil {
			return err
		}
	}
	if err := l.file.Sync(); err != nil {
		l.broken = true
		return err
	}
	l.size = size
	return nil
}

// seal ends the making of a file: when it has its name, all of it is durable. It is
// broken if nobody knows under which name it is durable.
func (l *log) seal(position uint64) error {
	l.begin(position)
	err := l.write()
	if err == nil {
		l.head.sealed = l.at.offset
		_, err = l.file.WriteAt(l.head.bytes(), 0)
	}
	if err == nil {
		err = l.file.Sync()
	}
	if err == nil {
		err = l.disk.rename(freshName, FileName)
	}
	if err != nil {
		return errors.Join(err, l.discard())
	}
	l.named = true
	l.compactAt = l.head.sealed + max(l.room/2, l.head.sealed)
	if err = l.disk.sync(); err != nil {
		l.broken = true
	}
	return err
}

// discard gives up a file that has not got its name.
func (l *log) discard() error {
	return errors.Join(l.file.Close(), l.disk.remove(freshName))
}

// each visits the batches between two places of the log.
func (l *log) each(from, to place, visit func(position uint64, changes []byte) error) error {
	end, torn, err := scan(io.NewSectionReader(l.file, from.offset, to.offset-from.offset), from, visit)
	if err == nil && (torn || end != to) {
		err = fmt.Errorf("%w: it does not end where it did", ErrDamaged)
	}
	return err
}

// read returns all that the log holds.
func (l *log) read() (*held, error) {
	all := newHeld()
	err := l.each(l.head.start(), l.at, func(_ uint64, changes []byte) error { return eachChange(changes, all.apply) })
	return all, err
}
