package api

import (
	"cmp"
	"context"
	"strings"
	"sync"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
)

const (
	// opsPerTxnMax stays below the 128 that a default server allows. One that allows fewer
	// (--max-txn-ops) is found out.
	opsPerTxnMax = 100
	// scansAtOnce leaves the store room for the reads of others.
	scansAtOnce = 16
	// appsMax bounds what a search over every app may cost.
	appsMax = 4096
)

// read carries reads out in as few transactions as may be and returns their
// results in order. Reads of different transactions may see different revisions.
func (s *Server) read(ctx context.Context, doing string, ops []records.Op) ([]records.OpResult, error) {
	results := make([]records.OpResult, 0, len(ops))
	known := cmp.Or(int(s.opsPerTxn.Load()), opsPerTxnMax)
	most := known
	for len(ops) > 0 {
		n := min(len(ops), most)
		result, err := s.config.Store.Do(ctx, records.Read(ops[:n]...))
		if n > 1 && records.ClassOf(err) == records.ClassInvalid {
			most = n / 2
			continue
		}
		if err != nil {
			return nil, storeError(ctx, doing, err)
		}
		if len(result.Responses) != n {
			return nil, fail(codes.Internal, "%s: the store answered %d of %d reads", doing, len(result.Responses), n)
		}
		results, ops = append(results, result.Responses...), ops[n:]
	}
	if most < known { // it was the number: fewer were not refused
		s.opsPerTxn.Store(int64(most))
	}
	return results, nil
}

// scan carries scans out, several at a time, and returns what each has found.
func (s *Server) scan(ctx context.Context, doing string, scans []records.Scan) ([][]records.KV, error) {
	found := make([][]records.KV, len(scans))
	one := func(i int) (err error) {
		if found[i], err = s.config.Store.Scan(ctx, scans[i]); err != nil {
			return storeError(ctx, doing, err)
		}
		return nil
	}
	if len(scans) == 1 {
		return found, one(0)
	}
	errs := make([]error, len(scans))
	slots := make(chan struct{}, scansAtOnce)
	var group sync.WaitGroup
	for i := range scans {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = one(i)
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// section is a prefix of keys whose next part is an app's name.
type section struct {
	prefix string
	// sep ends the app's name.
	sep byte
}

// appPart is an app in a section: prefix starts all its keys there.
type appPart struct {
	app    string
	prefix string
}

// apps finds the apps of some sections by jumping from the first key of one app
// to the first key behind its last: the work is in proportion to the number of
// apps, whatever number of runs they have.
func (s *Server) apps(ctx context.Context, doing string, sections []section) ([]appPart, error) {
	type walk struct {
		section
		from string
	}
	walks := make([]walk, 0, len(sections))
	for _, section := range sections {
		walks = append(walks, walk{section: section, from: section.prefix})
	}
	var parts []appPart
	for len(walks) > 0 {
		scans := make([]records.Scan, 0, len(walks))
		for _, w := range walks {
			scans = append(scans, records.Scan{From: w.from, End: prefixEnd(w.prefix), Limit: 1, KeysOnly: true})
		}
		results, err := s.scan(ctx, doing, scans)
		if err != nil {
			return nil, err
		}
		going := walks[:0]
		for i, w := range walks {
			if len(results[i]) == 0 {
				continue
			}
			rest := strings.TrimPrefix(results[i][0].Key, w.prefix)
			end := strings.IndexByte(rest, w.sep)
			if end < 0 {
				return nil, fail(codes.Internal, "%s: a key below %s names no app", doing, w.prefix)
			}
			parts = append(parts, appPart{app: rest[:end], prefix: w.prefix + rest[:end+1]})
			w.from = w.prefix + rest[:end] + string(w.sep+1)
			going = append(going, w)
		}
		if len(parts) > appsMax {
			return nil, fail(codes.TooManyApps, "%s: there are more than %d apps to search: name the app", doing, appsMax)
		}
		walks = going
	}
	return parts, nil
}

// prefixEnd is the first key behind all that start with a prefix. Prefixes end
// with a printable character.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}
