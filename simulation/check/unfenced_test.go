package check_test

import (
	"testing"

	"github.com/errand-run/errand/simulation/check"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestRunThatWaitsIsNeitherFencedNorGivenUp(t *testing.T) {
	for _, c := range []struct {
		name, text string
		retry      *recordv1.Retry
		bad        func(s *script)
	}{
		{"killed by the fence", "was ended by the fence", onWait, func(s *script) { s.exit(one, "n1", 1, 1, 137, "fence") }},
		{"lost", "is NODE_LOST", onWait, func(s *script) {
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.fault("n1", "reboot", true, false)
			s.finish(one, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_LOST, nil)
		}},
		{"fenced", "is NODE_FENCED", onWait, func(s *script) {
			s.exit(one, "n1", 1, 1, 137, "kill")
			s.finish(one, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_FENCED, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			s.createToRetry(one, c.retry)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			expect(t, s.set.Violations(), "", "")
			c.bad(s)
			expect(t, s.set.Violations(), check.Attempts, c.text)
		})
	}
}
