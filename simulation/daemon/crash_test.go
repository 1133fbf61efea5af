package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// ledger is a file to which each command writes one line when it starts: a
// counter outside the product.
func ledger(t *testing.T) (path string, lines func() []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger")
	return path, func() []string {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
}

// awaitRunning returns when the run's command has been seen running.
func (n *node) awaitRunning(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	stream, err := n.Runs.Watch(ctx, &errandv1.WatchRunRequest{Id: id})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if stream.Msg().GetRun().GetStatus() == errandv1.Status_STATUS_RUNNING {
			return
		}
	}
	t.Fatalf("run %s never read RUNNING: %v", id, stream.Err())
}

// NOD-01 (a): a crash of the daemon is not an exit of the command.
func TestCommandSurvivesACrashOfTheDaemon(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	path, lines := ledger(t)
	id := n.submit(t, "--", "sh", "-c", "echo $$ >> "+path+"; echo start; until [ -e "+path+".end ]; do sleep 0.05; done; echo end; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	n.restart(t)
	if s := n.show(t, id); s.Status != "RUNNING" {
		t.Fatalf("after the crash the run is %s: %s", s.Status, s.Message)
	}
	if err := os.WriteFile(path+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.errand(t, "wait", id); r.code != 3 {
		t.Fatalf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, n.log)
	}
	if r := n.errand(t, "logs", id); r.stdout != "start\nend\n" {
		t.Fatalf("the log is %q", r.stdout)
	}
	if started := lines(); len(started) != 1 {
		t.Fatalf("the command was started %d times", len(started))
	}
}

func TestExitWhileTheDaemonIsDownIsReported(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "--", "sh", "-c", "echo out; sleep 2; exit 9")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	begin := time.Now()
	n.crash(t)
	<-time.After(2*time.Second + busy - time.Since(begin)) // the command ends while nobody looks
	n.start(t)
	if r := n.errand(t, "wait", id); r.code != 9 {
		t.Fatalf("wait gave %d; want 9", r.code)
	}
	attempt := n.show(t, id).Attempts[0]
	if attempt.EndedAt.Sub(attempt.StartedAt) > busy || !attempt.LogComplete {
		t.Fatalf("the end is not that of the command: %+v", attempt)
	}
}

// A crash between TERM and KILL does not lose that TERM was sent, and when. The next
// daemon stops the command anew.
func TestStopSignalsOutliveACrashOfTheDaemon(t *testing.T) {
	t.Parallel()
	// Half of it is left to the journal for noting what was sent, which nobody is told of.
	const grace = 8 * time.Second
	n := startNode(t)
	path, lines := ledger(t)
	id := n.submit(t, "--stop-grace", grace.String(), "--", "sh", "-c", "trap 'echo TERM >> "+path+"' TERM; while :; do sleep 0.05; done")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	n.errand(t, "cancel", id).want(t, 0, id+"\n", "")
	for len(lines()) == 0 {
		if ctx.Err() != nil {
			t.Fatal("TERM never arrived")
		}
		<-time.After(10 * time.Millisecond)
	}
	<-time.After(grace / 2)
	crashed := time.Now()
	n.crash(t)
	n.start(t)
	n.errand(t, "wait", "--timeout", "100s", id)
	s := n.show(t, id)
	sent := s.Attempts[0].Signals
	if s.Status != "CANCELED" || len(sent) != 3 || sent[0].Name != "TERM" || sent[1].Name != "TERM" || sent[2].Name != "KILL" {
		t.Fatalf("got %+v; want CANCELED by TERM, TERM again and KILL", s)
	}
	if !sent[0].At.Before(crashed) || !sent[1].At.After(crashed) || sent[2].At.Sub(sent[1].At) < grace-100*time.Millisecond {
		t.Errorf("signals %+v; want TERM before and after %s, and KILL %s later", sent, crashed, grace)
	}
	for _, one := range sent {
		if one.Delivered == nil || !*one.Delivered || one.Reason != "CANCELED" {
			t.Errorf("signal %+v, want one for CANCELED that arrived", one)
		}
	}
}

// G2, G7, G8: whatever the moment of the crash, no command starts twice and each run
// ends with its own code. Only one that was being started at that moment may end
// without: nobody can say whether its command ran, so it is never started again.
func TestCrashesUnderLoadLoseNothingAndStartNothingTwice(t *testing.T) {
	t.Parallel()
	const runs, crashes = 60, 6
	n := startNode(t)
	path, lines := ledger(t)
	ids := make(chan string, runs)
	client := n.Runs // of the same address through all restarts
	go func() {
		defer close(ids)
		for i := range runs {
			for {
				created, err := client.Create(context.Background(), &errandv1.CreateRunRequest{
					IdempotencyKey: fmt.Sprintf("load-%d", i),
					Spec: &errandv1.RunSpec{Driver: "process", Command: []string{
						"/bin/sh", "-c", fmt.Sprintf("echo %d >> %s; sleep 0.%d; exit %d", i, path, i%5, i%7),
					}},
				})
				if err == nil {
					ids <- created.GetRun().GetId()
					break
				}
				<-time.After(50 * time.Millisecond) // the node is down: a client would try again as well
			}
		}
	}()
	for range crashes {
		<-time.After(400 * time.Millisecond) // crashes at moments of no meaning
		address := n.Address
		n.restart(t)
		if n.Address != address {
			t.Fatal("the node came back on another address")
		}
	}
	i, unknown := 0, map[string]bool{}
	for id := range ids {
		r := n.errand(t, "wait", "--timeout", "60s", id)
		switch s := n.show(t, id); {
		case s.Reason == "START_UNKNOWN" && s.ExitCode == nil && r.code == 125:
			unknown[strconv.Itoa(i)] = true
		case r.code != i%7:
			t.Errorf("run %d, %s: wait gave %d, stderr %q; want %d: %+v", i, id, r.code, r.stderr, i%7, s)
		}
		i++
	}
	if most := crashes * 2 * runtime.NumCPU(); len(unknown) > most {
		t.Errorf("%d runs of unknown start, more than %d crashes can have caught: %d", len(unknown), crashes, most)
	}
	started := map[string]int{}
	for _, line := range lines() {
		started[line]++
	}
	for i := range runs {
		name := strconv.Itoa(i)
		if n := started[name]; n > 1 || n == 0 && !unknown[name] {
			t.Errorf("the command of run %d was started %d times", i, n)
		}
	}
}

// runOutlivesARestart restarts the node under an errand run (API-01).
func (n *node) runOutlivesARestart(t *testing.T, k kind) {
	t.Helper()
	done := make(chan result, 1)
	go func() {
		done <- n.errand(t, slices.Concat([]string{"run", "--name", "outlives"}, k.args, []string{"--", "sh", "-c", "echo one; sleep 4; echo two >&2; exit 17"})...)
	}()
	for deadline := time.Now().Add(2 * time.Minute); n.errand(t, "runs", "-q", "--name", "outlives", "--status", "RUNNING").stdout == ""; {
		if time.Now().After(deadline) {
			t.Fatal("the run never came up")
		}
	}
	n.restart(t)
	(<-done).want(t, 17, "one\n", "two\n")
}

func TestCleanRestartLetsSandboxesGoOn(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "--", "sh", "-c", "sleep 3; exit 5")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	if err := n.Stop(); err != nil {
		t.Fatalf("stop: %v\n%s", err, n.log)
	}
	n.start(t)
	if r := n.errand(t, "wait", id); r.code != 5 {
		t.Fatalf("wait gave %d; want 5", r.code)
	}
}
