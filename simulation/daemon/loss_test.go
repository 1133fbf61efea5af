package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStartThatIsRefusedLeavesTheCommandRunning: a journal or a store that is
// missing is refused in words, and what it was about runs on until it is back.
func TestStartThatIsRefusedLeavesTheCommandRunning(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	path, lines := ledger(t)
	id := n.submit(t, "--", "sh", "-c", "echo start >> "+path+"; until [ -e "+path+".end ]; do sleep 0.1; done; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	n.crash(t)
	for _, test := range []struct {
		name  string
		away  []string
		flags []string
		says  []string
	}{
		{name: "journal missing", away: []string{"journal.db"}, says: []string{"journal.db", "--accept-loss-of journal"}},
		{name: "journal and store missing", away: []string{"journal.db", "etcd"}, says: []string{"journal.db", "--accept-loss-of journal"}},
		{name: "all missing", away: []string{"*"}, says: []string{"had this data directory", "--accept-loss-of journal"}},
		{name: "store missing", away: []string{"etcd"}, says: []string{"another store", "--accept-loss-of store"}},
		{name: "another prefix", flags: []string{"--etcd-prefix", "/other/"}, says: []string{"another store", "--etcd-prefix"}},
		{name: "another name", flags: []string{"--name", "other"}, says: []string{"--name"}},
		{name: "loss of a journal that is there", flags: []string{"--accept-loss-of", "journal"}, says: []string{"journal.db"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept := t.TempDir()
			test.away = n.files(t, test.away)
			for _, name := range test.away {
				if err := os.Rename(filepath.Join(n.data, name), filepath.Join(kept, name)); err != nil {
					t.Fatal(err)
				}
			}
			r := runNode(t, slices.Concat(n.flags, []string{"--data", n.data, "--listen", "127.0.0.1:0"}, test.flags)...)
			for _, word := range test.says {
				if r.code == 0 || !strings.Contains(r.stderr, word) {
					t.Errorf("code %d, stderr %q; want %q", r.code, r.stderr, word)
				}
			}
			for _, name := range test.away {
				if err := os.RemoveAll(filepath.Join(n.data, name)); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(filepath.Join(kept, name), filepath.Join(n.data, name)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	n.start(t)
	if s := n.show(t, id); s.Status != "RUNNING" {
		t.Fatalf("the run is %s: %s", s.Status, s.Message)
	}
	if err := os.WriteFile(path+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.errand(t, "wait", id); r.code != 3 {
		t.Errorf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, n.log)
	}
	if started := lines(); len(started) != 1 {
		t.Errorf("the command was started %d times", len(started))
	}
}

// TestLossThatIsAccepted: the node goes on, what ran is stopped, and nothing of it
// is told with a code.
func TestLossThatIsAccepted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, of string
		away     []string
	}{
		{"store", "store", []string{"etcd"}},
		{"journal", "journal", []string{"journal.db"}},
		{"journal and store", "journal", []string{"journal.db", "etcd"}},
		{"all", "journal", []string{"*"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := startNode(t)
			path := filepath.Join(t.TempDir(), "beat")
			id := n.submit(t, "--idempotency-key", "again", "--", "sh", "-c", "while :; do echo >> "+path+"; sleep 0.05; done")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			n.awaitRunning(ctx, t, id)
			n.crash(t)
			for _, name := range n.files(t, test.away) {
				if err := os.RemoveAll(filepath.Join(n.data, name)); err != nil {
					t.Fatal(err)
				}
			}
			flags := n.flags
			n.flags = append(append([]string{}, flags...), "--accept-loss-of", test.of)
			n.start(t)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n.errand(t, "run", "--driver", "process", "--", "sleep", "0.3").want(t, 0, "", "")
			if after, err := os.ReadFile(path); err != nil || len(after) != len(before) {
				t.Errorf("the command of before goes on: %d bytes, then %d, %v", len(before), len(after), err)
			}
			if test.name == "all" {
				// The run, and with it the sandbox, has the id of the one before.
				n.errand(t, "run", "--idempotency-key", "again", "--", "sh", "-c", "echo $ERRAND_RUN_ID").want(t, 0, id+"\n", "")
			}
			if test.name == "journal" {
				if s := n.show(t, id); s.Status != "FAILED" || s.ExitCode != nil {
					t.Errorf("the run is %+v", s)
				}
			}
			n.crash(t)
			n.flags = flags
			n.start(t)
		})
	}
}

// files are those below the node's data directory that are named, "*" for all.
func (n *node) files(t *testing.T, named []string) []string {
	t.Helper()
	if !slices.Equal(named, []string{"*"}) {
		return named
	}
	entries, err := os.ReadDir(n.data)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// TestJournalThatIsPutBackStartsNothingAgain: an older copy of journal.db, put back in
// place, does not know of a command that runs. It is stopped, and told as one that may
// have been started.
func TestJournalThatIsPutBackStartsNothingAgain(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	path, lines := ledger(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	n.crash(t)
	older, err := os.ReadFile(filepath.Join(n.data, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	n.start(t)
	id := n.submit(t, "--", "sh", "-c", "echo start >> "+path+"; exec sleep 600")
	n.awaitRunning(ctx, t, id)
	n.crash(t)
	if err := os.WriteFile(filepath.Join(n.data, "journal.db"), older, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	n.errand(t, "wait", id)
	if s := n.show(t, id); s.Status != "FAILED" || s.Reason != "START_UNKNOWN" {
		t.Errorf("the run is %s, %s: %s\nnode: %s", s.Status, s.Reason, s.Message, n.log)
	}
	if started := lines(); len(started) != 1 {
		t.Errorf("the command was started %d times", len(started))
	}
	if r := n.errand(t, "run", "--", "true"); r.code != 0 {
		t.Errorf("the next run gave %d, stderr %q", r.code, r.stderr)
	}
}
