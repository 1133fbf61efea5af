package daemon_test

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// awaitReadyz returns when /readyz of a node says a word, with all that it says.
func (n *node) awaitReadyz(t *testing.T, word string) (text string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) { // nobody is told when it changes
		response, err := http.Get(n.Address + "/readyz")
		if err != nil {
			continue
		}
		body, _ := io.ReadAll(response.Body) // what was read is looked at
		_ = response.Body.Close()
		if text = string(body); strings.Contains(text, word) {
			return text
		}
	}
	t.Fatalf("/readyz does not say %q but %q\nnode: %s", word, text, n.log)
	return ""
}

// A node that is frozen past its session's lease finds another one in its place when it
// goes on: what it ran is stopped, it takes nothing more and says who has the store, and it
// comes back when that one is gone.
func TestNodeThatWasFrozenStaysOutWhileAnotherOneHasTheStore(t *testing.T) {
	t.Parallel()
	g := startGuardedNode(t, "--name", "n1")
	id, silent := g.beat(t)
	sendSignal(t, g.PID(), syscall.SIGSTOP)
	other := g.second(t)
	awaitSilence(t, time.Now(), silent, 0)
	sendSignal(t, g.PID(), syscall.SIGCONT)
	text := g.awaitReadyz(t, "has this store")
	for _, word := range []string{`node "n2"`, "since 20", "a cluster has one node so far", "Stop the one that should not be there"} {
		if !strings.Contains(text, word) {
			t.Errorf("/readyz says %q; want %q", text, word)
		}
	}
	other.errand(t, "run", "--driver", "process", "--", "sh", "-c", "exit 7").want(t, 7, "", "")
	other.errand(t, "wait", id)
	if s := other.show(t, id); s.Status != "FAILED" || s.ExitCode != nil {
		t.Errorf("what it ran is %+v", s)
	}
	if text := g.awaitReadyz(t, ""); !strings.Contains(text, "has this store") {
		t.Errorf("it is back beside the other one: %q\nnode: %s", text, g.log)
	}
	other.crash(t)
	other.Daemon = nil
	g.awaitReadyz(t, "ready\n")
	g.errand(t, "run", "--driver", "process", "--", "sh", "-c", "exit 7").want(t, 7, "", "")
}
