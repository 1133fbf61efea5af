package api

import (
	"context"
	"slices"
	"strings"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// idBytesMax is above the longest id: kind, app, task and tick.
	idBytesMax = 192
	// candidatesMax is how many ids an ambiguous prefix shows.
	candidatesMax = 5
)

// foundRun is a run's record. Of at, its revisions and version count.
type foundRun struct {
	run *recordv1.Run
	at  records.KV
}

func (f foundRun) public() *errandv1.Run { return publicRun(f.run, f.at) }

// Get implements errandv1connect.RunServiceHandler.
func (s *runService) Get(ctx context.Context, request *errandv1.GetRunRequest) (*errandv1.GetRunResponse, error) {
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	response := &errandv1.GetRunResponse{Run: found.public()}
	if request.GetHistory() {
		response.History = publicHistory(found.run)
	}
	return response, nil
}

// find reads the run that a text means: its id, a unique prefix of its id, or a
// unique prefix of its id's last part, in whichever app.
func (s *Server) find(ctx context.Context, text string) (foundRun, error) {
	if violation := checkID(text); violation != "" {
		return foundRun{}, invalid([]Violation{{Field: "id", Text: violation}})
	}
	scans, err := s.rangesOf(ctx, text)
	if err != nil {
		return foundRun{}, err
	}
	found, err := s.scan(ctx, "find run", scans)
	if err != nil {
		return foundRun{}, err
	}
	return s.choose(ctx, text, slices.Concat(found...))
}

func checkID(text string) string {
	switch {
	case text == "":
		return "is missing"
	case len(text) > idBytesMax:
		return "is too long for a run id"
	}
	for i := range len(text) {
		c := text[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return quoteShort(text) + " is not a run id or the beginning of one"
		}
	}
	return ""
}

// rangesOf returns the reads that find what begins with a text. Each is bounded.
func (s *Server) rangesOf(ctx context.Context, text string) ([]records.Scan, error) {
	k := s.config.Keys
	kind, rest, hasKind := strings.Cut(text, ".")
	app, tail, hasApp := strings.Cut(rest, ".")
	switch {
	case hasApp && records.CheckName(app) == nil:
		// The app is complete, so the shard is known.
		return []records.Scan{candidates(k.RunsOfApp(kind, app) + tail)}, nil
	case hasApp:
		return nil, nil // an app of no such name exists
	case hasKind:
		scans := make([]records.Scan, 0, k.Shards)
		for shard := range k.Shards {
			scans = append(scans, candidates(k.RunsInShard(shard)+text))
		}
		return scans, nil
	}
	var sections []section
	var scans []records.Scan
	for shard := range k.Shards {
		for _, kind := range []string{"r", "k"} {
			prefix := k.RunsInShard(shard) + kind + "."
			sections = append(sections, section{prefix: prefix, sep: '.'})
		}
		if text == "r" || text == "k" || text == "t" { // what ids begin with, as with its dot
			scans = append(scans, candidates(k.RunsInShard(shard)+text+"."))
		}
	}
	parts, err := s.apps(ctx, "find run", sections)
	for _, part := range parts {
		scans = append(scans, candidates(part.prefix+text))
	}
	return scans, err
}

// candidates reads enough to tell none, one and several apart, with the record of
// the one.
func candidates(prefix string) records.Scan {
	return records.Scan{From: prefix, End: prefixEnd(prefix), Limit: 2}
}

func (s *Server) choose(ctx context.Context, text string, kvs []records.KV) (foundRun, error) {
	// A run may be found by the beginning of its id and of its last part.
	slices.SortStableFunc(kvs, func(a, b records.KV) int { return strings.Compare(a.Key, b.Key) })
	kvs = slices.CompactFunc(kvs, func(a, b records.KV) bool { return a.Key == b.Key })
	// A whole id is meant, even if it begins another.
	exact := slices.IndexFunc(kvs, func(kv records.KV) bool { return records.LastPart(kv.Key) == text })
	switch {
	case exact >= 0:
		kvs = kvs[exact : exact+1]
	case len(kvs) == 0:
		return foundRun{}, s.notFound(ctx, text)
	case len(kvs) > 1:
		ids := make([]string, 0, candidatesMax)
		for _, kv := range kvs[:min(len(kvs), candidatesMax)] {
			ids = append(ids, records.LastPart(kv.Key))
		}
		return foundRun{}, fail(codes.RunAmbiguous, "several runs begin with %s, among them %s", text, strings.Join(ids, ", "))
	}
	return decodeFound(kvs[0])
}

func decodeFound(kv records.KV) (foundRun, error) {
	run, err := records.DecodeRun(kv)
	if err != nil {
		return foundRun{}, fail(codes.Internal, "%w", err)
	}
	return foundRun{run: run, at: kv}, nil
}

// notFound tells a deleted run from one that never was.
func (s *Server) notFound(ctx context.Context, text string) error {
	if _, err := records.AppOfRun(text); err == nil {
		results, err := s.read(ctx, "find run", []records.Op{records.Get(s.config.Keys.Gone(text))})
		if err != nil {
			return err
		}
		if len(results[0].KVs) > 0 {
			return fail(codes.RunDeleted, "run %s was deleted", text)
		}
	}
	return fail(codes.RunNotFound, "no run %s", text)
}
