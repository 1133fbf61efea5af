package daemon_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
)

// statuses follows a run from now to its end, whatever becomes of the node meanwhile,
// and then returns the statuses that it went through.
func (n *node) statuses(ctx context.Context, t *testing.T, id string) func() []string {
	t.Helper()
	c, err := client.New(client.Config{Address: n.Address})
	if err != nil {
		t.Fatal(err)
	}
	var through []string
	done := make(chan error, 1)
	go func() {
		defer c.Close()
		for run, err := range c.Watch(ctx, id) {
			if err != nil {
				done <- err
				return
			}
			status := strings.TrimPrefix(run.GetStatus().String(), "STATUS_")
			if len(through) == 0 || through[len(through)-1] != status {
				through = append(through, status)
			}
		}
		done <- nil
	}()
	return func() []string {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatalf("watch %s: %v", id, err)
		}
		return through
	}
}

// containerd is the process of the node's own containerd, 0 while there is none.
func (n *node) containerd(t *testing.T) int {
	t.Helper()
	pid, _ := findProcess(t, "containerd\x00--config\x00", n.data)
	return pid
}

// restartContainerd ends the node's own containerd, as a restart of its unit would, and
// returns when another one is there.
func (n *node) restartContainerd(t *testing.T) {
	t.Helper()
	before := n.containerd(t)
	sendSignal(t, before, syscall.SIGTERM)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) { // nobody tells of a process that is no child
		if now := n.containerd(t); now != 0 && now != before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no other containerd\nnode: %s", n.log)
		}
	}
}

// NOD-01 (a) to (c): a restart of the daemon or of containerd is no exit of the command.
// The same processes go on, nothing is started again, and the end is the command's own.
func TestRestartsAreNoExitOfTheCommand(t *testing.T) {
	t.Parallel()
	const sleeps = 30 * time.Second
	down := func(t *testing.T, n *node) {
		n.crash(t)
		<-time.After(5 * time.Second)
		n.start(t)
	}
	for _, test := range []struct {
		name     string
		kind     kind
		restarts func(*testing.T, *node)
	}{
		{"process and daemon away for 5 s", kinds[0], down},
		{"process and daemon killed three times", kinds[0], func(t *testing.T, n *node) {
			for range 3 {
				n.restart(t)
			}
		}},
		{"containerd and daemon away for 5 s", kinds[1], down},
		{"containerd restarted", kinds[1], func(t *testing.T, n *node) { n.restartContainerd(t) }},
		{"containerd and daemon both killed three times", kinds[1], func(t *testing.T, n *node) {
			for range 3 {
				n.crash(t)
				sendSignal(t, n.containerd(t), syscall.SIGKILL)
				n.start(t)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := test.kind.start(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			id := test.kind.detach(t, n, nil, "sh", "-c", fmt.Sprintf("echo start; sleep %g; echo end; exit 3", sleeps.Seconds()))
			through := n.statuses(ctx, t, id)
			n.awaitRunning(ctx, t, id)
			awaitSleep(t, id)
			before := processesOf(t, id)
			<-time.After(time.Until(n.show(t, id).StartedAt.Add(5 * time.Second)))
			test.restarts(t, n)
			if after := processesOf(t, id); len(before) < 2 || !slices.Equal(before, after) {
				t.Errorf("the processes were %v and are %v", before, after)
			}
			if r := n.errand(t, "wait", id); r.code != 3 {
				t.Errorf("wait gave %d, stderr %q; want 3\nnode: %s", r.code, r.stderr, n.log)
			}
			s := n.show(t, id)
			took := s.EndedAt.Sub(s.StartedAt)
			if s.Status != "FAILED" || s.ExitCode == nil || *s.ExitCode != 3 || len(s.Attempts) != 1 || took < sleeps || took > sleeps+busy {
				t.Errorf("after %s the run is %+v", took, s)
			}
			if log := n.errand(t, "logs", id); log.stdout != "start\nend\n" {
				t.Errorf("the log is %q", log.stdout)
			}
			if got := through(); !slices.Equal(got, []string{"PENDING", "RUNNING", "FAILED"}) && !slices.Equal(got, []string{"RUNNING", "FAILED"}) {
				t.Errorf("the run went through %v", got)
			}
		})
	}
}
