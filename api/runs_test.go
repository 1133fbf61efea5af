package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
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
		wantCode(t, err, codes.IdempotencyConflict)
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
		wantCode(t, err, codes.RunDeleted)
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
		want   codes.Code
	}{
		{"landed, with a key", true, 1, "k", ""},
		{"landed, without a key", true, 1, "", ""},
		{"not landed, with a key", false, 2, "k", ""},
		{"not landed, without a key", false, 2, "", ""},
		{"never known, with a key", true, 99, "k", codes.OutcomeUnknown},
		{"never known, without a key", false, 99, "", codes.OutcomeUnknown},
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

func TestCreateThatIsRefusedAfterItsOutcomeWasUnknownIsUnknown(t *testing.T) {
	r := newRig(t)
	tries := 0
	r.store.do = func(context.Context, records.Txn) (records.Result, error) {
		if tries++; tries == 1 {
			return records.Result{}, records.Errorf(records.ClassOutcomeUnknown, "no answer")
		}
		return records.Result{}, records.Errorf(records.ClassUnavailable, "too many requests")
	}
	_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"true"}}})
	wantCode(t, err, codes.OutcomeUnknown)
}

func TestCreateWhileTheStoreIsAway(t *testing.T) {
	r := newRig(t)
	r.store.do = func(context.Context, records.Txn) (records.Result, error) {
		return records.Result{}, records.Errorf(records.ClassUnavailable, "no leader")
	}
	_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"true"}}})
	wantCode(t, err, codes.StoreUnavailable)
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
		code       codes.Code
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
		{text: "r.web.aa", code: codes.RunAmbiguous},
		{text: "aa", code: codes.RunAmbiguous},
		{text: "r", code: codes.RunAmbiguous},
		{text: "k", want: c},
		{text: "t", want: tick},
		{text: "r.", code: codes.RunAmbiguous},
		{text: "r.web.zzz", code: codes.RunNotFound},
		{text: "zzz", code: codes.RunNotFound},
		{text: "r.nope.a", code: codes.RunNotFound},
		{text: "z.web.a", code: codes.RunNotFound},
		{text: "r..a", code: codes.RunNotFound},
		{text: "r.web.dead", code: codes.RunDeleted},
		{text: "", code: codes.InvalidField},
		{text: "R.WEB.A", code: codes.InvalidField},
		{text: "r.web.a/../b", code: codes.InvalidField},
		{text: strings.Repeat("a", 193), code: codes.InvalidField},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			response, err := r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: c.text})
			switch {
			case c.code != "":
				wantCode(t, err, c.code)
				if c.code == codes.RunAmbiguous && !strings.Contains(err.Error(), "r.web.aa") {
					t.Errorf("names no candidate: %v", err)
				}
			case err != nil || response.GetRun().GetId() != c.want:
				t.Errorf("got %v, %v, want %s", response.GetRun().GetId(), err, c.want)
			}
		})
	}
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
	t.Run("says who asked", func(t *testing.T) {
		for id, by := range map[string]string{"r.web.xa": "", "r.web.xb": "ann@build-7"} {
			r.put(id, nil)
			if _, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: id, By: by}); err != nil {
				t.Fatal(err)
			}
			want := by
			if want == "" {
				want = "api"
			}
			if run, _ := r.record(id); run.GetWish().GetBy() != want {
				t.Errorf("by %q, want %q", run.GetWish().GetBy(), want)
			}
		}
	})
	t.Run("by what can not be shown", func(t *testing.T) {
		for _, by := range []string{"ann\x1b[31m", "ann\n", strings.Repeat("a", 129)} {
			_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc", By: by})
			wantCode(t, err, codes.InvalidField)
		}
	})
	t.Run("of a run that has ended names its status", func(t *testing.T) {
		r.end("r.web.abc", recordv1.Status_STATUS_TIMED_OUT, 5)
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, codes.RunTerminal)
		if !strings.Contains(fmt.Sprint(err), "TIMED_OUT") {
			t.Errorf("text: %v", err)
		}
	})
	t.Run("of no run", func(t *testing.T) {
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.zzz"})
		wantCode(t, err, codes.RunNotFound)
	})
	t.Run("whose outcome is unknown", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) {
			return &actorv1.Canceled{Outcome: actorv1.Canceled_OUTCOME_UNKNOWN}, nil
		}
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, codes.OutcomeUnknown)
	})
	t.Run("that nobody answers", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) { return nil, context.DeadlineExceeded }
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, codes.OutcomeUnknown)
	})
	t.Run("that is answered by something else", func(t *testing.T) {
		r.router.ask = func(proto.Message) (proto.Message, error) { return &actorv1.Awake{}, nil }
		_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
		wantCode(t, err, codes.Internal)
	})
}

func TestCancelThatNobodyAnswersSaysWhatTheNodeSuffersFrom(t *testing.T) {
	r := newRig(t, func(config *api.Config) {
		config.Ready = func() []string { return []string{"no space: nothing is free"} }
	})
	r.put("r.web.abc", nil)
	r.router.ask = func(proto.Message) (proto.Message, error) { return nil, context.DeadlineExceeded }
	_, err := r.runs.Cancel(r.ctx, &errandv1.CancelRunRequest{Id: "r.web.abc"})
	wantCode(t, err, codes.OutcomeUnknown)
	if !strings.Contains(fmt.Sprint(err), "(no space: nothing is free)") {
		t.Errorf("text: %v", err)
	}
}
