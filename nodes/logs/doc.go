// Package logs is the log of an attempt on the disk of its node: what a command
// wrote to stdout and stderr, byte for byte, with the time and the stream.
//
// # Format
//
// A log has a path (Path names it) and is made of segment files. The first one is
// PATH.log. Only a log that needs more of them has a directory, PATH: it holds the
// others, each named by the offset of its first byte in the whole log, as 20 decimal
// digits, and ".log"; so offsets grow for ever and survive rotation, and a name is
// never used twice. Logs of earlier versions have their first segment in the directory
// too. A segment is a sequence of records; a record is a header of 20 bytes, in little
// endian, and data:
//
//	0   1  magic, 0xE7
//	1   1  kind: 1 stdout, 2 stderr, 3 end mark, 4 gap
//	2   1  flags: 1 = goes on with a line that an earlier record began
//	3   1  zero
//	4   4  length of the data in bytes, at most MaxRecord
//	8   8  time in nanoseconds since 1970
//	16  4  CRC-32C of bytes 0 to 15 and the data
//
// An output record holds what one read returned: any number of lines, the last one
// perhaps unfinished. A gap holds the number of bytes (8 bytes) that could not be
// written. An end mark holds the number of bytes (8 bytes) that the log lost
// altogether, and 1 byte that is 1 if the log is complete. An end mark that more
// records follow is that of an earlier placement and means nothing.
//
// The Writer keeps the newest segments only. A Reader tolerates what a crash
// leaves: a torn record ends its segment. Nothing here is synced to disk; a log may
// lose its last seconds with the power, and then has no end mark.
package logs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/nodes/sandbox/guest/crc32c"
)

// Stream is where bytes were written to.
type Stream uint8

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

const (
	kindEnd = 3
	kindGap = 4

	flagContinues = 1

	magicByte  = 0xE7
	headerSize = 20
	// MaxRecord is the most data that a record may hold, in bytes.
	MaxRecord = 64 << 10

	suffix = ".log"
)

// Path returns the path of an attempt's log in the directory of all logs.
func Path(root, run string, attempt int32) string {
	return filepath.Join(root, run+"."+strconv.Itoa(int(attempt)))
}

func putInt64(b []byte, v int64) { binary.LittleEndian.PutUint64(b, uint64(v)) } //nolint:gosec // the same bits
func int64At(b []byte) int64     { return int64(binary.LittleEndian.Uint64(b)) } //nolint:gosec // the same bits

// putHeader fills in the header that stands before data in record.
func putHeader(record []byte, kind, flags byte, at int64) {
	record[0], record[1], record[2], record[3] = magicByte, kind, flags, 0
	binary.LittleEndian.PutUint32(record[4:], uint32(len(record)-headerSize)) //nolint:gosec // at most MaxRecord
	putInt64(record[8:], at)
	sum := crc32c.Update(crc32c.Sum(record[:16]), record[headerSize:])
	binary.LittleEndian.PutUint32(record[16:], sum)
}

type header struct {
	kind, flags byte
	length      int
	at          time.Time
	sum         uint32
}

// parseHeader reads a header; ok is false if it can not be one.
func parseHeader(b []byte) (h header, ok bool) {
	length := binary.LittleEndian.Uint32(b[4:])
	h = header{
		kind: b[1], flags: b[2], length: int(length),
		at:  time.Unix(0, int64At(b[8:])),
		sum: binary.LittleEndian.Uint32(b[16:]),
	}
	if b[0] != magicByte || b[3] != 0 || length > MaxRecord {
		return h, false
	}
	switch h.kind {
	case byte(Stdout), byte(Stderr):
		return h, true
	case kindEnd:
		return h, length == 9
	case kindGap:
		return h, length == 8
	}
	return h, false
}

// valid checks a whole record against its sum.
func (h header) valid(record []byte) bool {
	return h.sum == crc32c.Update(crc32c.Sum(record[:16]), record[headerSize:])
}

func segmentName(start int64) string { return fmt.Sprintf("%020d%s", start, suffix) }

// segmentPath returns where a segment is made.
func segmentPath(path string, start int64) string {
	if start == 0 {
		return path + suffix
	}
	return filepath.Join(path, segmentName(start))
}

// found is a segment that is there.
type found struct {
	start int64
	path  string
}

// segments returns a log's segments, in order. The error is fs.ErrNotExist when there
// is nothing of the log at all.
func segments(path string) ([]found, error) {
	there, err := look(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The first segment may have been rotated away between the two places, and then
		// there is a directory by now.
		return look(path)
	}
	return there, err
}

// look looks into the directory before it looks for the first segment, which is made
// before the others: so none is missed that is there all the time.
func look(path string) ([]found, error) {
	there, err := inDirectory(path)
	none := errors.Is(err, fs.ErrNotExist)
	if err != nil && !none {
		return nil, err
	}
	first := found{path: segmentPath(path, 0)}
	switch _, failure := os.Lstat(first.path); {
	case failure == nil:
		there = append(slices.DeleteFunc(there, func(f found) bool { return f.start == 0 }), first)
	case !errors.Is(failure, fs.ErrNotExist):
		return nil, failure
	case none:
		return nil, err
	}
	slices.SortFunc(there, func(a, b found) int { return cmp.Compare(a.start, b.start) })
	return there, nil
}

// inDirectory returns the segments in a log's directory, in no order.
func inDirectory(path string) ([]found, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var there []found
	for _, name := range names {
		if len(name) != 20+len(suffix) || name[20:] != suffix {
			continue
		}
		if start, err := strconv.ParseInt(name[:20], 10, 64); err == nil && start >= 0 {
			there = append(there, found{start: start, path: filepath.Join(path, name)})
		}
	}
	return there, nil
}
