package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// SpaceReserve is how many bytes must be free where the embedded store lies, or
	// nothing new begins: no run is taken and none is placed.
	SpaceReserve = 128 << 20
	// FilesReserve is how many files one must be able to make there, or the same holds.
	FilesReserve = 2048
	// spaceTight is below what changes of runs that are there already live from the
	// room that the store holds. Above it the server's next file fits, of 64 million
	// bytes.
	spaceTight = 64 << 20
	filesTight = 512
	// spaceNear is below what the room is looked at often: a fast disk is written at
	// some gigabytes a second.
	spaceNear = 4 << 30
	filesNear = 1 << 18
	// spaceInterval is how often that is looked at, and spaceNearInterval while little
	// is free.
	spaceInterval     = time.Second
	spaceNearInterval = 100 * time.Millisecond
	// unseenMax is how many writes may go then without a look between them, however long
	// the next one is in coming: files are made by the thousand before it.
	unseenMax = 128
)

// space watches the room that an embedded store has. A server that really runs out of
// it ends its process, and with it the node. So what begins something new is refused
// while there is still some, and what ends something goes on, on room that the store
// holds already: a run that fills the disk can be canceled.
type space struct {
	dir  string
	log  *zap.Logger
	held *held
	// low is below SpaceReserve or FilesReserve, tight below spaceTight or filesTight, near
	// below spaceNear or filesNear. scarce says of low that it is the files.
	low, tight, near, scarce atomic.Bool
	// full is set while the server's file is nearly as large as it may be, atQuota while
	// it takes no writes for that.
	full, atQuota atomic.Bool

	// looking is held by who looks, looks counts how often somebody has.
	looking sync.Mutex
	looks   atomic.Uint64
	// unseen counts the writes since then.
	unseen atomic.Int64

	mu sync.Mutex
	// left is what of the held room may still be promised, promised what was and is
	// under way.
	left, promised charge
}

// begins tells whether a transaction is the beginning of something: it makes a run, or
// lets one start. All others let go of something, or say what has become of it.
func begins(txn *records.Txn) bool {
	return txn.Change == records.ChangeCreate || txn.Change == records.ChangePlace
}

// room is what is free of a file system: bytes, and files that can be made. One that has
// no bound of files has more than there can be.
type room struct{ bytes, files int64 }

func roomOf(dir string) (room, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return room{}, err
	}
	r := room{bytes: int64(stat.Bavail) * stat.Bsize, files: math.MaxInt64} //nolint:gosec // bytes of a disk
	if stat.Files > 0 {
		r.files = int64(min(stat.Ffree, math.MaxInt64))
	}
	return r, nil
}

func (r room) below(bytes, files int64) bool { return r.bytes < bytes || r.files < files }

// puts tells whether a transaction may put something.
func puts(txn *records.Txn) bool {
	isPut := func(op records.Op) bool { return op.Kind == records.OpPut }
	return slices.ContainsFunc(txn.Then, isPut) || slices.ContainsFunc(txn.Else, isPut)
}

// look sees how much is free, and holds what room can be held.
func (s *space) look() error {
	s.looking.Lock()
	defer s.looking.Unlock()
	return s.lookOnce()
}

func (s *space) lookOnce() error {
	defer s.looks.Add(1)
	s.unseen.Store(0)
	free, err := roomOf(s.dir)
	if err != nil {
		return fmt.Errorf("free space of the embedded store in %s: %w", s.dir, err)
	}
	low := free.below(SpaceReserve, FilesReserve)
	s.near.Store(free.below(spaceNear, filesNear))
	s.tight.Store(free.below(spaceTight, filesTight))
	s.scarce.Store(!free.below(SpaceReserve, 0))
	switch was := s.low.Swap(low); {
	case low && !was:
		s.log.Warn("no space: no run is taken until there is; what runs can be canceled", zap.String("dir", s.dir), zap.Int64("free_bytes", free.bytes), zap.Int64("free_files", free.files))
	case was && !low:
		s.log.Info("there is space again: runs are taken", zap.String("dir", s.dir))
	}
	if s.held == nil {
		return nil
	}
	full := s.held.full()
	switch was := s.full.Swap(full); {
	case full && !was:
		s.log.Warn("no space: the store is nearly as large as it may be, and no run is taken; what runs can end and be canceled", zap.String("dir", s.dir))
	case was && !full:
		s.log.Info("the store has space again: runs are taken", zap.String("dir", s.dir))
	}
	s.atQuota.Store(len(s.held.alarms()) > 0)
	left, err := s.held.look(free)
	s.mu.Lock()
	s.left = left
	s.mu.Unlock()
	return err
}

