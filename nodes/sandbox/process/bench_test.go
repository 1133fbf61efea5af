package process_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
)

// specOf makes a spec with its log below root.
func specOf(root, run string, command ...string) sandbox.Spec {
	return sandbox.Spec{
		ID: records.SandboxID(run, 1, 1), Run: run, Attempt: 1, Placement: 1,
		LogPath: logs.Path(root, run, 1),
		Spec:    &recordv1.Spec{Command: command, Env: []string{"PATH=" + os.Getenv("PATH")}},
	}
}

// live is one whole life of a sandbox; it returns how long after the command's end
// Wait told of it.
func live(ctx context.Context, d sandbox.Driver, spec sandbox.Spec) (time.Duration, error) {
	if err := d.Create(ctx, spec); err != nil {
		return 0, err
	}
	if _, err := d.Start(ctx, spec.ID); err != nil {
		return 0, err
	}
	exit, err := d.Wait(ctx, spec.ID)
	late := time.Since(exit.At)
	if err != nil || exit.Code == nil || *exit.Code != 0 {
		return 0, fmt.Errorf("exit %+v, %w", exit, err)
	}
	if _, err := d.Kill(ctx, spec.ID); err != nil {
		return 0, err
	}
	if _, err := d.Flush(ctx, spec.ID); err != nil {
		return 0, err
	}
	return late, d.Remove(ctx, spec.ID)
}

func BenchmarkTrue(b *testing.B) {
	for _, submitters := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("submitters=%d", submitters), func(b *testing.B) {
			c, root := config(b), b.TempDir()
			d := open(b, c)
			defer d.Close()
			var next atomic.Int64
			var mu sync.Mutex
			var lates []time.Duration
			before := cpu()
			b.ResetTimer()
			var all sync.WaitGroup
			for range submitters {
				all.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						late, err := live(context.Background(), d, specOf(root, fmt.Sprintf("r.b.%d", i), "true"))
						if err != nil {
							b.Error(err)
							return
						}
						mu.Lock()
						lates = append(lates, late)
						mu.Unlock()
					}
				})
			}
			all.Wait()
			b.StopTimer()
			slices.Sort(lates)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
			b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/run")
			b.ReportMetric(float64(lates[len(lates)/2].Microseconds())/1000, "exit-to-wait-ms")
		})
	}
}

// cpu is the time of this process and of the children that it has reaped.
func cpu() time.Duration {
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}
