package daemon_test

import (
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// What is asked of a daemon that was frozen before ends by itself, with words and with the
// code of an errand that has failed.
func TestEveryCommandGivesUpADaemonThatWasFrozenBefore(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "--interactive", "--", "sleep", "600")
	n.awaitRunning(t.Context(), t, id)
	sendSignal(t, n.PID(), syscall.SIGSTOP)
	var asking sync.WaitGroup
	for _, test := range []struct {
		name string
		args []string
	}{
		{"run", []string{"run", "--", "true"}},
		{"run in the background", []string{"run", "-d", "--", "true"}},
		{"exec", []string{"exec", id, "--", "true"}},
		{"cp", []string{"cp", id + ":/etc/hostname", filepath.Join(t.TempDir(), "name")}},
		{"attach", []string{"attach", id}},
		{"logs -f", []string{"logs", "-f", id}},
		{"events -f", []string{"events", "-f", id}},
		{"wait", []string{"wait", id}},
		{"runs --watch", []string{"runs", "--watch"}},
		{"cancel", []string{"cancel", id}},
		{"show", []string{"show", id}},
		{"node ls", []string{"node", "ls"}},
	} {
		asking.Go(func() {
			r := n.errand(t, test.args...)
			if r.code != 125 || !strings.Contains(r.stderr, "does not answer: connections are taken there, and nothing answers") || !strings.Contains(r.stderr, "may be frozen") {
				t.Errorf("%s gave %+v", test.name, r)
			}
			t.Logf("%s gave up after %s", test.name, r.took)
		})
	}
	asking.Wait()
	sendSignal(t, n.PID(), syscall.SIGCONT)
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
}
