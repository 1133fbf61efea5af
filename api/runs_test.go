package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestCreateRecordsARunInOneTransactionAndWakesIt(t *testing.T) {
	r := newRig(t)
	response := r.create(func(request *errandv1.CreateRunRequest) { request.Name = "x" })
	if got := r.store.count.Load(); got != 1 {
		t.Errorf("%d transactions", got)
	}
	if !response.GetCreated() || !strings.HasPrefix(response.GetRun().GetId(), "r.default.") {
		t.Errorf("answer %v", response)
	}
	run, mod := r.record(response.GetRun().GetId())
	if mod != response.GetRun().GetRevision() || run.GetStatus() != recordv1.Status_STATUS_PENDING || run.GetSpec().GetDriver() != "process" {
		t.Errorf("record %v at %d", run, mod)
	}
	result, err := etcd.Do(r.ctx, records.Read(records.Get(r.keys.Live(run.GetId()))))
	if err != nil || len(result.Responses[0].KVs) != 1 {
		t.Errorf("no live key: %v", err)
	}
	if got := r.router.told; len(got) != 1 || got[0].(*actorv1.Wake).GetRun() != run.GetId() {
		t.Errorf("told %v", got)
	}
}

func TestCreateWithTheSameKey(t *testing.T) {
	r := newRig(t)
	ask := func(request *errandv1.CreateRunRequest) { request.IdempotencyKey = "k1" }
	first := r.create(ask)
	t.Run("and body gives the same run", func(t *testing.T) {
		again := r.create(ask)
		if again.GetCreated() || !proto.Equal(again.GetRun(), first.GetRun()) {
			t.Errorf("got %v, want %v", again, first.GetRun())
		}
		if r.router.wakes() != 2 {
			t.Error("a pending run that was there is not woken again")
		}
	})
	t.Run("and another body is a conflict", func(t *testing.T) {
		_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{IdempotencyKey: "k1", Spec: &errandv1.RunSpec{Command: []string{"false"}}})
		wantCode(t, err, api.CodeIdempotencyConflict)
	})
	t.Run("in another app gives another run", func(t *testing.T) {
		other := r.create(func(request *errandv1.CreateRunRequest) { request.IdempotencyKey, request.App = "k1", "other" })
		if !other.GetCreated() || other.GetRun().GetId() == first.GetRun().GetId() {
			t.Errorf("got %v", other)
		}
	})
	t.Run("after the run was deleted is refused", func(t *testing.T) {
		r.retire(first.GetRun().GetId())
		_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{IdempotencyKey: "k1", Spec: &errandv1.RunSpec{Command: []string{"true"}}})
		wantCode(t, err, api.CodeRunDeleted)
	})
}

func TestCreateWithOneKeyAtOnceMakesOneRun(t *testing.T) {
	r := newRig(t)
	var group sync.WaitGroup
	created := make(chan string, 16)
	for range 16 {
		group.Go(func() {
			response, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{IdempotencyKey: "k", Spec: &errandv1.RunSpec{Command: []string{"true"}}})
			if err != nil {
				t.Error(err)
			} else if response.GetCreated() {
				created <- response.GetRun().GetId()
			}
		})
	}
	group.Wait()
	if len(created) != 1 {
		t.Errorf("%d callers made the run", len(created))
	}
}

func TestCreateWhoseOutcomeIsUnknown(t *testing.T) {
	cases := []struct {
		name string
		// landed tells whether the write with the lost answer was carried out.
		landed bool
		lost   int
		key    string
		want   api.Code
	}{
		{"landed, with a key", true, 1, "k", ""},
		{"landed, without a key", true, 1, "", ""},
		{"not landed, with a key", false, 2, "k", ""},
		{"not landed, without a key", false, 2, "", ""},
		{"never known, with a key", true, 99, "k", api.CodeOutcomeUnknown},
		{"never known, without a key", false, 99, "", api.CodeOutcomeUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			left := c.lost
			r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
				if txn.ReadOnly() || left == 0 {
					return etcd.Do(ctx, txn)
				}
				left--
				if c.landed {
					if _, err := etcd.Do(ctx, txn); err != nil {
						t.Error(err)
					}
				}
				return records.Result{}, records.Errorf(records.ClassOutcomeUnknown, "no answer")
			}
			response, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{IdempotencyKey: c.key, Spec: &errandv1.RunSpec{Command: []string{"true"}}})
			if c.want != "" {
				wantCode(t, err, c.want)
				if c.key != "" && !strings.Contains(err.Error(), "repeat with the same key") {
					t.Errorf("text: %v", err)
				}
				return
			}
			if err != nil || !response.GetCreated() {
				t.Fatalf("got %v, %v", response, err)
			}
			r.store.do = nil
			list, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{})
			if err != nil || len(list.GetRuns()) != 1 || list.GetRuns()[0].GetId() != response.GetRun().GetId() {
				t.Errorf("runs: %v, %v", list, err)
			}
		})
	}
}

