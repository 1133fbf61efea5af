package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// listAll reads every page.
func (r *rig) listAll(request *errandv1.ListRunsRequest) (ids []string, pages int) {
	r.t.Helper()
	request = proto.CloneOf(request)
	for {
		response, err := r.runs.List(r.ctx, request)
		if err != nil {
			r.t.Fatalf("list: %v", err)
		}
		pages++
		for _, run := range response.GetRuns() {
			ids = append(ids, run.GetId())
		}
		if request.PageToken = response.GetNextPageToken(); request.PageToken == "" || pages > 100 {
			return ids, pages
		}
	}
}

func TestListShowsLiveRunsThenFinishedOnesNewestFirst(t *testing.T) {
	for _, forward := range []int{0, 3, 1} {
		t.Run(fmt.Sprintf("one in %d has a key of the older form", forward), func(t *testing.T) { testList(t, forward) })
	}
}

func testList(t *testing.T, forward int) {
	r := newRig(t)
	var want []string
	var live []string
	// Three apps, the ids in no order that has to do with time.
	for i := range 30 {
		id := fmt.Sprintf("%s.app%d.x%02d", []string{"r", "k"}[i%2], i%3, (i*7)%30)
		r.put(id, func(run *recordv1.Run) {
			run.Name = fmt.Sprintf("n%d", i%2)
			run.Labels = map[string]string{"mod": fmt.Sprint(i % 5)}
			if i%4 == 0 {
				run.Trigger = recordv1.Trigger_TRIGGER_CONSOLE
			}
		})
		live = append(live, id)
	}
	slices.Reverse(live)
	old := func(i int) bool { return forward > 0 && i%forward == 0 }
	for i, id := range live[10:] {
		// Some end in the same millisecond.
		status := recordv1.Status_STATUS_SUCCEEDED
		if i%3 == 0 {
			status = recordv1.Status_STATUS_FAILED
		}
		r.end(id, status, 1_700_000_000_000+int64(i/2))
		if old(i) {
			r.asBefore(id)
		}
	}
	want = append(want, live[:10]...)
	done := slices.Clone(live[10:])
	index := func(id string) int { return slices.Index(live[10:], id) }
	slices.SortFunc(done, func(a, b string) int {
		switch i, j := index(a), index(b); {
		case i/2 != j/2:
			return j - i
		case old(i) && old(j):
			return strings.Compare(b, a)
		case old(i):
			return 1
		case old(j):
			return -1
		}
		return strings.Compare(a, b)
	})
	want = append(want, done...)

	filtered := func(keep func(*recordv1.Run) bool) []string {
		var ids []string
		for _, id := range want {
			if run, _ := r.record(id); keep(run) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	cases := []struct {
		name    string
		request *errandv1.ListRunsRequest
		keep    func(*recordv1.Run) bool
	}{
		{"all", &errandv1.ListRunsRequest{}, func(*recordv1.Run) bool { return true }},
		{"an app", &errandv1.ListRunsRequest{App: "app1"}, func(run *recordv1.Run) bool { return run.GetApp() == "app1" }},
		{"an app of no runs", &errandv1.ListRunsRequest{App: "nope"}, func(*recordv1.Run) bool { return false }},
		{"a name", &errandv1.ListRunsRequest{Name: "n1"}, func(run *recordv1.Run) bool { return run.GetName() == "n1" }},
		{"labels", &errandv1.ListRunsRequest{Labels: map[string]string{"mod": "3"}}, func(run *recordv1.Run) bool { return run.GetLabels()["mod"] == "3" }},
		{"a live status", &errandv1.ListRunsRequest{Statuses: []errandv1.Status{errandv1.Status_STATUS_PENDING}}, func(run *recordv1.Run) bool { return run.GetStatus() == recordv1.Status_STATUS_PENDING }},
		{"a terminal status", &errandv1.ListRunsRequest{Statuses: []errandv1.Status{errandv1.Status_STATUS_FAILED}}, func(run *recordv1.Run) bool { return run.GetStatus() == recordv1.Status_STATUS_FAILED }},
		{"statuses of both kinds", &errandv1.ListRunsRequest{Statuses: []errandv1.Status{1, 4}}, func(run *recordv1.Run) bool { return run.GetStatus() != recordv1.Status_STATUS_SUCCEEDED }},
	}
	for _, c := range cases {
		for _, size := range []int32{0, 1, 3, 10, 500} {
			t.Run(fmt.Sprintf("%s by %d", c.name, size), func(t *testing.T) {
				c.request.PageSize = size
				got, pages := r.listAll(c.request)
				want := filtered(c.keep)
				if !slices.Equal(got, want) {
					t.Errorf("got  %v\nwant %v", got, want)
				}
				if size > 0 && pages > len(want)/int(size)+2 {
					t.Errorf("%d pages for %d runs", pages, len(want))
				}
			})
		}
	}
}

func TestListReadsInProportionToThePage(t *testing.T) {
	r := newRig(t)
	for i := range 60 {
		id := fmt.Sprintf("r.web.x%02d", i)
		r.put(id, nil)
		r.end(id, recordv1.Status_STATUS_SUCCEEDED, int64(1000+i))
	}
	before := r.store.count.Load()
	response, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{App: "web", PageSize: 5})
	if err != nil || len(response.GetRuns()) != 5 {
		t.Fatal(response, err)
	}
	// Where the store is, live keys, the heads of three classes of history in both forms, the records.
	if got := r.store.count.Load() - before; got != 7 {
		t.Errorf("%d reads for 5 runs", got)
	}
}

func TestListMissesNoRunThatEndsBetweenPages(t *testing.T) {
	r := newRig(t)
	for i := range 6 {
		r.put(fmt.Sprintf("r.web.x%d", i), nil)
	}
	first, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{PageSize: 3})
	if err != nil {
		t.Fatal(err)
	}
	r.end("r.web.x1", recordv1.Status_STATUS_FAILED, 5000)
	rest, _ := r.listAll(&errandv1.ListRunsRequest{PageSize: 3, PageToken: first.GetNextPageToken()})
	if want := []string{"r.web.x2", "r.web.x0", "r.web.x1"}; !slices.Equal(rest, want) {
		t.Errorf("got %v, want %v", rest, want)
	}
}

