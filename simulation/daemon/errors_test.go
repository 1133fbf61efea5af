package daemon_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// API-01: what fails on errand's side has codes that no command of a user's is likely to
// end with, a line for people, and with -o json an object for programs.
func TestErrorsOfTheCommandLineAreForPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	nowhere := "http://" + freeAddress(t)
	ended := n.submit(t, "--", "sh", "-c", "exit 3")
	n.errand(t, "wait", ended)
	away := []string{"--address", nowhere}
	const absent = "k.default.aaaaaaaaaaaaaaaaaaaaaaaaaa"
	for _, test := range []struct {
		name string
		args []string
		code int
		word string
		// mention stands in the line for people.
		mention string
	}{
		{"run, no node", append(away, "run", "--driver", "process", "--", "true"), 125, "UNREACHABLE", nowhere},
		{"wait, no node", append(away, "wait", absent), 125, "UNREACHABLE", nowhere},
		{"logs, no node", append(away, "logs", "-f", absent), 125, "UNREACHABLE", nowhere},
		{"cancel, no node", append(away, "cancel", absent), 125, "UNREACHABLE", nowhere},
		{"runs, no node", append(away, "runs"), 125, "UNREACHABLE", nowhere},
		{"unknown flag", []string{"run", "--no-such-flag", "busybox"}, 2, "USAGE", "--no-such-flag"},
		{"unknown command", []string{"frobnicate"}, 2, "USAGE", "frobnicate"},
		{"bad value", []string{"wait", "--timeout", "soon", absent}, 2, "USAGE", "--timeout"},
		{"refused request", []string{"run", "--driver", "process", "--app", "Not a Name", "--", "true"}, 2, "INVALID_FIELD", "--app"},
		{"no such run", []string{"wait", absent}, 125, "RUN_NOT_FOUND", absent},
		{"cancel of what has ended", []string{"cancel", ended}, 125, "RUN_TERMINAL", "FAILED"},
		{"wait that takes too long", []string{"wait", "--timeout", "100ms", n.submit(t, "--", "sleep", "60")}, 124, "TIMEOUT", "still going"},
	} {
		t.Run(test.name, func(t *testing.T) {
			people := n.errand(t, test.args...)
			if people.code != test.code || !strings.HasPrefix(people.stderr, "errand: ") || !strings.Contains(people.stderr, test.mention) {
				t.Errorf("got code %d, stderr %q; want %d and %q", people.code, people.stderr, test.code, test.mention)
			}
			if people.took > 20*time.Second+busy {
				t.Errorf("it took %s", people.took)
			}
			programs := n.errand(t, append([]string{"-o", "json"}, test.args...)...)
			var told struct {
				Error struct {
					Code    string `json:"code"`
					Message string `json:"message"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(programs.stderr), &told); err != nil || programs.code != test.code || told.Error.Code != test.word || told.Error.Message == "" {
				t.Errorf("with -o json: %v, code %d, stderr %q; want %d and %s", err, programs.code, programs.stderr, test.code, test.word)
			}
		})
	}
}

// API-01: errand logs of a run whose command never ran says so, instead of nothing.
func TestLogsOfWhatNeverRanSayWhy(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	for _, test := range []struct{ command, reason string }{{"/no/such/command", "NOT_FOUND"}, {"/etc/passwd", "NOT_EXECUTABLE"}} {
		id := n.submit(t, "--", test.command)
		n.errand(t, "wait", id)
		for _, flags := range [][]string{nil, {"-f"}, {"--attempt", "1"}, {"--tail", "5", "--stream", "stdout"}} {
			r := n.errand(t, append(append([]string{"logs"}, flags...), id)...)
			if r.code != 0 || r.stdout != "" || !strings.Contains(r.stderr, test.reason) {
				t.Errorf("errand logs %s gave %+v", fmt.Sprint(flags), r)
			}
		}
	}
}
