package daemon_test

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// A run whose containerd stands still when it ends is told as ended all the same, and its
// sandbox goes when containerd answers again; also one that another daemon finds so.
func TestSandboxThatOutlivesContainerdsAbsenceGoes(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon killed meanwhile %t", restart), func(t *testing.T) {
			n := startContainerNode(t)
			id := kinds[1].detach(t, n, nil, "sh", "-c", "sleep 3; exit 6")
			n.awaitRunning(t.Context(), t, id)
			still := n.containerd(t)
			sendSignal(t, still, syscall.SIGSTOP)
			t.Cleanup(func() { _ = syscall.Kill(still, syscall.SIGCONT) })
			if !restart {
				if r := n.errand(t, "wait", "--timeout", "60s", id); r.code != 6 {
					t.Errorf("wait gave %+v: %+v", r, n.show(t, id))
				}
			}
			scope := leftover.Node{Data: n.data, Sandboxes: []string{records.SandboxID(id, 1, 1)}}
			if bundles, err := filepath.Glob(filepath.Join(n.data, "containerd", "state", "io.containerd.runtime.v2.task", "*", "*")); err != nil || len(bundles) == 0 {
				t.Errorf("nothing stands: %v", err)
			}
			if restart {
				n.crash(t)
				<-time.After(4 * time.Second) // the command ends while nobody looks
			}
			sendSignal(t, still, syscall.SIGCONT)
			if restart {
				n.start(t)
				if r := n.errand(t, "wait", "--timeout", "60s", id); r.code != 6 {
					t.Errorf("wait gave %+v: %+v", r, n.show(t, id))
				}
			}
			settle, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if found, err := scope.Settle(settle); err != nil || len(found) > 0 {
				t.Errorf("left over: %v, %v\nnode: %s", found, err, n.log)
			}
		})
	}
}
