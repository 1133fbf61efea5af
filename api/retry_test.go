package api

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestRetryIsCheckedAndItsDefaultsAreFilledIn(t *testing.T) {
	for _, test := range []struct {
		name    string
		trigger errandv1.Trigger
		retry   *errandv1.Retry
		want    *recordv1.Retry
		refused string
	}{
		{name: "none"},
		{
			name: "defaults", retry: &errandv1.Retry{Retries: 3},
			want: &recordv1.Retry{Retries: 3, BackoffMs: 10_000, BackoffMaxMs: 300_000, JitterPercent: 10, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY},
		},
		{
			name: "no retries: what is lost fails", retry: &errandv1.Retry{},
			want: &recordv1.Retry{BackoffMs: 10_000, BackoffMaxMs: 300_000, JitterPercent: 10, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL},
		},
		{
			name: "all of it", trigger: errandv1.Trigger_TRIGGER_DEPLOY,
			retry: &errandv1.Retry{
				Retries: 1, Only: []string{"1", "2-63", "oom", "timeout"}, Never: []string{"42", "signal"}, Backoff: durationpb.New(time.Second),
				BackoffMax: durationpb.New(time.Second), JitterPercent: new(int32), OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_FAIL,
			},
			want: &recordv1.Retry{
				Retries: 1, Only: &recordv1.Failures{Codes: []*recordv1.CodeRange{{First: 1, Last: 1}, {First: 2, Last: 63}}, OomKilled: true, Timeout: true},
				Never:     &recordv1.Failures{Codes: []*recordv1.CodeRange{{First: 42, Last: 42}}, Signal: true},
				BackoffMs: 1000, BackoffMaxMs: 1000, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL,
			},
		},
		{
			name: "a backoff above the default of its bound", retry: &errandv1.Retry{Retries: 1, Backoff: durationpb.New(time.Hour)},
			want: &recordv1.Retry{Retries: 1, BackoffMs: 3_600_000, BackoffMaxMs: 3_600_000, JitterPercent: 10, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY},
		},
		{name: "somebody waits for it", trigger: errandv1.Trigger_TRIGGER_MANUAL, retry: &errandv1.Retry{Retries: 1}, refused: "spec.retry: a MANUAL run"},
		{
			name: "somebody waits for it, and it waits for its node", trigger: errandv1.Trigger_TRIGGER_MANUAL, retry: &errandv1.Retry{OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT},
			want: &recordv1.Retry{BackoffMs: 10_000, BackoffMaxMs: 300_000, JitterPercent: 10, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT},
		},
		{
			name: "it waits for its node, and is tried again when its command fails", retry: &errandv1.Retry{Retries: 2, OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT},
			want: &recordv1.Retry{Retries: 2, BackoffMs: 10_000, BackoffMaxMs: 300_000, JitterPercent: 10, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT},
		},
		{
			name: "somebody waits for it, and it is to be tried again where it is lost", trigger: errandv1.Trigger_TRIGGER_MANUAL,
			retry: &errandv1.Retry{OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_RETRY}, refused: "spec.retry: a MANUAL run",
		},
		{name: "a console", trigger: errandv1.Trigger_TRIGGER_CONSOLE, retry: &errandv1.Retry{}, refused: "spec.retry: a CONSOLE run"},
		{name: "below 0", retry: &errandv1.Retry{Retries: -1}, refused: "spec.retry.retries: must be 0 to 100, is -1"},
		{name: "too many", retry: &errandv1.Retry{Retries: 101}, refused: "spec.retry.retries: must be 0 to 100, is 101"},
		{name: "jitter", retry: &errandv1.Retry{JitterPercent: proto.Int32(101)}, refused: "spec.retry.jitter_percent: must be 0 to 100"},
		{name: "backoff of 0", retry: &errandv1.Retry{Backoff: durationpb.New(0)}, refused: "spec.retry.backoff: must be above 0"},
		{name: "backoff of a day", retry: &errandv1.Retry{Backoff: durationpb.New(24 * time.Hour)}, refused: "spec.retry.backoff: must be at most 1h0m0s"},
		{name: "a bound below", retry: &errandv1.Retry{Backoff: durationpb.New(time.Minute), BackoffMax: durationpb.New(time.Second)}, refused: "spec.retry.backoff_max: must not be below backoff"},
		{name: "code 0", retry: &errandv1.Retry{Only: []string{"0"}}, refused: "spec.retry.only[0]: must be a code from 1 to 255"},
		{name: "code 256", retry: &errandv1.Retry{Never: []string{"1", "256"}}, refused: "spec.retry.never[1]: must be a code"},
		{name: "a range backwards", retry: &errandv1.Retry{Never: []string{"5-3"}}, refused: "spec.retry.never[0]: must be a code"},
		{name: "no word", retry: &errandv1.Retry{Never: []string{"sometimes"}}, refused: `is "sometimes"`},
		{name: "too many words", retry: &errandv1.Retry{Never: slices.Repeat([]string{"1"}, 33)}, refused: "spec.retry.never: has 33 entries, the most is 32"},
		{name: "an unknown word for a loss", retry: &errandv1.Retry{OnNodeLoss: 9}, refused: "spec.retry.on_node_loss: must be FAIL, RETRY or WAIT, is 9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := validRequest()
			request.Spec.Retry, request.Trigger = test.retry, test.trigger
			request.Spec.Stdin = test.trigger == errandv1.Trigger_TRIGGER_CONSOLE
			got, violations := resolve(request, allDrivers, testNowMs)
			if test.refused != "" {
				if len(violations) != 1 || !strings.Contains(violations[0].Field+": "+violations[0].Text, test.refused) {
					t.Errorf("got %v, want %q", violations, test.refused)
				}
				return
			}
			if len(violations) > 0 || !proto.Equal(got.run.GetSpec().GetRetry(), test.want) {
				t.Fatalf("got %v, %v", got.run.GetSpec().GetRetry(), violations)
			}
			if several := got.run.GetMinWriter() > records.FirstWriter; several != (test.retry != nil) {
				t.Errorf("min_writer %d", got.run.GetMinWriter())
			}
			// What is shown asks for the same again.
			again := validRequest()
			again.Spec.Retry, again.Trigger = publicSpec(got.run.GetSpec()).GetRetry(), test.trigger
			if repeated, _ := resolve(again, allDrivers, testNowMs); !proto.Equal(repeated.run.GetSpec(), got.run.GetSpec()) {
				t.Errorf("shown as %v, which means %v", again.Spec.Retry, repeated.run.GetSpec().GetRetry())
			}
		})
	}
}

func TestRunBetweenTwoAttemptsSaysWhatItWaitsFor(t *testing.T) {
	run := &recordv1.Run{
		Status: recordv1.Status_STATUS_PENDING, Attempt: 2, NotBefore: testNowMs,
		Attempts: []*recordv1.Attempt{{Number: 1, Status: recordv1.Status_STATUS_FAILED, Message: "exit code 1"}},
	}
	shown := publicRun(run, records.KV{Mod: 7})
	if shown.GetMessage() != "attempt 2 follows after a wait; attempt 1: exit code 1" || shown.GetAttempt() != 2 || shown.GetNotBefore().AsTime().UnixMilli() != testNowMs {
		t.Errorf("shown as %v", shown)
	}
	run.HoldMessage = "node n1: no room"
	if shown = publicRun(run, records.KV{Mod: 7}); shown.GetMessage() != "node n1: no room" {
		t.Errorf("with a reason of its own: %v", shown)
	}
	run.Placement, run.HoldMessage = &recordv1.Placement{Node: "n1", Number: 1}, ""
	if shown = publicRun(run, records.KV{Mod: 7}); shown.GetMessage() != "" || shown.GetNotBefore() != nil {
		t.Errorf("when it is placed: %v", shown)
	}
}
