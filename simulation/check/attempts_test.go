package check_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

// fails plays an attempt that ends with a code by itself.
func (s *script) fails(id string, attempt, code int32) {
	s.place(id, "n1")
	s.start(id, "n1", attempt, 1)
	s.running(id)
	s.exit(id, "n1", attempt, 1, code, "itself")
}

func TestAttemptsAreJudged(t *testing.T) {
	const code = recordv1.Reason_REASON_EXIT_CODE
	failed := recordv1.Status_STATUS_FAILED
	never := func(code int32) *recordv1.Failures {
		return &recordv1.Failures{Codes: []*recordv1.CodeRange{{First: code, Last: code}}}
	}
	for _, test := range []struct {
		name      string
		guarantee check.Guarantee
		want      string
		retry     *recordv1.Retry
		play      func(*script)
	}{
		{"as many as were asked for", "", "", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
			s.fails(one, 2, 7)
			s.finish(one, failed, code, proto.Int32(7))
		}},
		{"one too many", check.Attempts, "failure 2 of a run with 1 retries", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
			s.fails(one, 2, 7)
			s.retryAfter(one, code, proto.Int32(7))
		}},
		{"one too few", check.Attempts, "given up after failure 1", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.fails(one, 1, 7)
			s.finish(one, failed, code, proto.Int32(7))
		}},
		{"a code that is not tried again", "", "", &recordv1.Retry{Retries: 1, Never: never(7)}, func(s *script) {
			s.fails(one, 1, 7)
			s.finish(one, failed, code, proto.Int32(7))
		}},
		{"such a code, tried again", check.Attempts, "was not to be tried again", &recordv1.Retry{Retries: 1, Never: never(7)}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
		}},
		{"a loss that was not to be tried again", check.Attempts, "loss 1", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.place(one, "n1")
			s.retry(one)
		}},
		{"a loss that was, given up", check.Attempts, "given up after loss 1", onLoss, func(s *script) {
			s.place(one, "n1")
			s.finish(one, failed, recordv1.Reason_REASON_NODE_LOST, nil)
		}},
		{"after a cancel", check.Attempts, "canceled", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.fails(one, 1, 7)
			s.update(one, func(run *recordv1.Run) { run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED} })
			s.retryAfter(one, code, proto.Int32(7), func(run *recordv1.Run) { run.Wish = nil })
		}},
		{"before its time", check.Attempts, "was to wait 1s", &recordv1.Retry{Retries: 1, BackoffMs: 1000}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
			s.wait(900 * time.Millisecond)
			s.place(one, "n1")
			s.start(one, "n1", 2, 1)
		}},
		{"in time", "", "", &recordv1.Retry{Retries: 1, BackoffMs: 1000}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
			s.wait(time.Second)
			s.place(one, "n1")
			s.start(one, "n1", 2, 1)
		}},
		{"the end of the one before is not on record", check.G1, "does not say how it ended", onLoss, func(s *script) {
			s.place(one, "n1")
			s.retryAfter(one, recordv1.Reason_REASON_NODE_LOST, nil, func(run *recordv1.Run) { run.Attempts[0].EndedAt = 0 })
		}},
		{"what was wished of the one before is left over", check.G1, "does not begin anew", onLoss, func(s *script) {
			s.place(one, "n1")
			s.retryAfter(one, recordv1.Reason_REASON_NODE_LOST, nil, func(run *recordv1.Run) {
				run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_TIMEOUT}
			})
		}},
		{"a cancel while it waits for another attempt", "", "", &recordv1.Retry{Retries: 1}, func(s *script) {
			s.fails(one, 1, 7)
			s.retryAfter(one, code, proto.Int32(7))
			s.finish(one, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, nil, func(run *recordv1.Run) {
				run.Attempts[0] = s.record(one).GetAttempts()[0]
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScript()
			s.createToRetry(one, test.retry)
			test.play(s)
			expect(t, s.set.Violations(), test.guarantee, test.want)
		})
	}
}
