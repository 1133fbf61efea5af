package daemon_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

var stamped = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (.*)\n$`)

// LOG-05, on one node: however a run has ended, its log can be read when nothing is left
// of its sandbox: by attempt, by stream, with times; also by the next daemon.
func TestLogsOutliveTheirSandboxes(t *testing.T) {
	t.Parallel()
	const speak = "echo out $ERRAND_ATTEMPT; echo err $ERRAND_ATTEMPT >&2; "
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			type ended struct {
				id, status, reason string
				attempts           int
			}
			say := func(status, reason string, attempts int, id string) ended { return ended{id, status, reason, attempts} }
			shell := func(script string) []string { return []string{"sh", "-c", speak + script} }
			canceled := k.detach(t, n, nil, shell("exec sleep 600")...)
			all := []ended{
				say("SUCCEEDED", "", 1, k.detach(t, n, nil, shell("exit 0")...)),
				say("FAILED", "EXIT_CODE", 1, k.detach(t, n, nil, shell("exit 3")...)),
				say("TIMED_OUT", "TIMEOUT", 1, k.detach(t, n, []string{"--timeout", "1s"}, shell("exec sleep 600")...)),
				say("FAILED", "EXIT_CODE", 3, n.create(t, fmt.Sprintf(
					`{"spec": {%s, "command": ["sh", "-c", %q], "retry": {"retries": 2, "backoff": "0.1s"}}}`, k.spec, speak+"exit 1"))),
				say("CANCELED", "CANCELED", 1, canceled),
				say("FAILED", "OOM_KILLED", 1, k.detach(t, n, []string{"--memory", "32MiB"}, shell("exec tail /dev/zero")...)),
			}
			n.awaitOutput(t, canceled, "out 1\n")
			n.errand(t, "cancel", canceled)
			scope := leftover.Node{Data: n.data}
			for _, run := range all {
				n.errand(t, "wait", run.id)
				for attempt := 1; attempt <= run.attempts; attempt++ {
					scope.Sandboxes = append(scope.Sandboxes, records.SandboxID(run.id, int32(attempt), 1))
				}
			}
			settle, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
				t.Fatalf("left over: %v, %v", found, err)
			}
			for _, life := range []string{"of the same daemon", "of the next daemon"} {
				for _, run := range all {
					if s := n.show(t, run.id); s.Status != run.status || s.Reason != run.reason || len(s.Attempts) != run.attempts {
						t.Errorf("%s the run is %+v, want %+v", life, s, run)
					}
					for attempt := 1; attempt <= run.attempts; attempt++ {
						n.wantLog(t, run.id, attempt)
					}
				}
				n.crash(t)
				// While the node is away errand says so soon, and not that the log is empty.
				for _, flags := range [][]string{nil, {"-f"}} {
					r := n.errand(t, slices.Concat([]string{"logs"}, flags, []string{canceled})...)
					if r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, n.Address) || r.took > 5*time.Second+busy {
						t.Errorf("without a node errand logs %v gave %+v", flags, r)
					}
				}
				n.start(t)
			}
		})
	}
	t.Run("image that can not be had", func(t *testing.T) {
		n := startContainerNode(t)
		r := n.errand(t, "run", "--pull", "never", "--name", "none", "none:1", "--", "true")
		if r.code != 125 {
			t.Fatalf("got %+v", r)
		}
		id := strings.TrimSpace(n.errand(t, "runs", "-q", "--name", "none").stdout)
		if r := n.errand(t, "logs", id); r.code != 0 || r.stdout != "" || !strings.Contains(r.stderr, "IMAGE_NOT_FOUND") {
			t.Errorf("errand logs gave %+v", r)
		}
	})
}

// awaitOutput returns when a run's command has written this.
func (n *node) awaitOutput(t *testing.T, id, text string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(n.errand(t, "logs", id).stdout, text); {
		if time.Now().After(deadline) {
			t.Fatalf("run %s does not write %q: %+v", id, text, n.show(t, id))
		}
	}
}

// wantLog reads the log of an attempt that has said what it is on both streams, in every
// way that there is.
func (n *node) wantLog(t *testing.T, id string, attempt int) {
	t.Helper()
	out, errs := fmt.Sprintf("out %d\n", attempt), fmt.Sprintf("err %d\n", attempt)
	logs := func(flags ...string) result {
		return n.errand(t, slices.Concat([]string{"logs", "--attempt", fmt.Sprint(attempt)}, flags, []string{id})...)
	}
	logs().want(t, 0, out, errs)
	logs("-f").want(t, 0, out, errs)
	logs("--stream", "stdout").want(t, 0, out, "")
	logs("--stream", "stderr").want(t, 0, "", errs)
	r := logs("--timestamps")
	if match := stamped.FindStringSubmatch(r.stdout); match == nil || match[1]+"\n" != out {
		t.Errorf("with times the log is %q", r.stdout)
	}
	if match := stamped.FindStringSubmatch(r.stderr); match == nil || match[1]+"\n" != errs {
		t.Errorf("with times stderr is %q", r.stderr)
	}
}
