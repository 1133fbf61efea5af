package api

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	positionBytesMax = 64
	// identityBytes of a cluster's id are enough to tell two stores apart.
	identityBytes = 8
)

// position is a revision of one store: revisions of another one, or of an older copy of
// it, mean something else.
type position struct {
	store    string
	revision int64
}

// String is the position as callers hold it, which is opaque to them.
func (p position) String() string { return p.store + "." + strconv.FormatInt(p.revision, 10) }

// parsePosition reads what String returned.
func parsePosition(text string) (position, error) {
	store, revision, found := cutLastDot(text)
	number, err := strconv.ParseInt(revision, 10, 64)
	p := position{store: store, revision: number}
	if len(text) > positionBytesMax || !found || store == "" || err != nil || number <= 0 || p.String() != text {
		return position{}, fmt.Errorf("is not one that a list or a change came with")
	}
	return p, nil
}

func cutLastDot(text string) (before, after string, found bool) {
	at := strings.LastIndexByte(text, '.')
	if at < 0 {
		return "", "", false
	}
	return text[:at], text[at+1:], true
}

// at makes the position of a revision of this node's store.
func (s *Server) at(ctx context.Context, revision int64) (string, error) {
	if known := s.identity.Load(); known != nil {
		return position{store: *known, revision: revision}.String(), nil
	}
	now, err := s.now(ctx)
	return position{store: now.store, revision: revision}.String(), err
}

// now reads where this node's store is. What names the store is the same for all of its
// nodes, and for as long as its revisions continue each other.
func (s *Server) now(ctx context.Context) (position, error) {
	result, err := s.config.Store.Do(ctx, records.Read(records.Get(s.config.Keys.Cluster())))
	if err != nil {
		return position{}, storeError(ctx, "read the store's revision", err)
	}
	cluster := &recordv1.Cluster{}
	if kv, found := result.First(0); found {
		if err := records.Decode(kv, cluster); err != nil {
			return position{}, fail(codes.Internal, "%w", err)
		}
	}
	id := strings.ToLower(cluster.GetId())
	identity := id[:min(len(id), identityBytes)] + "." + strconv.FormatInt(cluster.GetEpoch(), 10)
	s.identity.Store(&identity)
	return position{store: identity, revision: result.Revision}, nil
}
