package daemon_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// create makes a run by the API, which may ask for retries.
func (n *node) create(t *testing.T, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Address+"/errand.v1.RunService/Create", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	var created struct {
		Run struct {
			ID string `json:"id"`
		} `json:"run"`
	}
	if err != nil || answer.StatusCode != http.StatusOK || json.Unmarshal(content, &created) != nil {
		t.Fatalf("create: %s %s, %v", answer.Status, content, err)
	}
	return created.Run.ID
}

// LIF-05, on one node: a command that fails is tried again as often as it was asked
// for, with waits that do not get shorter, and each attempt keeps its code and its
// log; a code that is not to be tried again is not.
func TestFailedCommandIsTriedAgain(t *testing.T) {
	t.Parallel()
	const backoff = 500 * time.Millisecond
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			again := func(script, retry string) string {
				return n.create(t, fmt.Sprintf(`{"spec": {%s, "command": ["sh", "-c", %q], "retry": {"retries": 3, "backoff": "%gs"%s}}}`, k.spec, script, backoff.Seconds(), retry))
			}
			fails := again("echo attempt $ERRAND_ATTEMPT; exit 1", "")
			once := again("exit 42", `, "never": ["42"]`)
			heals := again(`[ $ERRAND_ATTEMPT = 3 ]`, "")

			if r := n.errand(t, "wait", fails); r.code != 1 {
				t.Errorf("wait gave %d, stderr %q", r.code, r.stderr)
			}
			s := n.show(t, fails)
			if s.Status != "FAILED" || s.ExitCode == nil || *s.ExitCode != 1 || len(s.Attempts) != 4 {
				t.Fatalf("the run is %+v", s)
			}
			gap := time.Duration(0)
			for i, a := range s.Attempts {
				if a.ExitCode == nil || *a.ExitCode != 1 || a.Reason != "EXIT_CODE" || !a.LogComplete {
					t.Errorf("attempt %d is %+v", i+1, a)
				}
				if log := n.errand(t, "logs", fails, "--attempt", fmt.Sprint(i+1)); log.stdout != fmt.Sprintf("attempt %d\n", i+1) {
					t.Errorf("the log of attempt %d is %q, stderr %q", i+1, log.stdout, log.stderr)
				}
				if i > 0 {
					// What follows the placement is no part of the wait, which jitter makes a tenth longer at most.
					before := gap
					gap = a.PlacedAt.Sub(s.Attempts[i-1].EndedAt)
					if least := backoff << (i - 1); gap < least || gap < before {
						t.Errorf("attempt %d came %s after the one before, which came after %s; its wait is at least %s", i+1, gap, before, least)
					}
				}
			}
			n.errand(t, "wait", once)
			if s := n.show(t, once); s.Status != "FAILED" || s.ExitCode == nil || *s.ExitCode != 42 || len(s.Attempts) != 1 {
				t.Errorf("the run that is not to be tried again is %+v", s)
			}
			n.errand(t, "wait", heals)
			if s := n.show(t, heals); s.Status != "SUCCEEDED" || s.ExitCode == nil || *s.ExitCode != 0 || len(s.Attempts) != 3 {
				t.Errorf("the run that is well at its third attempt is %+v", s)
			}
		})
	}
}

// TestRunBetweenTwoAttemptsCanBeCanceledAndSurvivesTheDaemon kills the daemon while a
// run waits for its second attempt.
func TestRunBetweenTwoAttemptsCanBeCanceledAndSurvivesTheDaemon(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	path, lines := ledger(t)
	body := func(backoff string) string {
		return fmt.Sprintf(`{"spec": {"driver": "process", "command": ["sh", "-c", %q], "retry": {"retries": 1, "jitterPercent": 0, "backoff": %q}}}`,
			"echo start >> "+path+"; exit 1", backoff)
	}
	id := n.create(t, body("6s"))
	idle := n.create(t, body("600s"))
	waits := func(id string) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for s := n.show(t, id); s.Attempt != 2; s = n.show(t, id) {
			if time.Now().After(deadline) {
				t.Fatalf("the run is %+v", s)
			}
		}
	}
	waits(id)
	waits(idle)
	if s := n.show(t, idle); !strings.Contains(s.Message, "attempt 2 follows after a wait; attempt 1: exit code 1") {
		t.Errorf("the run that waits says %q", s.Message)
	}
	n.restart(t)
	if r := n.errand(t, "cancel", idle); r.code != 0 {
		t.Errorf("cancel gave %d, stderr %q", r.code, r.stderr)
	}
	if s := n.show(t, idle); s.Status != "CANCELED" || s.ExitCode != nil || !strings.Contains(s.Message, "before attempt 2 was started") {
		t.Errorf("the canceled run is %+v", s)
	}
	n.errand(t, "wait", id)
	if s := n.show(t, id); s.Status != "FAILED" || len(s.Attempts) != 2 || s.Attempts[1].StartedAt.Sub(s.Attempts[0].EndedAt) < 6*time.Second {
		t.Errorf("the run is %+v", s)
	}
	if started := lines(); len(started) != 3 {
		t.Errorf("commands were started %d times, want 2 and 1", len(started))
	}
}