func TestListBoundsTheBytesOfAPage(t *testing.T) {
	r := newRig(t)
	for i := range 12 {
		r.put(fmt.Sprintf("r.web.x%02d", i), func(run *recordv1.Run) {
			run.Spec.Env = []string{"A=" + strings.Repeat("x", 400_000)}
			if i%2 == 0 {
				run.Status = recordv1.Status_STATUS_PENDING
			}
		})
	}
	for i := range 6 {
		r.end(fmt.Sprintf("r.web.x%02d", i), recordv1.Status_STATUS_SUCCEEDED, int64(1000+i))
	}
	response, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{})
	if err != nil || proto.Size(response) > 4<<20 {
		t.Errorf("%d bytes, %v", proto.Size(response), err)
	}
	if ids, _ := r.listAll(&errandv1.ListRunsRequest{}); len(ids) != 12 || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 12 {
		t.Errorf("listed %v", ids)
	}
}

func TestListRefusesBadRequests(t *testing.T) {
	r := newRig(t)
	cases := []struct {
		name    string
		request *errandv1.ListRunsRequest
		field   string
	}{
		{"page size below 0", &errandv1.ListRunsRequest{PageSize: -1}, "page_size"},
		{"page size of 501", &errandv1.ListRunsRequest{PageSize: 501}, "page_size"},
		{"no status", &errandv1.ListRunsRequest{Statuses: []errandv1.Status{0}}, "statuses[0]"},
		{"unknown status", &errandv1.ListRunsRequest{Statuses: []errandv1.Status{1, 99}}, "statuses[1]"},
		{"bad app", &errandv1.ListRunsRequest{App: "A"}, "app"},
		{"token that is none", &errandv1.ListRunsRequest{PageToken: "xx"}, "page_token"},
		{"token too long", &errandv1.ListRunsRequest{PageToken: strings.Repeat("a", 1000)}, "page_token"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.runs.List(r.ctx, c.request)
			code := codes.InvalidField
			if c.field == "page_token" {
				code = codes.InvalidPageToken
			}
			wantCode(t, err, code)
			if !strings.Contains(fmt.Sprint(err), c.field+": ") {
				t.Errorf("does not name %s: %v", c.field, err)
			}
		})
	}
}

// An etcd may be set to take fewer operations at once than by default (--max-txn-ops).
func TestListFromAStoreThatTakesFewOperations(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 40 {
		id := fmt.Sprintf("r.app.x%02d", i)
		ids = append(ids, id)
		r.put(id, func(*recordv1.Run) {})
		if i < 20 {
			r.end(id, recordv1.Status_STATUS_SUCCEEDED, 1_700_000_000_000+int64(i))
		}
	}
	slices.Reverse(ids)
	r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
		if len(txn.Then) > 16 {
			return records.Result{}, records.Errorf(records.ClassInvalid, "too many operations in txn request")
		}
		return r.store.Store.Do(ctx, txn)
	}
	for range 2 {
		if got, _ := r.listAll(&errandv1.ListRunsRequest{App: "app", PageSize: 100}); !slices.Equal(got, ids) {
			t.Errorf("listed %v, want %v", got, ids)
		}
	}
}
