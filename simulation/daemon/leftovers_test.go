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

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

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

// NOD-07: whatever is killed while the disk is busy, nothing of any sandbox stays behind:
// no container, task, shim, snapshot, lease, mount, cgroup, namespace or file.
//
// It is 500 of them in make torture, and fewer otherwise.
func TestTortureLeavesNothingOfManyContainers(t *testing.T) {
	runs := 120
	if os.Getenv(tortureEnv) != "" {
		runs = 500
	}
	const (
		parallel = 20
		// A kill of the daemon every so often, and every third time of containerd too.
		every = 6 * time.Second
	)
	n := startContainerNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	busy, calm := context.WithCancel(ctx)
	defer calm()
	var disk, work sync.WaitGroup
	disk.Go(func() { saturate(busy, t) })
	c, err := client.New(client.Config{Address: n.Address})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended := make([]*errandv1.Run, runs)
	for worker := range parallel {
		work.Go(func() {
			for i := worker; i < runs; i += parallel {
				// Ids of its own: what another test leaves on the machine has other ones.
				created, err := c.Submit(ctx, &errandv1.CreateRunRequest{
					IdempotencyKey: fmt.Sprintf("left-%d-%d", seed, i), Spec: &errandv1.RunSpec{Image: "busybox", Command: []string{"true"}},
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
	done := make(chan struct{})
	go func() { defer close(done); work.Wait() }()
	kills, others := 0, 0
	for going := true; going; {
		select {
		case <-done:
			going = false
		case <-time.After(every/2 + time.Duration(random.Int64N(int64(every)))):
			n.crash(t)
			if kills++; kills%3 == 0 {
				others++
				sendSignal(t, n.containerd(t), syscall.SIGKILL)
			}
			n.start(t)
		}
	}
	calm()
	disk.Wait()
	scope := leftover.Node{Data: n.data}
	unsure := 0
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
	began := time.Now()
	found, err := scope.Settle(settle)
	if err != nil || len(found) > 0 {
		t.Errorf("left over: %v, %v", found, err)
		for _, one := range found {
			if path, ok := strings.CutPrefix(one, "bundle "); ok {
				listing, _ := exec.Command("ls", "-laR", "--time-style=full-iso", path).CombinedOutput()
				t.Logf("%s", listing)
				for line := range strings.Lines(n.log.String()) {
					if strings.Contains(line, filepath.Base(path)) {
						t.Log(line)
					}
				}
			}
		}
		containerd, _ := os.ReadFile(filepath.Join(n.data, "containerd", "containerd.log"))
		t.Logf("containerd: %s", containerd)
	}
	t.Logf("seed %d: %d runs, %d of unknown start; the daemon was killed %d times, containerd %d times; left over %s later: %d",
		seed, runs, unsure, kills, others, time.Since(began).Round(time.Millisecond), len(found))
}
