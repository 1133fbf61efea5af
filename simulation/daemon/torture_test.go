package daemon_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// tortureEnv is how often a torture kills the daemon, where it is more than usual.
const tortureEnv = "ERRAND_TORTURE_KILLS"

// torture is a node that is killed again and again while it has runs.
type torture struct {
	node  *node
	spec  func(script string) *errandv1.RunSpec
	kills int
	// seed is in the keys of the runs too: what is left over of another torture on this
	// machine would bear the same ids.
	seed   uint64
	random *rand.Rand
	// client is of the node's address, through all of its restarts.
	client errandv1connect.RunServiceClient

	mu    sync.Mutex
	runs  map[string]expected
	ready []time.Duration

	// going holds a token for each run that has not ended, and waits those who wait for
	// them: a machine that is slow gets less to do, and not a queue without an end.
	going chan struct{}
	waits sync.WaitGroup
}

// goingMax is how many runs there are at a time.
const goingMax = 64

// expected is how a run must end.
type expected struct{ code int }

// script has a command write what it is and that it starts, and at its end the same
// again: once to its output, and once, where there is one, to the ledger of all.
func script(ledger, sleep string, code int) string {
	line := `echo "%s $ERRAND_RUN_ID $ERRAND_ATTEMPT" >> ` + ledger
	return fmt.Sprintf(line+"; sleep %s; "+line+"; exit %d", "start", sleep, "end", code)
}

// create creates a run, however often the node is down meanwhile.
func (x *torture) create(ctx context.Context, key string, spec *errandv1.RunSpec, want expected) error {
	for {
		created, err := x.client.Create(ctx, &errandv1.CreateRunRequest{IdempotencyKey: key, Spec: spec})
		if err == nil {
			x.mu.Lock()
			x.runs[created.GetRun().GetId()] = want
			x.mu.Unlock()
			x.waits.Go(func() { x.await(ctx, created.GetRun().GetId()) })
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create %s: %w", key, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// await gives the token of a run back when it has ended.
func (x *torture) await(ctx context.Context, id string) {
	defer func() { <-x.going }()
	for ctx.Err() == nil {
		if _, err := x.client.Wait(ctx, &errandv1.WaitRunRequest{Id: id}); err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the daemon is away
		}
	}
}

// load keeps creating runs until it is told to stop: of each 60, ten take long.
func (x *torture) load(ctx context.Context, ledger string, stop <-chan struct{}) error {
	for i := 0; ; i++ {
		sleep, pause := fmt.Sprintf("0.%d", i%4), 60*time.Millisecond
		if i%6 == 5 {
			sleep = "5"
		}
		select {
		case x.going <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := x.create(ctx, fmt.Sprintf("torture-%d-%d", x.seed, i), x.spec(script(ledger, sleep, i%7)), expected{i % 7}); err != nil {
			return err
		}
		select {
		case <-stop:
			if i >= 59 {
				return nil
			}
		case <-time.After(pause):
		}
	}
}

// kill kills the daemon at random moments, and starts it again. On a machine on which it
// is slow to start it has as much longer for its work.
func (x *torture) kill(t *testing.T) {
	for range x.kills {
		most := max(time.Second, x.node.Ready)
		<-time.After(100*time.Millisecond + time.Duration(x.random.Int64N(int64(most-100*time.Millisecond)))) // moments of no meaning
		x.node.restart(t)
		x.ready = append(x.ready, x.node.Ready)
	}
}

func (x *torture) run(t *testing.T, ledger string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Duration(x.kills)*10*time.Second)
	defer cancel()
	x.seed = uint64(time.Now().UnixNano())
	x.random, x.runs = rand.New(rand.NewPCG(x.seed, 0)), map[string]expected{}
	x.client, x.going = x.node.Runs, make(chan struct{}, goingMax)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- x.load(ctx, ledger, stop) }()
	x.kill(t)
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x.waits.Wait()
	unknown := x.outcomes(ctx, t)
	slices.Sort(x.ready)
	t.Logf("seed %d: %d kills, %d runs, %d of unknown start; ready again after %s (median), %s (most)",
		x.seed, x.kills, len(x.runs), len(unknown), x.ready[len(x.ready)/2], x.ready[len(x.ready)-1])
	x.judge(t, x.lines(t, ledger), unknown)
	x.leftovers(ctx, t)
}

// outcomes waits for all runs and returns those of which nobody can say whether their
// command ran: the ones that were being started when the daemon was killed.
func (x *torture) outcomes(ctx context.Context, t *testing.T) map[string]bool {
	unknown := map[string]bool{}
	for id, want := range x.runs {
		ended, err := x.client.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
		if err != nil {
			t.Fatalf("run %s is lost: %v", id, err)
		}
		run := ended.GetRun()
		switch {
		case run.ExitCode == nil && run.GetReason() == errandv1.Reason_REASON_START_UNKNOWN:
			unknown[id] = true
		case run.ExitCode == nil || int(run.GetExitCode()) != want.code:
			t.Errorf("run %s ended as %s, %s, code %v: %s; want %d", id, run.GetStatus(), run.GetReason(), run.ExitCode, run.GetMessage(), want.code)
		}
	}
	if most := x.kills * 2 * runtime.NumCPU(); len(unknown) > most {
		t.Errorf("%d runs of unknown start, more than %d kills can have caught: %d", len(unknown), x.kills, most)
	}
	return unknown
}

// lines returns what the commands wrote: of their outputs, where they have no ledger.
func (x *torture) lines(t *testing.T, ledger string) []string {
	t.Helper()
	if ledger != outputLedger {
		text, err := os.ReadFile(ledger)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	var all []string
	for id := range x.runs {
		if text := strings.TrimSpace(x.node.errand(t, "logs", id).stdout); text != "" {
			all = append(all, strings.Split(text, "\n")...)
		}
	}
	return all
}

// judge fails the test for each command that started twice, did not, or did not end.
func (x *torture) judge(t *testing.T, lines []string, unknown map[string]bool) {
	count := map[string]int{}
	for _, line := range lines {
		count[line]++
	}
	for line, times := range count {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Errorf("a line of the ledger is %q", line)
			continue
		}
		if _, known := x.runs[fields[1]]; !known || times != 1 || fields[2] != "1" {
			t.Errorf("%q stands %d times in the ledger, of a known run: %v", line, times, known)
		}
	}
	for id := range x.runs {
		started, ended := count["start "+id+" 1"], count["end "+id+" 1"]
		if !unknown[id] && (started != 1 || ended != 1) {
			t.Errorf("the command of %s started %d times and came to its end %d times", id, started, ended)
		}
	}
	t.Logf("ledger: %d lines", len(lines))
}

// leftovers fails the test with all that is left of the sandboxes.
func (x *torture) leftovers(ctx context.Context, t *testing.T) {
	n := leftover.Node{Data: x.node.data}
	for id := range x.runs {
		n.Sandboxes = append(n.Sandboxes, records.SandboxID(id, 1, 1))
	}
	settle, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	found, err := n.Settle(settle)
	if err != nil {
		t.Error(err)
	}
	for _, one := range found {
		t.Errorf("left over: %s", one)
	}
	logs, err := n.Logs()
	if err != nil || logs > len(x.runs) {
		t.Errorf("%d logs of %d runs, %v", logs, len(x.runs), err)
	}
	t.Logf("left over: %d; logs that are kept: %d", len(found), logs)
}

// kills is how often, at least.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv(tortureEnv)
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number of kills", tortureEnv, text)
	}
	return n
}

