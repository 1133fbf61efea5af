package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// heldBytes is how much more the server's file holds of the disk than it uses.
	heldBytes = 32 << 20
	// heldMargin stays untouched by our writes: the server compacts by itself.
	heldMargin = 8 << 20
	// heldPerOp is what an operation may take in the file beside its value: a page of
	// each of three levels.
	heldPerOp = 3 * 4096
	// entriesAhead is how many entries of the log there must be before the server makes
	// its next snapshot, a file of its own, while little is free.
	entriesAhead = snapshotEntries * 6 / 10
	// entriesMargin stays for the server's own entries.
	entriesMargin = 64
	// entriesPerWrite is how many a write may take: one that travelled with others may
	// go again.
	entriesPerWrite = 2
	// logMargin stays untouched of the room of the log, in bytes, and logUnseen is what
	// may have been written between two looks.
	logMargin = 8 << 20
	logUnseen = 16 << 20
	// snapshotRoom is how much must be free for a snapshot, snapshotFiles how many files.
	snapshotRoom  = 1 << 20
	snapshotFiles = 16
	// moversMax is how many entries are under way at a time that move the log on.
	moversMax = 64
	// spareName is the next file of the log of a server that was stopped. The server
	// would give its room up.
	spareName = "log.spare"
)

// charge is what writes take of the held room.
type charge struct {
	// pages are bytes of the server's file, log those of its log, entries the log's
	// entries before a snapshot.
	pages, log, entries int64
}

func (c charge) plus(o charge) charge {
	return charge{c.pages + o.pages, c.log + o.log, c.entries + o.entries}
}

func (c charge) minus(o charge) charge {
	return charge{c.pages - o.pages, c.log - o.log, c.entries - o.entries}
}

func (c charge) covers(o charge) bool {
	return c.pages >= o.pages && c.log >= o.log && c.entries >= o.entries
}

// chargeOf is the most that a write may take.
func chargeOf(txn *records.Txn) charge {
	const overhead = 256 // of an entry, and of each of its operations
	c := charge{log: overhead, entries: entriesPerWrite}
	for _, ops := range [][]records.Op{txn.Then, txn.Else} {
		for i := range ops {
			size := int64(len(ops[i].Key) + len(ops[i].Value))
			c.pages += heldPerOp + size
			c.log += overhead + size
		}
	}
	for i := range txn.If {
		c.log += overhead + int64(len(txn.If[i].Key))
	}
	c.log *= entriesPerWrite
	return c
}

// held is the room that a server's files have on the disk beyond what is in them, so
// that nobody else can take it: blocks behind the end of its file, the preallocated
// rest of its log with the next file of that, and the distance to its next snapshot,
// which is the one thing that it makes out of nothing.
type held struct {
	server *embed.Etcd
	// file is the server's data, snaps the folder of its snapshots, logs that of its log.
	file, snaps, logs string

	// quota is the most that the server's file may grow to, in bytes.
	quota atomic.Int64

	mu sync.Mutex
	// logLeft is how much the log may still take while its next file is not there.
	logLeft int64
	// entries are those that remain before the server makes a snapshot.
	entries int64
	free    room
}

func member(dir string) string { return filepath.Join(dir, serverName, "member") }

func newHeld(dir string, server *embed.Etcd, quota, logLeft int64) *held {
	snaps := filepath.Join(member(dir), "snap")
	h := &held{server: server, file: filepath.Join(snaps, "db"), snaps: snaps, logs: filepath.Join(member(dir), "wal"), logLeft: logLeft}
	h.quota.Store(quota)
	if files, err := filepath.Glob(filepath.Join(h.logs, "*.wal")); err == nil && len(files) > 0 {
		_ = hold(files[len(files)-1], wal.SegmentSizeBytes)
	}
	return h
}

