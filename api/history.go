package api

import (
	"container/heap"
	"context"
	"strings"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// entry is one line of history. forward tells the form of its key.
type entry struct {
	ended   int64
	run     string
	forward bool
	kv      records.KV
}

// compareEntries is the order of a list: the last to end first, and of one millisecond
// those whose keys count down, then the others, each in the order in which they are read.
func compareEntries(a, b entry) int {
	switch {
	case a.ended != b.ended:
		return compareInt(b.ended, a.ended)
	case a.forward != b.forward:
		if a.forward {
			return 1
		}
		return -1
	case a.forward:
		return strings.Compare(b.run, a.run)
	default:
		return strings.Compare(a.run, b.run)
	}
}

func compareInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// stream is the history of one class of one app in one form of its keys, the last to
// end first.
type stream struct {
	forward bool
	// The next read is of [from, end).
	from, end string
	entries   []entry
	drained   bool
}

// streams is a heap by the first entry of each stream.
type streams []*stream

func (h streams) Len() int           { return len(h) }
func (h streams) Less(i, j int) bool { return compareEntries(h[i].entries[0], h[j].entries[0]) < 0 }
func (h streams) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *streams) Push(x any) { *h = append(*h, x.(*stream)) } //nolint:forcetypeassert // ours alone

// Pop implements heap.Interface.
func (h *streams) Pop() any {
	last := len(*h) - 1
	top := (*h)[last]
	*h = (*h)[:last]
	return top
}

// listFinished adds the finished runs, the last to end first.
func (s *runService) listFinished(ctx context.Context, p *page, at cursor) (cursor, bool, error) {
	if !p.filter.wantsFinished() {
		return at, false, nil
	}
	if p.full() {
		return at, true, nil
	}
	all, err := s.historyStreams(ctx, p.filter.app, at)
	if err != nil {
		return at, false, err
	}
	// Few streams are read a page at a time, many a few entries at a time. Every other
	// stream is of the older form, and those are nearly always empty.
	chunk := int64(max(4, min(p.size+1, 8*p.size/max(len(all), 1))))
	if err := s.refill(ctx, all, chunk); err != nil {
		return at, false, err
	}
	heads := make(streams, 0, len(all))
	for _, stream := range all {
		if len(stream.entries) > 0 {
			heads = append(heads, stream)
		}
	}
	heap.Init(&heads)
	for len(heads) > 0 {
		var batch []entry
		var last entry
		for len(heads) > 0 && len(batch) < min(recordsPerTxn, p.size-len(p.runs)) && p.examined < examinedMax {
			next, err := s.pop(ctx, &heads, chunk)
			if err != nil {
				return at, false, err
			}
			last = next
			wanted, err := p.wantsEntry(next)
			if err != nil {
				return at, false, err
			}
			if wanted {
				batch = append(batch, next)
			}
		}
		var more bool
		if at, more, err = s.showEntries(ctx, p, at, batch); err != nil || more {
			return at, more, err
		}
		at.ended, at.run, at.forward = last.ended, last.run, last.forward
		if p.full() {
			return at, len(heads) > 0, nil
		}
	}
	return at, false, nil
}

// wantsEntry looks at what history itself holds, so that most of what a filter
// leaves out costs no read of a record.
func (p *page) wantsEntry(e entry) (bool, error) {
	p.examined++
	history := &recordv1.History{}
	if err := records.Decode(e.kv, history); err != nil {
		return false, fail(codes.Internal, "%w", err)
	}
	return p.filter.wants(publicStatus(history.GetStatus()), history.GetName()), nil
}

// showEntries reads the records of some entries into the page.
func (s *runService) showEntries(ctx context.Context, p *page, at cursor, batch []entry) (cursor, bool, error) {
	ops := make([]records.Op, 0, len(batch))
	for _, e := range batch {
		ops = append(ops, records.Get(s.config.Keys.Run(e.run)))
	}
	results, err := s.read(ctx, "list runs", ops)
	if err != nil {
		return at, false, err
	}
	for i, result := range results {
		taken, err := offerRecord(p, result)
		if err != nil {
			return at, false, err
		}
		if !taken {
			return at, true, nil
		}
		at.ended, at.run, at.forward = batch[i].ended, batch[i].run, batch[i].forward
	}
	return at, false, nil
}

