package cli

import (
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestADetachedRunAsksForRetriesAndIsNobodysToWaitAt(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	got := newInvocation(t, s.URL()).run("run", "-d", "--retries", "3", "--retry-only", "75,100-110, oom", "--retry-never", "timeout",
		"--backoff", "1m", "--backoff-max", "10m", "busybox")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	run := s.Runs()[0].Run()
	retry := run.GetSpec().GetRetry()
	if retry.GetRetries() != 3 || !slices.Equal(retry.GetOnly(), []string{"75", "100-110", "oom"}) || !slices.Equal(retry.GetNever(), []string{"timeout"}) ||
		retry.GetBackoff().AsDuration() != time.Minute || retry.GetBackoffMax().AsDuration() != 10*time.Minute {
		t.Errorf("asked for %v", retry)
	}
	if run.GetTrigger() != errandv1.Trigger_TRIGGER_API {
		t.Errorf("trigger %s: a node tries no run again that somebody waits at", run.GetTrigger())
	}
}

func TestARunWithoutRetriesAsksForNone(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	newInvocation(t, s.URL()).run("run", "-d", "--retries", "0", "busybox")
	if run := s.Runs()[0].Run(); run.GetSpec().GetRetry() != nil || run.GetTrigger() != errandv1.Trigger_TRIGGER_MANUAL {
		t.Errorf("trigger %s, retries %v", run.GetTrigger(), run.GetSpec().GetRetry())
	}
}

func TestRetriesThatCanNotBeMeantAreRefused(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1")
	for name, c := range map[string]struct{ args, want []string }{
		"at a run that is waited at": {[]string{"run", "--retries", "3", "x"}, []string{"--retries wants -d", "errand wait"}},
		"with an input":              {[]string{"run", "-d", "-i", "--retries", "3", "x"}, []string{"--retries", "-i"}},
		"below none":                 {[]string{"run", "-d", "--retries", "-1", "x"}, []string{"--retries -1", "negative"}},
		"details without a number":   {[]string{"run", "-d", "--backoff", "1m", "x"}, []string{"--backoff wants --retries"}},
		"words without a number":     {[]string{"run", "-d", "--retry-only", "oom", "x"}, []string{"--retry-only wants --retries"}},
		"at a console":               {[]string{"console", "--retries", "3", "x"}, []string{"--retries"}},
	} {
		t.Run(name, func(t *testing.T) { i.run(c.args...).wantError(t, ExitUsage, c.want...) })
	}
}

func TestWhatBecomesOfARunWithItsNodeIsAskedFor(t *testing.T) {
	for flag, want := range map[string]errandv1.OnNodeLoss{
		"": errandv1.OnNodeLoss_ON_NODE_LOSS_UNSPECIFIED, "fail": errandv1.OnNodeLoss_ON_NODE_LOSS_FAIL, "wait": errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT,
	} {
		s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
		args := []string{"run", "-d", "busybox"}
		if flag != "" {
			args = []string{"run", "-d", "--retries", "2", "--on-node-loss", flag, "busybox"}
		}
		newInvocation(t, s.URL()).run(args...)
		if got := s.Runs()[0].Run().GetSpec().GetRetry().GetOnNodeLoss(); got != want {
			t.Errorf("--on-node-loss %q asks for %s", flag, got)
		}
	}
	s := startFake(t, func(*fakeapi.Server) {})
	if got := newInvocation(t, s.URL()).run("run", "--on-node-loss", "perhaps", "busybox"); got.code != 2 || len(s.Runs()) > 0 {
		t.Errorf("a word that is none: %+v", got)
	}
}