// look holds what can be held and returns what there is.
func (h *held) look(free room) (charge, error) {
	pages, err := h.holdPages()
	if err != nil {
		return charge{}, err
	}
	snapshot, err := h.lastSnapshot()
	if err != nil {
		return charge{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if spareLog(h.logs) != "" {
		h.logLeft = wal.SegmentSizeBytes - logUnseen
	}
	h.free = free
	h.entries = snapshotEntries - (int64(h.server.Server.AppliedIndex()) - int64(snapshot)) //nolint:gosec // counts from 0
	return charge{pages: pages - heldMargin, log: h.logLeft - logMargin, entries: h.entries - entriesMargin}, nil
}

// spend says how much of the log was written that is not measured.
func (h *held) spend(c charge) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logLeft -= c.log
}

// holdPages lets the file have more of the disk than it needs, and returns how much
// more it has. Where a file system can not do that, or is full, it has what it has.
func (h *held) holdPages() (int64, error) {
	info, blocks, err := allocated(h.file)
	if err != nil {
		return 0, fmt.Errorf("room of the embedded store: %w", err)
	}
	if want := info.Size() + heldBytes; blocks < want-heldBytes/2 {
		if err := hold(h.file, want); err != nil {
			return 0, fmt.Errorf("room of the embedded store: %w", err)
		}
		if _, blocks, err = allocated(h.file); err != nil {
			return 0, fmt.Errorf("room of the embedded store: %w", err)
		}
	}
	return blocks - h.server.Server.Backend().Size(), nil
}

// hold lets a file have so much of the disk, whatever its size, if the file system can
// do that and has it.
func hold(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	return file.Close()
}

// allocated is how many bytes of the disk a file has.
func allocated(path string) (os.FileInfo, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return info, stat.Blocks * 512, nil
}

// lastSnapshot is the entry of the newest snapshot, 0 before the first.
func (h *held) lastSnapshot() (uint64, error) {
	names, err := filepath.Glob(filepath.Join(h.snaps, "*.snap"))
	if err != nil {
		return 0, fmt.Errorf("snapshots of the embedded store: %w", err)
	}
	var last uint64
	for _, name := range names {
		_, index, _ := strings.Cut(strings.TrimSuffix(filepath.Base(name), ".snap"), "-")
		if at, err := strconv.ParseUint(index, 16, 64); err == nil {
			last = max(last, at)
		}
	}
	return last, nil
}

// moveOn lets the server make its next snapshot now if it would have to soon, while
// little is free but enough for that. What moves its log on are writes whose condition
// never holds.
func (h *held) moveOn(ctx context.Context, near bool) {
	h.mu.Lock()
	due := near && !h.free.below(snapshotRoom, snapshotFiles) && h.entries < entriesAhead
	entries := h.entries
	h.mu.Unlock()
	if !due || entries < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	var movers sync.WaitGroup
	for i := range moversMax {
		movers.Go(func() {
			for n := int64(i); n <= entries && ctx.Err() == nil; n += moversMax {
				if _, err := h.server.Server.Txn(ctx, never); err != nil {
					return // the next look tries again
				}
			}
		})
	}
	movers.Wait()
}

// never changes nothing: no key was made at a revision below 0.
var never = &pb.TxnRequest{
	Compare: []*pb.Compare{{
		Key: []byte("never"), Target: pb.Compare_CREATE, Result: pb.Compare_LESS, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 0},
	}},
	Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("never")}}}},
}

// spareLog is the path of the next file of a log that has all of its room, empty if
// there is none.
func spareLog(logs string) string {
	for _, name := range []string{"0.tmp", "1.tmp"} {
		path := filepath.Join(logs, name)
		if _, blocks, err := allocated(path); err == nil && blocks >= wal.SegmentSizeBytes {
			return path
		}
	}
	return ""
}

// keepSpare keeps the room of the log's next file beyond the end of its server. The
// returned function is called when that has ended.
func keepSpare(dir string) (ended func()) {
	spare := filepath.Join(dir, spareName)
	_ = os.Remove(spare)
	if path := spareLog(filepath.Join(member(dir), "wal")); path != "" {
		_ = os.Link(path, spare)
	}
	return func() {
		if !isSpare(spare) {
			_ = os.Remove(spare)
		}
	}
}

// isSpare tells whether a file is nothing but room: the server may have taken it for
// its log since.
func isSpare(path string) bool {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Nlink != 1 {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	begin := make([]byte, 4096)
	n, err := io.ReadFull(file, begin)
	_ = file.Close()
	return (err == nil || errors.Is(err, io.ErrUnexpectedEOF)) && len(bytes.Trim(begin[:n], "\x00")) == 0
}

// prepareLog gives a server that starts the next file of its log that the last one has
// left, and the file that it writes all of its room where little is free. It returns how
// much of that is left. A store that is not there yet has no log.
func prepareLog(dir string, low bool) (left int64, err error) {
	logs := filepath.Join(member(dir), "wal")
	files, err := filepath.Glob(filepath.Join(logs, "*.wal"))
	if err != nil || len(files) == 0 {
		return 0, err
	}
	next, spare := filepath.Join(logs, "0.tmp"), filepath.Join(dir, spareName)
	for _, path := range []string{filepath.Join(logs, "1.tmp"), spare} {
		if _, err := os.Stat(next); errors.Is(err, fs.ErrNotExist) && isSpare(path) {
			_ = os.Rename(path, next)
		}
		_ = os.Remove(path)
	}
	if !low {
		return wal.SegmentSizeBytes, nil // what is written is not looked at before it is low
	}
	file, err := os.OpenFile(files[len(files)-1], os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("log of the embedded store: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	switch err = unix.Fallocate(int(file.Fd()), 0, 0, wal.SegmentSizeBytes); {
	case errors.Is(err, unix.ENOSPC):
		return 0, records.Errorf(records.ClassUnavailable, "no space: the embedded store in %s can not start, its log needs up to %d MiB: remove files, or end the processes that fill it, and start again", dir, wal.SegmentSizeBytes>>20)
	case err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINTR):
		return 0, fmt.Errorf("room of %s: %w", file.Name(), err)
	}
	used, err := usedOf(file)
	return wal.SegmentSizeBytes - used, err
}

// usedOf is where the zeros begin that a file ends with.
func usedOf(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	piece := make([]byte, 1<<20)
	for end := info.Size(); end > 0; {
		begin := max(end-int64(len(piece)), 0)
		part := piece[:end-begin]
		if _, err := file.ReadAt(part, begin); err != nil {
			return 0, fmt.Errorf("log of the embedded store: %w", err)
		}
		if rest := bytes.TrimRight(part, "\x00"); len(rest) > 0 {
			return begin + int64(len(rest)), nil
		}
		end = begin
	}
	return 0, nil
}
