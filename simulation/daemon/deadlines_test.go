package daemon_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The defaults of the contract, as a run shows them that has set nothing.
func TestDefaultsOfARun(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	ids := map[string]string{
		"by the command line": n.submit(t, "--", "true"),
		"by the API":          n.create(t, `{"spec": {"command": ["true"]}}`),
		"to be tried again":   n.create(t, `{"spec": {"command": ["true"], "retry": {"retries": 2}}}`),
		"tried again if lost": n.create(t, `{"spec": {"command": ["true"], "retry": {"onNodeLoss": "ON_NODE_LOSS_RETRY"}}}`),
	}
	spec := func(retry map[string]any) map[string]any {
		all := map[string]any{
			"driver": "process", "command": []any{"true"},
			"timeout": "8h0m0s", "startDeadline": "5m0s", "stopGrace": "10s",
		}
		if retry != nil {
			all["retry"] = retry
		}
		return all
	}
	retry := func(retries float64, lost string) map[string]any {
		return map[string]any{"retries": retries, "backoff": "10s", "backoffMax": "5m0s", "jitterPercent": 10.0, "onNodeLoss": lost}
	}
	for _, test := range []struct {
		name, trigger string
		spec          map[string]any
	}{
		{"by the command line", "MANUAL", spec(nil)},
		{"by the API", "API", spec(nil)},
		{"to be tried again", "API", spec(retry(2, "RETRY"))},
		{"tried again if lost", "API", spec(retry(0, "RETRY"))},
	} {
		t.Run(test.name, func(t *testing.T) {
			n.errand(t, "wait", ids[test.name])
			var shown struct {
				App, Name, Trigger string
				Attempts           []struct{ Node string }
				Spec               map[string]any
			}
			if err := json.Unmarshal([]byte(n.errand(t, "show", ids[test.name], "-o", "json").stdout), &shown); err != nil {
				t.Fatal(err)
			}
			if shown.App != "default" || shown.Name != "" || shown.Trigger != test.trigger || !reflect.DeepEqual(shown.Spec, test.spec) {
				t.Errorf("the run is %+v; want trigger %s and %v", shown, test.trigger, test.spec)
			}
			host, err := os.Hostname()
			want := strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
					return r
				}
				return '-'
			}, strings.ToLower(host))
			if err != nil || len(shown.Attempts) != 1 || shown.Attempts[0].Node != want {
				t.Errorf("its attempts are %+v; the host is %q, %v", shown.Attempts, host, err)
			}
		})
	}
	help := runNode(t, "--help")
	if !strings.Contains(help.stdout+help.stderr, "in bytes, newest kept (default 67108864)") {
		t.Errorf("the help says of the logs' size:\n%s", help.stdout+help.stderr)
	}
}

const (
	// deadlineSlack is how late a deadline may be kept on a machine that has other things
	// to do; a quiet one keeps it within a second, as the benchmark measures.
	deadlineSlack = time.Second + busy/2
	// takeover is over what time a daemon that has come back wakes what waits.
	takeover = time.Second
)

// A daemon that lives keeps deadlines in time; one that was killed at the moment keeps
// them when it is back.
func TestDeadlinesAreKept(t *testing.T) {
	t.Parallel()
	const (
		deadline = 6 * time.Second
		before   = 500 * time.Millisecond
		after    = time.Second
	)
	for _, k := range kinds {
		for _, killed := range []bool{false, true} {
			name := k.name
			if killed {
				name += " while the daemon is dead"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := k.start(t)
				// They all come to their deadline at about the same time.
				blocked := k.detach(t, n, []string{"--start-deadline", deadline.String(), "--cpu", "999"}, "true")
				timed := k.detach(t, n, []string{"--timeout", deadline.String(), "--stop-grace", "1s"}, "sh", "-c", `trap "" TERM; while :; do sleep 0.1; done`)
				graced := k.detach(t, n, []string{"--stop-grace", deadline.String()}, "sh", "-c", `trap "" TERM; echo began; while :; do sleep 0.1; done`)
				n.awaitOutput(t, graced, "began\n")
				n.errand(t, "cancel", graced)
				queued, started := n.show(t, blocked).QueuedAt, n.show(t, timed).StartedAt
				n.awaitRunning(t.Context(), t, timed)
				if started.IsZero() {
					started = n.show(t, timed).StartedAt
				}
				var back time.Time
				if killed {
					<-time.After(time.Until(queued.Add(deadline - before)))
					n.crash(t)
					<-time.After(time.Until(started.Add(deadline + after)))
					n.start(t)
					back = time.Now()
				}
				// late is by when what was due at a time must have been done.
				late := func(due time.Time) time.Time {
					if back.After(due) {
						due = back.Add(takeover)
					}
					return due.Add(deadlineSlack)
				}
				n.errand(t, "wait", blocked, timed, graced)
				s := n.show(t, blocked)
				if due := queued.Add(deadline); s.Reason != "START_DEADLINE" || s.ExitCode != nil || s.EndedAt.Before(due) || s.EndedAt.After(late(due)) {
					t.Errorf("the run that can not be placed ended %s after it was due, %s after the daemon was back: %+v", s.EndedAt.Sub(due), s.EndedAt.Sub(back), s)
				}
				s = n.show(t, timed)
				sent := s.Attempts[0].Signals
				if due := started.Add(deadline); s.Status != "TIMED_OUT" || len(sent) != 2 || sent[0].At.Before(due.Add(-before/10)) || sent[0].At.After(late(due)) {
					t.Errorf("the run with a timeout, due at %s, is %+v", due, s)
				} else if grace := sent[1].At.Sub(sent[0].At); grace < time.Second-before/10 || grace > time.Second+deadlineSlack {
					t.Errorf("its KILL came %s after its TERM", grace)
				}
				s = n.show(t, graced)
				sent = s.Attempts[0].Signals
				want := []string{"TERM", "KILL"}
				if killed {
					want = []string{"TERM", "TERM", "KILL"} // a stop is begun anew, with the whole grace
				}
				var names []string
				for _, one := range sent {
					names = append(names, one.Name)
				}
				if s.Status != "CANCELED" || !reflect.DeepEqual(names, want) {
					t.Errorf("the run with a long grace was sent %v: %+v", names, s)
				} else if grace := sent[len(sent)-1].At.Sub(sent[len(sent)-2].At); grace < deadline-before/10 || grace > deadline+deadlineSlack {
					t.Errorf("its KILL came %s after its last TERM", grace)
				}
			})
		}
	}
}
