package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/simulation/daemon"
)

// startOn starts a daemon whose data directory is on a disk.
func startOn(t *testing.T, d *disk) *node {
	t.Helper()
	n := &node{data: filepath.Join(d.path, "data"), flags: []string{"--dev", "--drivers", "process", "--runtime-dir", t.TempDir()}}
	n.start(t)
	t.Cleanup(func() {
		d.comeBack()
		if err := n.Stop(); err != nil {
			t.Errorf("%v\n%s", err, n.log)
		}
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Errorf("the daemon reported a data race:\n%s", n.log)
		}
	})
	return n
}

// startedOnce fails the test unless each of the names stands in the ledger once.
func startedOnce(t *testing.T, lines, names []string) {
	t.Helper()
	slices.Sort(lines)
	slices.Sort(names)
	if !slices.Equal(lines, names) {
		t.Errorf("started: %v, want each of %v once", lines, names)
	}
}

// A disk whose syncs take 100 ms makes runs slower and none of them wrong.
func TestDiskThatIsSlowMakesRunsSlowAndNothingElse(t *testing.T) {
	t.Parallel()
	const runs = 12
	d := newDisk(t)
	n := startOn(t, d)
	path, lines := ledger(t)
	d.slow(100 * time.Millisecond)
	codes := make([]result, runs)
	var names []string
	var group sync.WaitGroup
	for i := range runs {
		names = append(names, strconv.Itoa(i))
		group.Go(func() {
			codes[i] = n.errand(t, "run", "--", "sh", "-c", fmt.Sprintf("echo %d >> %s; echo out %d; exit %d", i, path, i, i))
		})
	}
	group.Wait()
	for i, r := range codes {
		if r.code != i || r.stdout != fmt.Sprintf("out %d\n", i) {
			t.Errorf("run %d gave %d, stdout %q, stderr %q", i, r.code, r.stdout, r.stderr)
		}
	}
	startedOnce(t, lines(), names)
	if met := d.met(); met < runs {
		t.Errorf("%d syncs were slow: the disk is not where the daemon writes", met)
	}
	if err := daemon.Probe(t.Context(), n.Address+"/readyz"); err != nil {
		t.Errorf("a slow disk is no reason: %v", err)
	}
}

// A disk that stands still for a minute: calls are refused by their deadline with the
// reason, readiness says it, and when it goes on all is well by itself.
func TestDiskThatStandsStillForAMinute(t *testing.T) {
	t.Parallel()
	const still = time.Minute
	d := newDisk(t)
	n := startOn(t, d)
	path, lines := ledger(t)
	going := n.submit(t, "--", "sh", "-c", "echo going >> "+path+"; sleep 5; exit 7")
	n.awaitRunning(t.Context(), t, going)
	began := time.Now()
	d.leave()
	var group sync.WaitGroup
	for _, c := range []struct {
		name, says string
		args       []string
	}{
		{"create", "the store did not say whether", []string{"run", "-d", "--idempotency-key", "during", "--", "sh", "-c", "echo during >> " + path}},
		{"cancel", "did not answer", []string{"cancel", going}},
	} {
		group.Go(func() {
			if r := n.errand(t, c.args...); r.code != 125 || !strings.Contains(r.stderr, c.says) || r.took > 45*time.Second {
				t.Errorf("%s: code %d after %s, stdout %q, stderr %q; want %q", c.name, r.code, r.took, r.stdout, r.stderr, c.says)
			}
		})
	}
	for {
		err := daemon.Probe(t.Context(), n.Address+"/readyz")
		if err != nil && strings.Contains(err.Error(), "embedded store") && strings.Contains(err.Error(), "does not answer") {
			break
		}
		if time.Since(began) > still/2 {
			t.Fatalf("readiness says %v", err)
		}
		<-time.After(100 * time.Millisecond)
	}
	if err := daemon.Probe(t.Context(), n.Address+"/healthz"); err != nil {
		t.Errorf("the process serves: %v", err)
	}
	group.Wait()
	<-time.After(still - time.Since(began))
	d.comeBack()
	awaitReady(t, n)
	if r := n.errand(t, "wait", "--timeout", "60s", going); r.code != 7 {
		t.Errorf("the run that was going gave %d, stderr %q; want 7\n%s", r.code, r.stderr, n.log)
	}
	if r := n.errand(t, "run", "--idempotency-key", "during", "--", "sh", "-c", "echo during >> "+path); r.code != 0 {
		t.Errorf("the same key again gave %d, stderr %q", r.code, r.stderr)
	}
	n.errand(t, "run", "--", "sh", "-c", "echo after >> "+path+"; exit 9").want(t, 9, "", "")
	startedOnce(t, lines(), []string{"going", "during", "after"})
}

// awaitReady returns when the node takes runs.
func awaitReady(t *testing.T, n *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for daemon.Probe(ctx, n.Address+"/readyz") != nil {
		if ctx.Err() != nil {
			t.Fatalf("not ready again: %v\n%s", daemon.Probe(t.Context(), n.Address+"/readyz"), n.log)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// A sync of the store that fails leaves open what is on the disk, so the daemon ends and
// says so; what runs goes on, and the next daemon takes it up.
func TestSyncThatFailsEndsTheDaemonWithItsReason(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	n := startOn(t, d)
	path, lines := ledger(t)
	going := n.submit(t, "--", "sh", "-c", "echo going >> "+path+"; until [ -e "+path+".end ]; do sleep 0.1; done; exit 7")
	n.awaitRunning(t.Context(), t, going)
	d.fail(syscall.EIO)
	if r := n.errand(t, "run", "-d", "--idempotency-key", "during", "--", "sh", "-c", "echo during >> "+path); r.code != 125 {
		t.Errorf("a run on a disk that fails: code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	if err := n.Stop(); err == nil {
		t.Error("the daemon went on")
	}
	for _, says := range []string{"input/output error", "the embedded store can not go on, so this process ends", "What runs goes on"} {
		if !strings.Contains(n.log.String(), says) {
			t.Errorf("the log does not say %q:\n%s", says, n.log)
		}
	}
	d.fail(0)
	n.start(t)
	if s := n.show(t, going); s.Status != "RUNNING" {
		t.Errorf("the run that was going is %s: %s", s.Status, s.Message)
	}
	if err := os.WriteFile(path+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.errand(t, "wait", "--timeout", "60s", going); r.code != 7 {
		t.Errorf("wait gave %d, stderr %q; want 7\n%s", r.code, r.stderr, n.log)
	}
	if r := n.errand(t, "run", "--idempotency-key", "during", "--", "sh", "-c", "echo during >> "+path); r.code != 0 {
		t.Errorf("the same key again gave %d, stderr %q", r.code, r.stderr)
	}
	startedOnce(t, lines(), []string{"going", "during"})
}
