package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The bounds of one List call. A page that reaches one of them ends early and has
// a token to go on from.
const (
	// pageBytesMax keeps an answer below the 4 MiB that gRPC clients accept unless
	// told otherwise, single large records aside.
	pageBytesMax = 3 << 20
	// recordsPerTxn bounds the bytes of one read: a record is below 1 MiB.
	recordsPerTxn = 32
	// examinedMax bounds how many records and history entries a page with filters
	// looks at.
	examinedMax = 2000
	// liveKeysPerRead is how many keys, without values, one range returns.
	liveKeysPerRead = 5000
)

// page collects the answer.
type page struct {
	filter   filter
	size     int
	runs     []*errandv1.Run
	seen     map[string]bool
	bytes    int
	examined int
}

// full tells whether the page takes nothing more.
func (p *page) full() bool {
	return len(p.runs) >= p.size || p.bytes >= pageBytesMax || p.examined >= examinedMax
}

// offer takes a run unless the page would grow too large; it returns false then.
func (p *page) offer(run *errandv1.Run) bool {
	p.examined++
	if p.seen[run.GetId()] || !p.filter.passes(run) {
		return true
	}
	size := proto.Size(run)
	if len(p.runs) > 0 && p.bytes+size > pageBytesMax {
		p.bytes = pageBytesMax
		return false
	}
	p.bytes += size
	p.seen[run.GetId()] = true
	p.runs = append(p.runs, run)
	return true
}

// List implements errandv1connect.RunServiceHandler.
func (s *runService) List(ctx context.Context, request *errandv1.ListRunsRequest) (*errandv1.ListRunsResponse, error) {
	wanted, size, violations := filterOf(request)
	if len(violations) > 0 {
		return nil, invalid(violations)
	}
	filters := wanted.fingerprint()
	at, err := parseCursor(request.GetPageToken(), filters)
	if err != nil {
		return nil, withInfo(codes.InvalidPageToken, fmt.Errorf("page_token: %w", err),
			[]*errandv1.FieldViolation{{Field: "page_token", Text: err.Error()}})
	}
	response := &errandv1.ListRunsResponse{}
	if request.GetPageToken() == "" {
		// Before anything is read: what comes later is a change.
		now, err := s.now(ctx)
		if err != nil {
			return nil, err
		}
		response.Position = now.String()
	}
	p := &page{filter: wanted, size: size, seen: map[string]bool{}}
	more := false
	if !at.finished {
		if at, more, err = s.listLive(ctx, p, at); err != nil {
			return nil, err
		}
	}
	if !more {
		at.finished = true
		if at, more, err = s.listFinished(ctx, p, at); err != nil {
			return nil, err
		}
	}
	response.Runs, response.Examined = p.runs, int64(p.examined)
	if more {
		response.NextPageToken = at.token(filters)
		response.ExaminedBackTo = timeOf(at.ended)
	}
	return response, nil
}

// listLive adds the runs under way, the last created first. The returned cursor is
// where to go on if more is true.
func (s *runService) listLive(ctx context.Context, p *page, at cursor) (cursor, bool, error) {
	if !p.filter.wantsLive() {
		return at, false, nil
	}
	newest, err := s.newestLive(ctx, p.filter.app, at.before)
	if err != nil {
		return at, false, err
	}
	for len(newest) > 0 {
		if p.full() {
			return at, true, nil
		}
		n := min(len(newest), recordsPerTxn)
		ops := make([]records.Op, 0, n)
		for _, live := range newest[:n] {
			ops = append(ops, records.Get(s.config.Keys.Run(live.run)))
		}
		results, err := s.read(ctx, "list runs", ops)
		if err != nil {
			return at, false, err
		}
		for i, result := range results {
			if p.full() {
				return at, true, nil
			}
			taken, err := offerRecord(p, result)
			if err != nil || !taken {
				return at, true, err
			}
			at.before = newest[i].create
		}
		newest = newest[n:]
	}
	return at, false, nil
}

// offerRecord shows a page the record that a read returned, if it is still there.
func offerRecord(p *page, result records.OpResult) (taken bool, err error) {
	if len(result.KVs) == 0 {
		return true, nil
	}
	run, err := records.DecodeRun(result.KVs[0])
	if err != nil {
		return false, fail(codes.Internal, "%w", err)
	}
	return p.offer(publicRun(run, result.KVs[0])), nil
}

// liveRun is a run under way; create is the revision of its creation.
type liveRun struct {
	run    string
	create int64
}

// newestLive returns the runs under way that were created before a revision, the
// newest first. It reads keys alone, all of those of the app or the cluster: ids
// are random, so their order says nothing. What is under way is bounded by what
// runs and waits, not by history.
func (s *Server) newestLive(ctx context.Context, app string, before int64) ([]liveRun, error) {
	k := s.config.Keys
	var prefixes []string
	if app != "" {
		shard := k.LiveInShard(records.ShardOf(app, k.Shards))
		for _, kind := range []string{"k", "r", "t"} {
			prefixes = append(prefixes, shard+kind+"."+app+".")
		}
	} else {
		for shard := range k.Shards {
			prefixes = append(prefixes, k.LiveInShard(shard))
		}
	}
	ops := make([]records.Op, 0, len(prefixes))
	for _, prefix := range prefixes {
		ops = append(ops, records.Op{Kind: records.OpGet, Key: prefix, End: prefixEnd(prefix), KeysOnly: true, Limit: liveKeysPerRead})
	}
	var newest []liveRun
	for len(ops) > 0 {
		results, err := s.read(ctx, "list runs", ops)
		if err != nil {
			return nil, err
		}
		going := ops[:0]
		for i, result := range results {
			for _, kv := range result.KVs {
				if before == 0 || kv.Create < before {
					newest = append(newest, liveRun{run: records.LastPart(kv.Key), create: kv.Create})
				}
			}
			if len(result.KVs) == liveKeysPerRead {
				op := ops[i]
				op.Key = result.KVs[liveKeysPerRead-1].Key + "\x00"
				going = append(going, op)
			}
		}
		ops = going
	}
	slices.SortFunc(newest, func(a, b liveRun) int {
		if a.create != b.create {
			return int(min(max(b.create-a.create, -1), 1))
		}
		return strings.Compare(a.run, b.run)
	})
	return newest, nil
}
