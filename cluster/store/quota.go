package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// QuotaDefault is the most that the file of an embedded server may grow to, in bytes,
	// where Config.QuotaBytes says nothing.
	QuotaDefault = 8 << 30
	// QuotaMin is the least that a user should be let choose.
	QuotaMin = 16 << 20
	// QuotaMax is the most: all of the file is read at each start.
	QuotaMax = 64 << 30
	// writeMax is more than one write can take of the file.
	writeMax = 2 << 20
)

// alarms are those that a server has raised for the size of its file. It takes no write
// from then on, until they are taken back.
func (h *held) alarms() []*pb.AlarmMember {
	var found []*pb.AlarmMember
	for _, alarm := range h.server.Server.Alarms() {
		if alarm.GetAlarm() == pb.AlarmType_NOSPACE {
			found = append(found, alarm)
		}
	}
	return found
}

// nearQuota tells whether the server's file is so large that the rest is for the end of
// what runs.
func (h *held) nearQuota() bool {
	quota := h.quota.Load()
	return h.server.Server.Backend().Size() >= quota-quota/10
}

// full tells whether nothing new may begin: a server at its quota takes no write at all.
// What is free within the file counts, for it is used before that grows.
func (h *held) full() bool {
	backend := h.server.Server.Backend()
	return h.nearQuota() && backend.Size()-backend.SizeInUse() < h.quota.Load()/20
}

// least is what a file that can be written to is smaller than its quota.
func (h *held) least() int64 { return max(h.quota.Load()/100, writeMax) }

// atQuota tells whether the file is as large as it may be.
func (h *held) atQuota() bool { return h.server.Server.Backend().Size() >= h.quota.Load()-h.least() }

// disarm lets the server write again if its file has come below its quota, or that above
// the file, since it refused to. It reports whether it did.
func (h *held) disarm(ctx context.Context) (bool, error) {
	alarms := h.alarms()
	if len(alarms) == 0 || h.atQuota() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	for _, alarm := range alarms {
		request := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarm.GetMemberID(), Alarm: pb.AlarmType_NOSPACE}
		if _, err := h.server.Server.Alarm(ctx, request); err != nil {
			return false, fmt.Errorf("let the embedded store write again: %w", err)
		}
	}
	return true, nil
}

// makeRoom readies a server for writes whose file is at its quota or near it, as far as
// what it holds allows that: what is out of date is removed, and what is free in the file
// is given back. Nothing may use the server meanwhile: all of the file is copied. One
// that can not be helped is an error that says what to do.
func (s *space) makeRoom(ctx context.Context) error {
	h := s.held
	h.server.Server.Backend().ForceCommit() // what the log has brought counts too
	if h.nearQuota() {
		s.log.Warn("the store is nearly as large as it may be: what is out of date in it is removed before the node goes on", s.sizes()...)
		began := time.Now()
		if err := h.compact(ctx); err != nil {
			return fmt.Errorf("embedded store in %s: %w", s.dir, err)
		}
		s.giveBack()
		s.log.Info("what was out of date in the store is removed", append(s.sizes(), zap.Duration("took", time.Since(began)))...)
	}
	switch disarmed, err := h.disarm(ctx); {
	case err != nil:
		return fmt.Errorf("embedded store in %s: %w", s.dir, err)
	case disarmed:
		s.log.Info("the store had come to its quota and took no writes; it has room and takes them again", s.sizes()...)
	case h.atQuota():
		return s.spent("and can not start: what runs goes on, and needs it to end")
	}
	return nil
}

// sizes are the fields of a line of the log about the size of the server's file.
func (s *space) sizes() []zap.Field {
	backend := s.held.server.Server.Backend()
	return []zap.Field{
		zap.String("dir", s.dir), zap.Int64("file_bytes", backend.Size()), zap.Int64("used_bytes", backend.SizeInUse()),
		zap.Int64("most_bytes", s.held.quota.Load()),
	}
}

// spent is the error of a store whose file is as large as it may be.
func (s *space) spent(what string) error {
	backend := s.held.server.Server.Backend()
	return records.Errorf(records.ClassUnavailable, "no space: the embedded store in %s is as large as it may be, %s: its file has %s, %s of it used, and --store-max-bytes is %s. "+
		"Start the node with more, as in --store-max-bytes %d", s.dir, what,
		records.SizeText(backend.Size()), records.SizeText(backend.SizeInUse()), records.SizeText(s.held.quota.Load()), 2*max(s.held.quota.Load(), backend.Size()))
}

// noteQuota notes that the server has refused a write for the size of its file, and says
// so in words.
func (s *space) noteQuota() error {
	s.atQuota.Store(true)
	return s.refusal()
}

// compact removes all that is out of date, and returns when the file knows of the pages
// that are free by that.
func (h *held) compact(ctx context.Context) error {
	server := h.server.Server
	_, err := server.Compact(ctx, &pb.CompactionRequest{Revision: server.KV().Rev(), Physical: true})
	if err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		return fmt.Errorf("remove what is out of date: %w", err)
	}
	touch(server.Backend())
	return nil
}

// touch commits a change that changes nothing: only that shows which pages the commit
// before has freed.
func touch(data backend.Backend) {
	tx := data.BatchTx()
	tx.LockOutsideApply()
	if at, ok := mvcc.UnsafeReadFinishedCompact(tx); ok {
		mvcc.UnsafeSetFinishedCompact(tx, at)
	}
	tx.Unlock()
	data.ForceCommit()
}

// giveBack makes the file as small as what is in it, if that is worth its copy and the
// disk has room for one. The server puts it in the file's place when it is whole.
func (s *space) giveBack() {
	h := s.held
	data, quota := h.server.Server.Backend(), h.quota.Load()
	used := data.SizeInUse()
	free := data.Size() - used
	if free < quota/20 && (!h.atQuota() || free < 2*h.least()) {
		return
	}
	disk, err := roomOf(s.dir)
	if need := used + used/8 + spaceTight; err == nil && disk.below(need, snapshotFiles) {
		err = fmt.Errorf("its disk has %s free and takes %d files, and a copy needs %s and %d", records.SizeText(disk.bytes), disk.files, records.SizeText(need), snapshotFiles)
	}
	if err == nil {
		err = data.Defrag()
	}
	if err == nil {
		err = syncDir(h.snaps)
	}
	if err != nil {
		s.log.Warn("the store's file could not be made smaller", append(s.sizes(), zap.Error(err))...)
	}
}

// removeTorn removes what is left of copies of a server's file that were not whole when
// the process ended. No server is at work.
func removeTorn(dir string) error {
	torn, err := filepath.Glob(filepath.Join(member(dir), "snap", "db.tmp*"))
	for _, path := range torn {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("embedded store in %s: what is left of a copy: %w", dir, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