func TestCreateWhileTheStoreIsAway(t *testing.T) {
	r := newRig(t)
	r.store.do = func(context.Context, records.Txn) (records.Result, error) {
		return records.Result{}, records.Errorf(records.ClassUnavailable, "no leader")
	}
	_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"true"}}})
	wantCode(t, err, api.CodeStoreUnavailable)
	if r.store.count.Load() != 1 || r.router.wakes() != 0 {
		t.Errorf("%d transactions, %d wakes", r.store.count.Load(), r.router.wakes())
	}
}

func TestTheLargestRunFitsTheStore(t *testing.T) {
	r := newRig(t)
	env := map[string]string{}
	for i := range 5 {
		env[fmt.Sprintf("K%d", i)] = strings.Repeat("x", 102_000)
	}
	response := r.create(func(request *errandv1.CreateRunRequest) {
		request.Spec.Env = env
		request.Spec.Command = []string{strings.Repeat("c", 130_000)}
	})
	run, mod := r.record(response.GetRun().GetId())
	run.Placement = &recordv1.Placement{Node: "n1", Number: 1}
	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Node("n1"), Value: []byte{}}}})
	result, err := etcd.Do(r.ctx, records.Read(records.Get(r.keys.Node("n1"))))
	if err != nil {
		t.Fatal(err)
	}
	session := result.Responses[0].KVs[0].Create
	r.commit(r.keys.Place(run, mod, 5, &recordv1.Assignment{Run: run.GetId(), Spec: run.GetSpec(), Session: session}))
}

func TestGetByIDAndPrefix(t *testing.T) {
	r := newRig(t)
	const a, b, c, d = "r.web.aab", "r.web.aac", "k.web.xyz", "r.other.aad"
	const inner, outer, tick = "r.web.q", "r.web.qq", "t.web.report.1700000000000"
	for _, id := range []string{a, b, c, d, inner, outer, tick} {
		r.put(id, nil)
	}
	r.put("r.web.dead", nil)
	r.retire("r.web.dead")
	cases := []struct {
		text, want string
		code       api.Code
	}{
		{text: a, want: a},
		{text: "r.web.aac", want: b},
		{text: "k.web.x", want: c},
		{text: "k.web.", want: c},
		{text: "k.we", want: c},
		{text: "r.o", want: d},
		{text: "x", want: c},
		{text: "xy", want: c},
		{text: "aab", want: a},
		{text: "aad", want: d},
		{text: inner, want: inner},
		{text: "t.web.report.17", want: tick},
		{text: "t.web.rep", want: tick},
		{text: "r.web.aa", code: api.CodeRunAmbiguous},
		{text: "aa", code: api.CodeRunAmbiguous},
		{text: "r.", code: api.CodeRunAmbiguous},
		{text: "r.web.zzz", code: api.CodeRunNotFound},
		{text: "zzz", code: api.CodeRunNotFound},
		{text: "r.nope.a", code: api.CodeRunNotFound},
		{text: "z.web.a", code: api.CodeRunNotFound},
		{text: "r..a", code: api.CodeRunNotFound},
		{text: "r.web.dead", code: api.CodeRunDeleted},
		{text: "", code: api.CodeInvalidField},
		{text: "R.WEB.A", code: api.CodeInvalidField},
		{text: "r.web.a/../b", code: api.CodeInvalidField},
		{text: strings.Repeat("a", 193), code: api.CodeInvalidField},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			response, err := r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: c.text})
			switch {
			case c.code != "":
				wantCode(t, err, c.code)
				if c.code == api.CodeRunAmbiguous && !strings.Contains(err.Error(), "r.web.aa") {
					t.Errorf("names no candidate: %v", err)
				}
			case err != nil || response.GetRun().GetId() != c.want:
				t.Errorf("got %v, %v, want %s", response.GetRun().GetId(), err, c.want)
			}
		})
	}
}

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
	for i, id := range live[10:] {
		// Some end in the same millisecond.
		status := recordv1.Status_STATUS_SUCCEEDED
		if i%3 == 0 {
			status = recordv1.Status_STATUS_FAILED
		}
		r.end(id, status, 1_700_000_000_000+int64(i/2))
	}
	want = append(want, live[:10]...)
	done := slices.Clone(live[10:])
	index := func(id string) int { return slices.Index(live[10:], id) / 2 }
	slices.SortFunc(done, func(a, b string) int {
		if index(a) != index(b) {
			return index(b) - index(a)
		}
		return strings.Compare(b, a)
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
	// Live keys, the heads of history, the records.
	if got := r.store.count.Load() - before; got > 3 {
		t.Errorf("%d transactions for 5 runs", got)
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
			code := api.CodeInvalidField
			if c.field == "page_token" {
				code = api.CodeInvalidPageToken
			}
			wantCode(t, err, code)
			if !strings.Contains(fmt.Sprint(err), c.field+": ") {
				t.Errorf("does not name %s: %v", c.field, err)
			}
		})
	}
}

