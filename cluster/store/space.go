package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// SpaceReserve is how many bytes must be free where the embedded store lies, or
	// writes are refused. A server that really runs out of space ends its process,
	// and with it the node; it takes space in steps of 64 MiB.
	SpaceReserve = 128 << 20
	// spaceInterval is how often that is looked at.
	spaceInterval = time.Second
)

// space watches the room that an embedded store has.
type space struct {
	dir string
	log *zap.Logger
	low atomic.Bool
}

// check reads how much is free. A fresh store without room must not even begin.
func (s *space) check() error {
	var stat unix.Statfs_t
	if err := unix.Statfs(s.dir, &stat); err != nil {
		return fmt.Errorf("free space of the embedded store in %s: %w", s.dir, err)
	}
	low := stat.Bavail*uint64(stat.Bsize) < SpaceReserve //nolint:gosec // a block size
	switch was := s.low.Swap(low); {
	case low && !was:
		s.log.Warn("no space: writes are refused until there is", zap.String("dir", s.dir), zap.Uint64("free_bytes", stat.Bavail*uint64(stat.Bsize))) //nolint:gosec // a block size
	case was && !low:
		s.log.Info("there is space again: writes are accepted", zap.String("dir", s.dir))
	}
	_, err := os.Stat(filepath.Join(s.dir, serverName, "member"))
	if low && errors.Is(err, os.ErrNotExist) {
		return s.refusal()
	}
	return nil
}

// refusal is the error of a write while there is no room, nil otherwise. The nil
// space has room for ever.
func (s *space) refusal() error {
	if s == nil || !s.low.Load() {
		return nil
	}
	return records.Errorf(records.ClassUnavailable, "no space: less than %d MiB are free in %s", SpaceReserve>>20, s.dir)
}

// watch checks until the context ends.
func (s *space) watch(ctx context.Context) {
	ticker := time.NewTicker(spaceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := s.check(); err != nil {
				s.log.Debug("free space", zap.Error(err))
			}
		case <-ctx.Done():
			return
		}
	}
}
