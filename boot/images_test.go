package boot

import (
	"testing"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func TestPhasesOfPullsAreThoseOfTheAPI(t *testing.T) {
	for phase, want := range map[sandbox.PullPhase]errandv1.PullPhase{
		0:                        errandv1.PullPhase_PULL_PHASE_UNSPECIFIED,
		sandbox.PullWaiting:      errandv1.PullPhase_PULL_PHASE_WAITING,
		sandbox.PullResolving:    errandv1.PullPhase_PULL_PHASE_RESOLVING,
		sandbox.PullFetching:     errandv1.PullPhase_PULL_PHASE_FETCHING,
		sandbox.PullUnpacking:    errandv1.PullPhase_PULL_PHASE_UNPACKING,
		sandbox.PullFailed:       errandv1.PullPhase_PULL_PHASE_FAILED,
		sandbox.PullFailed + 100: errandv1.PullPhase(sandbox.PullFailed + 100),
	} {
		if got := publicPull(sandbox.PullProgress{Phase: phase}).GetPhase(); got != want {
			t.Errorf("%d is shown as %s, want %s", phase, got, want)
		}
	}
	if shown := publicPull(sandbox.PullProgress{}); shown.GetSince() != nil || shown.GetRetryAt() != nil {
		t.Errorf("times that were never set are shown: %v", shown)
	}
	if shown := publicPull(sandbox.PullProgress{RetryAt: time.Unix(9, 0)}); shown.GetRetryAt().GetSeconds() != 9 {
		t.Errorf("got %v", shown)
	}
}

func TestWhyAnImageWasNotPulledIsToldOnce(t *testing.T) {
	for message, want := range map[string]string{
		"pull image 127.0.0.1:5/a:1: 127.0.0.1:5 can not be reached: connection refused": "127.0.0.1:5 can not be reached: connection refused",
		"registry r has no image r/a:1": "registry r has no image r/a:1",
	} {
		if got := whyNotPulled(&sandbox.StartError{Message: message}); got != want {
			t.Errorf("%q: %q", message, got)
		}
	}
}
