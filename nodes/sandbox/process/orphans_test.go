package process_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// TestLostSupervisorTakesAllAlong: also what has left the command's session.
func TestLostSupervisorTakesAllAlong(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		t.Run(fmt.Sprintf("adopted=%v", adopted), func(t *testing.T) {
			c := config(t)
			d := open(t, c)
			defer func() { _ = d.Close() }()
			// Another test may run at the same time, as the same user.
			run := fmt.Sprintf("r.orphans.%d-%v", os.Getpid(), adopted)
			spec := specOf(t.TempDir(), run, "sh", "-c", "sleep 600 & setsid sh -c 'sleep 600 & sleep 600' & wait")
			spec.Spec.Env = append(spec.Spec.Env, sandbox.EnvRunID+"="+run, sandbox.EnvAttempt+"="+strconv.Itoa(int(spec.Attempt)))
			start(t, d, spec)
			supervisor, command := pids(t, c.Dir, spec.ID)
			all := descendants(t, command, 4)
			if adopted {
				_ = d.Close()
			}
			if err := supervisor.Signal(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if adopted {
				d = open(t, c)
			}
			if exit, err := d.Wait(bounded(t), spec.ID); err != nil || exit.Code != nil {
				t.Errorf("the end is %+v, %v", exit, err)
			}
			for _, p := range all {
				if p.Alive() {
					t.Errorf("process %v outlives the end of its run", p)
					_ = p.Signal(unix.SIGKILL)
				}
			}
			remove(t, d, spec.ID)
		})
	}
}

// descendants waits until there are as many as wanted of a process.
func descendants(t *testing.T, of pid.Ref, want int) (all []pid.Ref) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all = children(t, of)
		for i := 0; i < len(all); i++ {
			all = append(all, children(t, all[i])...)
		}
		if len(all) == want {
			return all
		}
	}
	t.Fatalf("there are %d descendants, not %d", len(all), want)
	return nil
}