// outputLedger is that of a command that has no file in common with others.
const outputLedger = "/dev/stdout"

func TestTortureOfProcesses(t *testing.T) {
	x := &torture{node: startNode(t), kills: kills(t), spec: func(script string) *errandv1.RunSpec {
		return &errandv1.RunSpec{Driver: "process", Command: []string{"/bin/sh", "-c", script}}
	}}
	x.run(t, filepath.Join(t.TempDir(), "ledger"))
}

// A container shares no file with the others, so each keeps its ledger in its output:
// a second start of an attempt would write to the same log.
func TestTortureOfContainers(t *testing.T) {
	x := &torture{node: startContainerNode(t), kills: kills(t), spec: func(script string) *errandv1.RunSpec {
		return &errandv1.RunSpec{
			Driver: "containerd", Image: "busybox", Command: []string{"/bin/sh", "-c", script},
			// On a busy machine one is not made between two kills: it is once they are over.
			StartDeadline: durationpb.New(time.Hour),
		}
	}}
	x.run(t, outputLedger)
}

// Before anything is believed of an inventory that is empty: it sees each kind of
// thing while a sandbox is there.
func TestInventorySeesWhatASandboxHas(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	id := strings.TrimSpace(n.errand(t, "run", "-d", "busybox", "--", "sleep", "600").stdout)
	n.awaitRunning(t.Context(), t, id)
	scope := leftover.Node{Data: n.data, Sandboxes: []string{records.SandboxID(id, 1, 1)}}
	found, err := scope.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"process", "namespace pid:", "namespace net:", "mount", "cgroup", "container", "task", "snapshot", "directory", "bundle", "shim socket", "runtime state"} {
		if !slices.ContainsFunc(found, func(one string) bool { return strings.HasPrefix(one, kind) }) {
			t.Errorf("it sees no %s in %q", kind, found)
		}
	}
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
	settle, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
		t.Errorf("afterwards there is %q, %v", found, err)
	}
}
