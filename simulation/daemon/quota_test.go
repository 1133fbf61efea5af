package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/errand-run/errand/simulation/daemon"
)

// crowd writes to the embedded store of a node, from outside, until it is as large as it
// may be: values that stay, or one that is written over.
func (n *node) crowd(t *testing.T, stays bool) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(n.data, "etcd", "etcd.sock")}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	value := strings.Repeat("v", 256<<10)
	for i := 0; ; i++ {
		key := "crowd"
		if stays {
			key = fmt.Sprintf("crowd/%d", i)
		}
		switch _, err := client.Put(ctx, key, value); {
		case errors.Is(err, rpctypes.ErrNoSpace):
			return
		case err != nil:
			t.Fatalf("put %d: %v", i, err)
		}
	}
}

// awaitUnready returns when the node says a word of what keeps it from taking runs.
func (n *node) awaitUnready(t *testing.T, word string) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; <-time.After(20 * time.Millisecond) {
		err := daemon.Probe(t.Context(), n.Address+"/readyz")
		if err != nil && strings.Contains(err.Error(), word) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("readiness says %v, and not %q\n%s", err, word, n.log)
		}
	}
}

// A store that has come to its quota takes neither runs nor their ends. What runs goes
// on; a start removes what is out of date, and where that is not enough asks for a larger
// quota. Nothing is started twice, and no end is lost.
func TestStoreAtItsQuota(t *testing.T) {
	t.Parallel()
	quota := func(mib int64) []string { return []string{"--store-max-bytes", strconv.FormatInt(mib<<20, 10)} }
	n := startNode(t, quota(24)...)
	waits := func(code int) (id, end string, started func() []string) {
		path, lines := ledger(t)
		id = n.submit(t, "--", "sh", "-c", fmt.Sprintf("echo start >> %s; until [ -e %s.end ]; do sleep 0.1; done; exit %d", path, path, code))
		n.awaitRunning(t.Context(), t, id)
		return id, path + ".end", lines
	}
	end := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantEnd := func(id string, code int, started func() []string) {
		t.Helper()
		if r := n.errand(t, "wait", id); r.code != code {
			t.Errorf("wait gave %d, want %d: %s\n%s", r.code, code, r.stderr, n.log)
		}
		if times := len(started()); times != 1 {
			t.Errorf("the command was started %d times", times)
		}
	}

	first, firstEnd, firstStarted := waits(3)
	n.crowd(t, false)
	n.awaitUnready(t, "takes no writes")
	if r := n.errand(t, "run", "--", "true"); r.code != 125 || !strings.Contains(r.stderr, "--store-max-bytes") {
		t.Errorf("a run: code %d, %q", r.code, r.stderr)
	}
	if r := n.errand(t, "cancel", first); r.code == 0 || !strings.Contains(r.stderr, "no space") {
		t.Errorf("cancel: code %d, %q", r.code, r.stderr)
	}
	end(firstEnd)
	n.restart(t)
	if text := n.log.String(); !strings.Contains(text, "what was out of date in the store is removed") || !strings.Contains(text, "takes them again") {
		t.Errorf("the log does not say what happened at the start:\n%s", text)
	}
	wantEnd(first, 3, firstStarted)

	second, secondEnd, secondStarted := waits(4)
	n.crowd(t, true)
	n.awaitUnready(t, "takes no writes")
	n.crash(t)
	r := runNode(t, slices.Concat(n.flags, quota(16), []string{"--data", n.data, "--listen", "127.0.0.1:0"})...)
	if r.code == 0 || !strings.Contains(r.stderr, "no space") || !strings.Contains(r.stderr, "Start the node with more, as in --store-max-bytes ") {
		t.Fatalf("a start: code %d, %q", r.code, r.stderr)
	}
	end(secondEnd)
	n.flags = slices.Concat(n.flags, quota(64))
	n.start(t)
	wantEnd(second, 4, secondStarted)
	if r := n.errand(t, "run", "--", "echo", "again"); r.code != 0 || r.stdout != "again\n" {
		t.Errorf("a run after that: %+v\n%s", r, n.log)
	}
}
