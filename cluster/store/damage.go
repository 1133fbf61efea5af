package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"
)

// ErrDamaged is what an error wraps that says of an embedded store that its files
// are not what a server left there.
var ErrDamaged = errors.New("the embedded store is damaged")

// behindMax is how long a server that leads may be behind its own data: it should
// not be for a moment.
const behindMax = time.Second

// damaged names the directory, the fault, and what to do.
func damaged(dir, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w: put a snapshot of it in the place of %s; if there is none, move that away and start once with --accept-loss-of store, "+
		"which gives its records up and stops what still runs (see \"The daemon\" in docs/troubleshooting.md)",
		ErrDamaged, dir, fmt.Errorf(format, args...), filepath.Join(dir, serverName))
}

// checkFile reads the server's file as a whole, where damage is an error: the
// server would find it on a goroutine of its own and end the process. It returns
// the index of the last log entry that the data holds, 0 if there is no file.
func checkFile(dir string) (applied uint64, err error) {
	path := filepath.Join(dir, serverName, "member", "snap", "db")
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("embedded store in %s: %w", dir, err)
	case info.Size() == 0:
		// bbolt would take it for a new one.
		return 0, damaged(dir, "%s is empty", path)
	}
	if err := readHead(path); bySystem(err) {
		return 0, fmt.Errorf("embedded store: %w", err)
	}
	// bbolt maps the file and trusts what it finds: a bad page is a panic, reading
	// past a torn end a fault of the processor.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = damaged(dir, "the pages of %s do not fit together", path)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: fileTimeout})
	switch {
	case bySystem(err), errors.Is(err, bolterrors.ErrTimeout):
		return 0, fmt.Errorf("embedded store: %s can not be read: %w", path, err)
	case err != nil:
		return 0, damaged(dir, "%s can not be read (%w)", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := checkLog(dir); err != nil {
		return 0, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return damaged(dir, "%s has %d bytes and should have at least %d", path, info.Size(), tx.Size())
		}
		applied = appliedIndex(tx)
		return tx.ForEach(func(_ []byte, bucket *bolt.Bucket) error {
			walk(bucket)
			return nil
		})
	})
	return applied, err
}

// readHead reads the beginning of a file: bbolt calls one invalid that the disk does not give.
func readHead(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = file.ReadAt(make([]byte, os.Getpagesize()), 0)
	return errors.Join(err, file.Close())
}

// checkLog refuses data without a write-ahead log: the server would begin another
// one, or panic over an empty file.
func checkLog(dir string) error {
	logs := filepath.Join(dir, serverName, "member", "wal")
	// Not by a pattern: that finds nothing in a folder which this user may not read.
	entries, err := os.ReadDir(logs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("embedded store in %s: %w", dir, err)
	}
	found := false
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".wal" {
			continue
		}
		found = true
		switch info, err := entry.Info(); {
		case err != nil:
			return fmt.Errorf("embedded store in %s: %w", dir, err)
		case info.Size() == 0:
			return damaged(dir, "%s is empty", filepath.Join(logs, entry.Name()))
		}
	}
	if !found {
		return damaged(dir, "its write-ahead log is missing: there is none in %s", logs)
	}
	return nil
}

// walk visits every page of a bucket.
func walk(bucket *bolt.Bucket) {
	cursor := bucket.Cursor()
	key, _ := cursor.First()
	for key != nil {
		key, _ = cursor.Next()
	}
}

func appliedIndex(tx *bolt.Tx) uint64 {
	meta := tx.Bucket([]byte("meta"))
	if meta == nil {
		return 0
	}
	value := meta.Get([]byte("consistent_index"))
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// bySystem tells an error of the system (no memory, no file descriptor, no access, a limit,
// a disk that fails) from one about what a file holds: nobody is told to give a store up
// for it.
func bySystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// serverPanic is what a server panics with: its words and the error behind them, if any.
type serverPanic struct {
	words string
	err   error
}

// Error implements error: it is shown where nobody recovers.
func (p *serverPanic) Error() string { return fmt.Sprintf("%s: %v", p.words, p.err) }

// keptPanic makes a serverPanic of a line that would panic with its words alone.
type keptPanic struct{}

// OnWrite implements zapcore.CheckWriteHook. It does not return.
func (keptPanic) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	kept := &serverPanic{words: entry.Message}
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok {
			kept.err = err
		}
	}
	panic(kept)
}

// launch starts a server; one that panics over its files has damaged ones, unless it is
// the system that refuses them.
func launch(dir string, start func() (*embed.Etcd, error)) (server *embed.Etcd, err error) {
	defer func() {
		reason := recover()
		if reason == nil {
			return
		}
		server, err = nil, damaged(dir, "its write-ahead log can not be read")
		if kept, ok := reason.(*serverPanic); ok && bySystem(kept.err) {
			err = fmt.Errorf("embedded store in %s: %s: %w", dir, kept.words, kept.err)
		}
	}()
	server, err = start()
	isDamage := func(known error) bool { return errors.Is(err, known) }
	switch {
	case err == nil:
		return server, nil
	case slices.ContainsFunc(logFaults, isDamage):
		return nil, damaged(dir, "its write-ahead log can not be read (%w)", err)
	default:
		return nil, fmt.Errorf("embedded store in %s: %w", dir, err)
	}
}

// logFaults are what a server says of a write-ahead log that is not what it wrote.
var logFaults = []error{
	walpb.ErrCRCMismatch, wal.ErrMetadataConflict, wal.ErrFileNotFound, wal.ErrSnapshotMismatch, wal.ErrSnapshotNotFound,
	wal.ErrSliceOutOfRange, wal.ErrDecoderNotFound, io.ErrUnexpectedEOF, proto.Error,
}

// behind watches for a server that leads with a log that ends before its data
// does. Such a server takes all that is written for what it has already, and would
// never be ready.
type behind struct {
	dir     string
	applied uint64
	since   time.Time
}

func (b *behind) check(server *embed.Etcd, now time.Time) error {
	committed := server.Server.CommittedIndex()
	if server.Server.Leader() == 0 || committed >= b.applied {
		b.since = time.Time{}
		return nil
	}
	if b.since.IsZero() {
		b.since = now
	}
	if now.Sub(b.since) < behindMax {
		return nil
	}
	return damaged(b.dir, "its write-ahead log ends at entry %d and its data is at %d", committed, b.applied)
}