func (s *Server) historyStreams(ctx context.Context, app string, at cursor) ([]*stream, error) {
	apps := []string{app}
	if app == "" {
		var err error
		if apps, err = s.appsWithHistory(ctx); err != nil {
			return nil, err
		}
	}
	var all []*stream
	for _, app := range apps {
		for _, class := range []records.HistoryClass{records.ClassConsole, records.ClassSchedule, records.ClassOther} {
			all = append(all, s.backwardStream(app, class, at), s.forwardStream(app, class, at))
		}
	}
	return all, nil
}

func (s *Server) appsWithHistory(ctx context.Context) ([]string, error) {
	var sections []section
	for shard := range s.config.Keys.Shards {
		sections = append(sections, section{prefix: s.config.Keys.HistoryInShard(shard), sep: '/'})
	}
	parts, err := s.apps(ctx, "list runs", sections)
	if err != nil {
		return nil, err
	}
	apps := make([]string, 0, len(parts))
	for _, part := range parts {
		apps = append(apps, part.app)
	}
	return apps, nil
}

// backwardStream begins behind the cursor in keys that count down.
func (s *Server) backwardStream(app string, class records.HistoryClass, at cursor) *stream {
	k := s.config.Keys
	made := &stream{}
	made.from, made.end, _ = k.HistoryParts(app, class)
	switch {
	case at.run == "":
	case !at.forward:
		made.from = k.History(at.run, app, class, at.ended) + "\x00"
	case at.ended > 0:
		// What comes after the cursor ended before its millisecond.
		made.from = k.History("", app, class, at.ended-1)
	default:
		made.from, made.drained = made.end, true
	}
	return made
}

// forwardStream begins before the cursor in keys that count up.
func (s *Server) forwardStream(app string, class records.HistoryClass, at cursor) *stream {
	k := s.config.Keys
	made := &stream{forward: true}
	_, made.from, made.end = k.HistoryParts(app, class)
	switch {
	case at.run == "":
	case at.forward:
		made.end = k.HistoryForward(at.run, app, class, at.ended)
	case at.ended < records.EndedMsMax:
		made.end = k.HistoryForward("", app, class, at.ended+1)
	}
	return made
}

// refill reads the next entries of streams that have none left.
func (s *Server) refill(ctx context.Context, all []*stream, chunk int64) error {
	var scans []records.Scan
	var ops []records.Op
	for _, stream := range all {
		if stream.forward {
			ops = append(ops, records.Op{Kind: records.OpGet, Key: stream.from, End: stream.end, Limit: chunk, Descending: true})
		} else {
			scans = append(scans, records.Scan{From: stream.from, End: stream.end, Limit: chunk})
		}
	}
	scanned, err := s.scan(ctx, "list runs", scans)
	if err != nil {
		return err
	}
	read, err := s.read(ctx, "list runs", ops)
	if err != nil {
		return err
	}
	for _, stream := range all {
		var kvs []records.KV
		if stream.forward {
			kvs, read = read[0].KVs, read[1:]
		} else {
			kvs, scanned = scanned[0], scanned[1:]
		}
		if err := stream.take(kvs, chunk); err != nil {
			return err
		}
	}
	return nil
}

// take adds what was read of at most chunk keys.
func (s *stream) take(kvs []records.KV, chunk int64) error {
	s.drained = int64(len(kvs)) < chunk
	for _, kv := range kvs {
		ended, run, err := records.ParseHistory(kv.Key)
		if err != nil {
			return fail(codes.Internal, "list runs: %w", err)
		}
		s.entries = append(s.entries, entry{ended: ended, run: run, forward: s.forward, kv: kv})
		if s.forward {
			s.end = kv.Key
		} else {
			s.from = kv.Key + "\x00"
		}
	}
	return nil
}

// pop takes the newest entry off the heap and keeps the heap filled.
func (s *Server) pop(ctx context.Context, heads *streams, chunk int64) (entry, error) {
	top := (*heads)[0]
	next := top.entries[0]
	top.entries = top.entries[1:]
	if len(top.entries) == 0 && !top.drained {
		if err := s.refill(ctx, []*stream{top}, chunk); err != nil {
			return entry{}, err
		}
	}
	if len(top.entries) == 0 {
		heap.Pop(heads)
	} else {
		heap.Fix(heads, 0)
	}
	return next, nil
}