// check looks once before a server is started. A fresh store without room must not even
// begin.
func (s *space) check() error {
	if err := s.look(); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(s.dir, serverName, "member"))
	if s.low.Load() && errors.Is(err, os.ErrNotExist) {
		return s.refusal()
	}
	return nil
}

// refusal is the error of what begins something while there is no room, nil while
// there is. The nil space has room for ever.
func (s *space) refusal() error {
	switch {
	case s == nil:
		return nil
	case s.atQuota.Load():
		return s.spent("and takes no writes: what runs goes on, and can neither end nor be canceled")
	case s.low.Load() && s.scarce.Load():
		return records.Errorf(records.ClassUnavailable, "no space: less than %d files can be made in %s, whose inodes are used up, and nothing new is taken until they can; "+
			"remove files, or cancel the run that fills it", FilesReserve, s.dir)
	case s.low.Load():
	case s.full.Load():
		return records.Errorf(records.ClassUnavailable, "no space: the embedded store in %s is nearly as large as it may be, and nothing new is taken; what runs can end and be canceled. "+
			"--store-max-bytes is %s", s.dir, records.SizeText(s.held.quota.Load()))
	default:
		return nil
	}
	return records.Errorf(records.ClassUnavailable, "no space: less than %d MiB are free in %s, and nothing new is taken until there are; "+
		"remove files, or cancel the run that fills it", SpaceReserve>>20, s.dir)
}

// admit tells whether a write may go, and what it takes of the held room until settle
// is told.
func (s *space) admit(txn *records.Txn) (charge, error) {
	if s == nil {
		return charge{}, nil
	}
	if s.unseen.Add(1) > unseenMax && s.near.Load() {
		s.lookAgain()
	}
	switch {
	case begins(txn):
		return charge{}, s.refusal()
	case s.atQuota.Load() && puts(txn):
		return charge{}, s.refusal()
	case !s.tight.Load():
		return charge{}, nil
	}
	c := chargeOf(txn)
	if s.promise(c) || s.lookAgain() && s.promise(c) {
		return c, nil
	}
	return charge{}, records.Errorf(records.ClassUnavailable, "no space: nothing is free in %s, and what the store holds for the end of runs is spent: remove files", s.dir)
}

func (s *space) promise(c charge) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left.covers(s.promised.plus(c)) {
		return false
	}
	s.promised = s.promised.plus(c)
	return true
}

// lookAgain looks at what writes have really taken, which is far less than what they
// might have. It tells whether that was seen.
func (s *space) lookAgain() bool {
	before := s.looks.Load()
	s.looking.Lock()
	defer s.looking.Unlock()
	if s.looks.Load() != before {
		return true // somebody else's, while this waited
	}
	return s.lookOnce() == nil
}

// settle says that a write is no more under way. What it has taken is seen at the next
// look; until then all that it might have taken is gone.
func (s *space) settle(c charge) {
	if c == (charge{}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promised = s.promised.minus(c)
	s.left = s.left.minus(c)
	s.held.spend(c)
}

// writeAgain lets the server write again when it refuses to and has room.
func (s *space) writeAgain(ctx context.Context) {
	if !s.atQuota.Load() {
		return
	}
	switch disarmed, err := s.held.disarm(ctx); {
	case err != nil:
		s.log.Debug("quota", zap.Error(err))
	case disarmed:
		s.log.Info("the store has room and takes writes again", s.sizes()...)
		s.atQuota.Store(false)
	}
}

// watch looks until the context ends.
func (s *space) watch(ctx context.Context) {
	interval := spaceNearInterval
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if err := s.look(); err != nil {
				s.log.Debug("free space", zap.Error(err))
			}
			s.writeAgain(ctx)
			s.held.moveOn(ctx, s.near.Load())
			if interval = spaceInterval; s.near.Load() {
				interval = spaceNearInterval
			}
			timer.Reset(interval)
		case <-ctx.Done():
			return
		}
	}
}
