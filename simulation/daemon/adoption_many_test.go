package daemon_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// NOD-01 (d): a daemon that comes back takes over all that runs, in good time.
func TestTwoHundredContainersAreAdopted(t *testing.T) {
	const (
		containers = 200
		submitters = 8
		adoptMax   = 30 * time.Second
	)
	n := startContainerNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	const script = `trap "echo end; exit 3" TERM; echo start; sleep 600 & wait`
	ids := make([]string, containers)
	var group sync.WaitGroup
	for worker := range submitters {
		group.Go(func() {
			for i := worker; i < containers; i += submitters {
				created, err := n.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox", Command: []string{"sh", "-c", script}}})
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = created.GetRun().GetId()
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		n.awaitRunning(ctx, t, id)
	}
	began := time.Now()
	n.restart(t)
	ready := time.Since(began)
	// A node that takes up two hundred may say that it is not sure, and is asked again.
	again, err := client.New(client.Config{Address: n.Address})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for worker := range submitters {
		group.Go(func() {
			for i := worker; i < containers; i += submitters {
				if _, err := again.Cancel(ctx, &errandv1.CancelRunRequest{Id: ids[i]}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	var adopted time.Duration
	for _, id := range ids {
		ended, err := n.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
		if err != nil {
			t.Fatalf("run %s is lost: %v", id, err)
		}
		run := ended.GetRun()
		// The command makes use of the signal to end as it likes.
		if run.GetStatus() != errandv1.Status_STATUS_CANCELED || run.ExitCode == nil || run.GetExitCode() != 3 || len(run.GetAttempts()) != 1 || run.GetAttempts()[0].GetAdoptedAt() == nil {
			t.Errorf("run %s is %v", id, run)
			continue
		}
		adopted = max(adopted, run.GetAttempts()[0].GetAdoptedAt().AsTime().Sub(began))
	}
	if adopted > adoptMax {
		t.Errorf("the last one was adopted %s after the daemon was started, more than %s", adopted, adoptMax)
	}
	t.Logf("%d containers: the last one adopted %s after the start of the daemon, ready after %s", containers, adopted, ready)
	scope := leftover.Node{Data: n.data}
	for i, id := range ids {
		if i%20 == 0 {
			if log := n.errand(t, "logs", id); log.stdout != "start\nend\n" {
				t.Errorf("the log of %s is %q", id, log.stdout)
			}
		}
		scope.Sandboxes = append(scope.Sandboxes, records.SandboxID(id, 1, 1))
	}
	settle, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
		t.Errorf("left over: %v, %v", found, err)
	}
}