func TestWatchSendsTheStateThenChangesAndEndsWithTheRun(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	r.put("r.web.ab", nil) // its key begins with the other's
	stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	next := func() *errandv1.Run {
		t.Helper()
		if !stream.Receive() {
			t.Fatalf("the stream ended: %v", stream.Err())
		}
		return stream.Msg().GetRun()
	}
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_PENDING {
		t.Errorf("first %v", got)
	}
	r.update("r.web.ab", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_RUNNING || got.GetId() != "r.web.a" {
		t.Errorf("then %v", got)
	}
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 7000)
	if got := next(); got.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
		t.Errorf("last %v", got)
	}
	if stream.Receive() || stream.Err() != nil {
		t.Errorf("goes on after the end: %v", stream.Err())
	}
}

func TestWatchOfADeletedRunEnds(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	r.retire("r.web.a")
	for stream.Receive() {
	}
	wantCode(t, stream.Err(), api.CodeRunDeleted)
}

func TestWait(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	t.Run("answers at its timeout and leaves the run going", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(20 * time.Millisecond)})
		if err != nil || response.GetTerminal() || response.GetRun().GetStatus() != errandv1.Status_STATUS_PENDING {
			t.Errorf("got %v, %v", response, err)
		}
	})
	t.Run("of no time answers at once", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(0)})
		if err != nil || response.GetTerminal() {
			t.Errorf("got %v, %v", response, err)
		}
	})
	t.Run("refuses a negative timeout", func(t *testing.T) {
		_, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(-time.Second)})
		wantCode(t, err, api.CodeInvalidField)
	})
	t.Run("of a caller with a deadline of its own says so", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := r.runs.Wait(ctx, &errandv1.WaitRunRequest{Id: "r.web.a"}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("answers when the run ends, without asking the store again", func(t *testing.T) {
		before := r.store.count.Load()
		ended := make(chan error, 1)
		go func() {
			response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(time.Minute)})
			if err == nil && (!response.GetTerminal() || response.GetRun().GetStatus() != errandv1.Status_STATUS_CANCELED) {
				err = fmt.Errorf("got %v", response)
			}
			ended <- err
		}()
		r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
		r.end("r.web.a", recordv1.Status_STATUS_CANCELED, 7000)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := r.store.count.Load() - before; got != 1 {
			t.Errorf("%d reads", got)
		}
	})
	t.Run("answers at once for a run that has ended", func(t *testing.T) {
		response, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a"})
		if err != nil || !response.GetTerminal() {
			t.Errorf("got %v, %v", response, err)
		}
	})
}

func TestCancel(t *testing.T) {
	r := newRig(t)
	r.put("r.web.abc", nil)
	t.Run("records the wish and shows it", func(t *testing.T) {
		response, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.ab", Force: true})
		if err != nil || response.GetRun().GetStopping() != errandv1.Reason_REASON_CANCELED {
			t.Fatalf("got %v, %v", response, err)
		}
		if run, _ := r.record("r.web.abc"); !run.GetWish().GetForce() {
			t.Errorf("record %v", run)
		}
	})
	t.Run("of a run that has ended names its status", func(t *testing.T) {
		r.end("r.web.abc", recordv1.Status_STATUS_TIMED_OUT, 5)
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, api.CodeRunTerminal)
		if !strings.Contains(fmt.Sprint(err), "TIMED_OUT") {
			t.Errorf("text: %v", err)
		}
	})
	t.Run("of no run", func(t *testing.T) {
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.zzz"})
		wantCode(t, err, api.CodeRunNotFound)
	})
	t.Run("whose outcome is unknown", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) {
			return &actorv1.Canceled{Outcome: actorv1.Canceled_OUTCOME_UNKNOWN}, nil
		}
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, api.CodeOutcomeUnknown)
	})
	t.Run("that nobody answers", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) { return nil, context.DeadlineExceeded }
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, api.CodeOutcomeUnknown)
	})
	t.Run("that is answered by something else", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) { return &actorv1.Awake{}, nil }
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, api.CodeInternal)
	})
}
