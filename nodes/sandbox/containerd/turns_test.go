package containerd

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Many that begin at once would each have a share of the machine, and none would be done
// in its time.
func TestCommandsBesideOthersAreStartedAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 5
		turns := newExecTurns(all)
		var under, most atomic.Int64
		var own [3]atomic.Int64
		var group sync.WaitGroup
		for i := range 60 {
			group.Go(func() {
				leave, err := turns.take(t.Context(), []string{"a", "b", "c"}[i%3])
				if err != nil {
					t.Error(err)
					return
				}
				defer leave()
				if n := under.Add(1); n > most.Load() {
					most.Store(n)
				}
				if n := own[i%3].Add(1); n > execsPerSandbox {
					t.Errorf("%d are started in one sandbox", n)
				}
				time.Sleep(time.Second)
				own[i%3].Add(-1)
				under.Add(-1)
			})
		}
		group.Wait()
		if most.Load() != all {
			t.Errorf("%d were started at a time, want %d", most.Load(), all)
		}
		if len(turns.of) > 0 || len(turns.all) > 0 {
			t.Errorf("%d sandboxes and %d turns are still noted", len(turns.of), len(turns.all))
		}
	})
}

func TestSandboxThatHangsHoldsUpOnlyCommandsOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newExecTurns(execsPerSandbox + 1)
		for range execsPerSandbox {
			if _, err := turns.take(t.Context(), "hangs"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.take(ctx, "hangs"); records.ClassOf(err) != records.ClassUnavailable {
			t.Errorf("got %v", err)
		}
		leave, err := turns.take(t.Context(), "works")
		if err != nil {
			t.Fatal(err)
		}
		// Who gives up the wait for the last turn of all leaves that of its sandbox.
		if _, err := turns.take(ctx, "third"); records.ClassOf(err) != records.ClassUnavailable {
			t.Errorf("got %v", err)
		}
		leave()
		if len(turns.of) != 1 || len(turns.all) != execsPerSandbox {
			t.Errorf("%d sandboxes and %d turns are noted", len(turns.of), len(turns.all))
		}
	})
}

func TestExecWaitsForItsTurn(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "100")
	b.start(spec)
	defer b.end(spec)
	var leaves []func()
	for range execsPerSandbox {
		leave, err := b.d.execs.take(within(t), spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	var out, errors bytes.Buffer
	exec := sandbox.Exec{Command: []string{"echo", "in turn"}, Stdout: &out, Stderr: &errors}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.d.Exec(ctx, spec.ID, exec); records.ClassOf(err) != records.ClassUnavailable || out.Len() > 0 {
		t.Errorf("out of turn it gave %v and wrote %q", err, out.String())
	}
	for _, leave := range leaves {
		leave()
	}
	if end, err := b.d.Exec(within(t), spec.ID, exec); err != nil || end.Code != 0 || out.String() != "in turn\n" {
		t.Errorf("in turn it ended with %+v, %v and wrote %q", end, err, out.String())
	}
}
