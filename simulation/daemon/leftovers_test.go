package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// onslaught is how many containers are run, and what is killed meanwhile.
type onslaught struct {
	name           string
	runs, parallel int
	// daemon and containerd are the mean times between two kills of each.
	daemon, containerd time.Duration
}

// NOD-07: whatever is killed while the disk is busy, nothing of any sandbox stays behind:
// no container, task, shim, snapshot, lease, mount, cgroup, namespace or file.
func TestTortureLeavesNothingOfManyContainers(t *testing.T) {
	onslaughts := []onslaught{{name: "short", runs: 40, parallel: 20, daemon: 3 * time.Second, containerd: 8 * time.Second}}
	if os.Getenv(tortureEnv) != "" {
		onslaughts = []onslaught{
			{name: "as the case has it", runs: 500, parallel: 20, daemon: 10 * time.Second, containerd: time.Minute},
			{name: "harder", runs: 240, parallel: 20, daemon: 2 * time.Second, containerd: 6 * time.Second},
		}
	}
	for _, o := range onslaughts {
		t.Run(o.name, o.test)
	}
}

func (o onslaught) test(t *testing.T) {
	n := startContainerNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	busy, calm := context.WithCancel(ctx)
	defer calm()
	var disk sync.WaitGroup
	disk.Go(func() { saturate(busy, t) })
	began := time.Now()
	done := make(chan []*errandv1.Run, 1)
	go func() { done <- o.work(ctx, t, n.Address, seed) }()
	ended, daemons, containerds := o.kill(t, n, rand.New(rand.NewPCG(seed, 0)), done)
	calm()
	disk.Wait()
	took := time.Since(began)
	scope, unsure := leftover.Node{Data: n.data}, 0
	for _, run := range ended {
		switch {
		case run.GetStatus() == errandv1.Status_STATUS_SUCCEEDED:
		case run.GetReason() == errandv1.Reason_REASON_START_UNKNOWN && run.ExitCode == nil:
			unsure++ // it was being started when the daemon was killed
		default:
			t.Errorf("a run of true ended as %v", run)
		}
		for placement := int32(1); placement <= 3; placement++ {
			scope.Sandboxes = append(scope.Sandboxes, records.SandboxID(run.GetId(), 1, placement))
		}
	}
	settle, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	began = time.Now()
	found, err := scope.Settle(settle)
	if err != nil || len(found) > 0 {
		t.Errorf("left over: %v, %v", found, err)
		n.tellOf(t, found)
	}
	// The node says the same of itself.
	if r := n.errand(t, "node", "check"); (r.code == 0) != (len(found) == 0) {
		t.Errorf("left over: %d things; node check gave %+v", len(found), r)
	}
	t.Logf("seed %d: %d runs in %s, %d of unknown start; the daemon was killed %d times, containerd %d times; left over %s later: %d",
		seed, len(ended), took.Round(time.Second), unsure, daemons, containerds, time.Since(began).Round(time.Millisecond), len(found))
}

// work runs all of the containers and returns how they have ended.
func (o onslaught) work(ctx context.Context, t *testing.T, address string, seed uint64) []*errandv1.Run {
	// The node is away for most of the time, when it is killed that often.
	c, err := client.New(client.Config{Address: address, Patience: client.Patience{Again: 20 * time.Minute}})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer c.Close()
	ended := make([]*errandv1.Run, o.runs)
	var work sync.WaitGroup
	for worker := range o.parallel {
		work.Go(func() {
			for i := worker; i < o.runs; i += o.parallel {
				// Ids of its own: what another test leaves on the machine has other ones.
				created, err := c.Submit(ctx, &errandv1.CreateRunRequest{
					IdempotencyKey: fmt.Sprintf("left-%d-%d", seed, i),
					// On a busy machine no container may be made between two kills: it is once they are over.
					Spec: &errandv1.RunSpec{Image: "busybox", Command: []string{"true"}, StartDeadline: durationpb.New(time.Hour)},
				})
				if err == nil {
					ended[i], err = c.Wait(ctx, created.GetId())
				}
				if err != nil {
					t.Errorf("run %d: %v", i, err)
					return
				}
			}
		})
	}
	work.Wait()
	return ended
}

// kill kills the daemon and containerd at random moments until the work is done. Half of
// the kills of containerd happen while there is no daemon.
func (o onslaught) kill(t *testing.T, n *node, random *rand.Rand, done <-chan []*errandv1.Run) (ended []*errandv1.Run, daemons, containerds int) {
	t.Helper()
	about := func(mean time.Duration) time.Duration { return mean/2 + time.Duration(random.Int64N(int64(mean))) }
	containerd := func() {
		// None while it is started again.
		if pid := n.containerd(t); pid > 0 {
			containerds++
			sendSignal(t, pid, syscall.SIGKILL)
		}
	}
	daemonAt, containerdAt := time.NewTimer(about(o.daemon)), time.NewTimer(about(o.containerd))
	defer daemonAt.Stop()
	defer containerdAt.Stop()
	both := false
	for {
		select {
		case ended := <-done:
			return ended, daemons, containerds
		case <-daemonAt.C:
			daemons++
			n.crash(t)
			if both {
				containerd()
				both = false
			}
			began := time.Now()
			n.start(t)
			// As long to live as it took to start, or nothing is ever made on a busy machine.
			daemonAt.Reset(about(max(o.daemon, time.Since(began))))
		case <-containerdAt.C:
			if both = random.IntN(2) == 0; !both {
				containerd()
			}
			containerdAt.Reset(about(o.containerd))
		}
	}
}

// saturate keeps the disk of the tests busy with writes and syncs until its context ends.
func saturate(ctx context.Context, t *testing.T) {
	t.Helper()
	path, block := filepath.Join(t.TempDir(), "busy"), bytes.Repeat([]byte("busy"), 256<<10)
	for ctx.Err() == nil {
		file, err := os.Create(path)
		if err == nil {
			_, err = file.Write(block)
		}
		if err == nil {
			err = file.Sync()
		}
		if closed := file.Close(); err != nil || closed != nil {
			t.Error(err, closed)
			return
		}
	}
}

// tellOf logs what can be known of things that were left.
func (n *node) tellOf(t *testing.T, found []string) {
	t.Helper()
	for _, one := range found {
		_, name, _ := strings.Cut(one, " ")
		if !filepath.IsAbs(name) {
			continue
		}
		listing, _ := exec.Command("ls", "-laR", "--time-style=full-iso", name).CombinedOutput()
		t.Logf("%s", listing)
		for line := range strings.Lines(n.log.String()) {
			if strings.Contains(line, filepath.Base(name)) {
				t.Log(line)
			}
		}
	}
	containerd, _ := os.ReadFile(filepath.Join(n.data, "containerd", "containerd.log"))
	t.Logf("containerd: %s", containerd)
}
