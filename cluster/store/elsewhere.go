package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/flight"
)

// capped tells whether the server is known to refuse all that puts.
func (s *Store) capped() bool {
	return s.noSpace.Load() || s.space != nil && s.space.atQuota.Load()
}

// isNoSpace tells whether a server has refused a write for the size of its file.
func isNoSpace(err error) bool { return textOf(err) == textOf(rpctypes.ErrNoSpace) }

// noteNoSpace keeps in mind that a write was refused for the size of the server's file,
// and says in words what that means.
func (s *Store) noteNoSpace(err error) error {
	words := s.errNoSpace()
	if s.space != nil {
		words = s.space.noteQuota()
	} else {
		s.noSpace.Store(true)
	}
	return fmt.Errorf("%w (%w)", words, err)
}

// errNoSpace says what a store elsewhere has come to and what to do.
func (s *Store) errNoSpace() error {
	return fmt.Errorf("no space: the %s is as large as its --quota-backend-bytes allows and takes no writes: what runs goes on, and can neither end nor be canceled. "+
		"Compact and defragment it, or give it more, and let it write again by etcdctl alarm disarm", s)
}

// noteRoom takes a write that was carried out for the proof that a store elsewhere takes
// them.
func (s *Store) noteRoom(f *flight.Flight[*pending]) {
	isPut := func(m *flight.Member[*pending]) bool { return puts(&m.Txn) }
	if s.noSpace.Load() && slices.ContainsFunc(f.Members, isPut) {
		s.noSpace.Store(false)
	}
}

// askForSpace asks a store elsewhere whether it takes writes. One that does not say
// leaves it at what writes have found.
func (s *Store) askForSpace(conn *connection) {
	if conn.inProcess {
		return
	}
	ctx, cancel := context.WithTimeout(s.running, ProbeTimeout)
	defer cancel()
	status, err := pb.NewMaintenanceClient(conn.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		s.log.Debug("ask the store for its state", zap.Error(err))
		return
	}
	noSpace := slices.ContainsFunc(status.GetErrors(), func(text string) bool { return strings.Contains(text, pb.AlarmType_NOSPACE.String()) })
	switch was := s.noSpace.Swap(noSpace); {
	case noSpace && !was:
		s.log.Warn("the store takes no writes", zap.Error(s.errNoSpace()))
	case was && !noSpace:
		s.log.Info("the store takes writes again", zap.Stringer("store", s))
	}
}
