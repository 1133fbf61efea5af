package api_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// keyStore counts what reads cost the store: the keys that a get's range holds, which
// the server walks, and those that a scan returns.
type keyStore struct {
	api.Store
	transactions, scans, keys atomic.Int64
}

func (s *keyStore) Do(ctx context.Context, txn records.Txn) (records.Result, error) {
	result, err := s.Store.Do(ctx, txn)
	s.transactions.Add(1)
	for _, response := range result.Responses {
		s.keys.Add(response.Count)
	}
	return result, err
}

func (s *keyStore) Scan(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	kvs, err := s.Store.Scan(ctx, scan)
	s.scans.Add(1)
	s.keys.Add(int64(len(kvs)))
	return kvs, err
}

// fill writes finished runs of an app, one a millisecond.
func fill(tb testing.TB, keys records.Keys, app string, count int) {
	tb.Helper()
	const perTxn = 60
	for from := 0; from < count; from += perTxn {
		var txn records.Txn
		for i := from; i < min(from+perTxn, count); i++ {
			run := &recordv1.Run{
				Id: fmt.Sprintf("r.%s.%026d", app, i), App: app, Status: recordv1.Status_STATUS_SUCCEEDED, Attempt: 1,
				CreatedAt: 1, EndedAt: 1_700_000_000_000 + int64(i), Spec: &recordv1.Spec{Driver: "null"},
			}
			line := records.Encode(&recordv1.History{Status: run.GetStatus()})
			txn.Then = append(txn.Then,
				records.Op{Kind: records.OpPut, Key: keys.Run(run.GetId()), Value: records.Encode(run)},
				records.Op{Kind: records.OpPut, Key: keys.History(run.GetId(), app, records.ClassOther, run.GetEndedAt()), Value: line})
		}
		if _, err := etcd.Do(context.Background(), txn); err != nil {
			tb.Fatal(err)
		}
	}
}

// cost is what an operation has cost the store.
type cost struct{ transactions, scans, keys int64 }

// costs carries each operation out once over the history of an app.
func (r *rig) costs(store *keyStore, app string, measure func(name string, run func())) map[string]cost {
	r.t.Helper()
	costs := map[string]cost{}
	do := func(name string, run func()) {
		before := cost{store.transactions.Load(), store.scans.Load(), store.keys.Load()}
		measure(name, run)
		costs[name] = cost{store.transactions.Load() - before.transactions, store.scans.Load() - before.scans, store.keys.Load() - before.keys}
	}
	list := func(request *errandv1.ListRunsRequest, want int) (page *errandv1.ListRunsResponse) {
		page, err := r.runs.List(r.ctx, request)
		if err != nil || len(page.GetRuns()) != want {
			r.t.Fatalf("%v lists %d runs, %v", request, len(page.GetRuns()), err)
		}
		return page
	}
	var token string
	do("a page of an app", func() { token = list(&errandv1.ListRunsRequest{App: app, PageSize: 50}, 50).GetNextPageToken() })
	do("the next page", func() { list(&errandv1.ListRunsRequest{App: app, PageSize: 50, PageToken: token}, 50) })
	do("a page of all apps", func() { list(&errandv1.ListRunsRequest{PageSize: 50}, 50) })
	do("a page that a status leaves empty", func() {
		if page := list(&errandv1.ListRunsRequest{App: app, Statuses: []errandv1.Status{errandv1.Status_STATUS_FAILED}}, 0); page.GetNextPageToken() == "" {
			r.t.Errorf("looked through all of it: %v", page)
		}
	})
	do("a page that a label leaves empty", func() { list(&errandv1.ListRunsRequest{App: app, Labels: map[string]string{"a": "b"}}, 0) })
	do("a run by its id", func() {
		if _, err := r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: fmt.Sprintf("r.%s.%026d", app, 500)}); err != nil {
			r.t.Error(err)
		}
	})
	for name, text := range map[string]string{"a run by too little of its id": "r." + app + ".000", "a run by too little of its last part": "000"} {
		do(name, func() {
			_, err := r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: text})
			wantCode(r.t, err, codes.RunAmbiguous)
		})
	}
	var id string
	do("a creation", func() { id = r.create(func(request *errandv1.CreateRunRequest) { request.App = app }).GetRun().GetId() })
	do("a watch over a life", func() {
		stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: id})
		if err != nil || !stream.Receive() {
			r.t.Fatal(err)
		}
		r.update(id, running)
		r.end(id, recordv1.Status_STATUS_SUCCEEDED, 1_800_000_000_000)
		for stream.Receive() {
		}
		_ = stream.Close()
	})
	return costs
}

func TestNothingCostsInProportionToHistory(t *testing.T) {
	var measured []map[string]cost
	for _, count := range []int{2_500, 10_000} {
		store := &keyStore{Store: etcd}
		r := newRig(t, func(config *api.Config) { config.Store = store })
		fill(t, r.keys, "web", count)
		measured = append(measured, r.costs(store, "web", func(_ string, run func()) { run() }))
	}
	if !maps.Equal(measured[0], measured[1]) {
		t.Errorf("with 2,500 and 10,000 finished runs:\n%+v\n%+v", measured[0], measured[1])
	}
	t.Logf("%+v", measured[1])
}

// BenchmarkHistoryOfAMillion compares the costs over 10,000 and 1,000,000 finished runs.
func BenchmarkHistoryOfAMillion(b *testing.B) {
	const small, large = 10_000, 1_000_000
	var measured []map[string]cost
	took := map[string][]time.Duration{}
	for _, count := range []int{small, large} {
		store := &keyStore{Store: etcd}
		r := newRig(b, func(config *api.Config) { config.Store = store })
		fill(b, r.keys, "web", count)
		r.ctx = b.Context()
		best := map[string]time.Duration{}
		var costs map[string]cost
		for range 5 {
			costs = r.costs(store, "web", func(name string, run func()) {
				began := time.Now()
				run()
				if lasted := time.Since(began); best[name] == 0 || lasted < best[name] {
					best[name] = lasted
				}
			})
		}
		measured = append(measured, costs)
		for name, lasted := range best {
			took[name] = append(took[name], lasted)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(took)) {
		few, many := measured[0][name], measured[1][name]
		b.Logf("%-40s %+v in %s with %d runs, %+v in %s with %d", name, few, took[name][0], small, many, took[name][1], large)
		if few != many {
			b.Errorf("%s costs %+v with %d finished runs, %+v with %d", name, few, small, many, large)
		}
	}
	b.ReportMetric(0, "ns/op")
}
