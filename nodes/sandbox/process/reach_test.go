package process_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// awaitNoneAlive waits until the children of a supervisor are dead. Those that it has
// not reaped count as dead.
func awaitNoneAlive(t *testing.T, supervisor pid.Ref) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		alive := false
		for _, child := range children(t, supervisor) {
			alive = alive || child.Alive()
		}
		if !alive {
			return
		}
	}
	t.Fatal("the command does not end")
}

func TestASignalThatFindsTheCommandDeadHasNotReachedIt(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.reach.1", "sleep", "0.3")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	supervisor := supervisorOf(t, c.Dir, spec.ID)
	// It learns of the end and of the signal at the same time.
	if err := supervisor.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitNoneAlive(t, supervisor)
	if _, err := d.Signal(bounded(t), spec.ID, int(unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	exit, err := d.Wait(bounded(t), spec.ID)
	if err != nil || exit.Code == nil || *exit.Code != 0 || exit.Reached == nil || *exit.Reached {
		t.Fatalf("the end is %+v, %v: no signal reached the command", exit, err)
	}
}

// TestASignalIsRefusedWhileTheLogIsCompleted: a pipe that another process holds open
// lets the supervisor wait for its end.
func TestASignalIsRefusedWhileTheLogIsCompleted(t *testing.T) {
	c := config(t)
	d := open(t, c)
	defer d.Close()
	spec := specOf(t.TempDir(), "r.reach.2", "sleep", "0.3")
	start(t, d, spec)
	defer remove(t, d, spec.ID)
	supervisor, command := pids(t, c.Dir, spec.ID)
	held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", command.PID), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for deadline := time.Now().Add(2 * time.Minute); len(children(t, supervisor)) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	// The command is reaped, and the log not complete for a second or two.
	delivered := true
	for deadline := time.Now().Add(time.Second); delivered && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if delivered, err = d.Signal(bounded(t), spec.ID, int(unix.SIGTERM)); err != nil {
			t.Fatal(err)
		}
	}
	if delivered {
		t.Error("a signal is delivered to a command that has ended")
	}
	if exit, err := d.Wait(bounded(t), spec.ID); err != nil || exit.Reached == nil || *exit.Reached {
		t.Errorf("the end is %+v, %v: no signal reached the command", exit, err)
	}
}

func TestAnEndTellsThatASignalReachedTheCommandToLaterDriversToo(t *testing.T) {
	c := config(t)
	d := open(t, c)
	spec := specOf(t.TempDir(), "r.reach.3", "sh", "-c", `trap "exit 77" TERM; while :; do sleep 0.05; done`)
	start(t, d, spec)
	if delivered, err := d.Signal(bounded(t), spec.ID, int(unix.SIGTERM)); err != nil || !delivered {
		t.Fatalf("signal: %v, %v", delivered, err)
	}
	for range 2 {
		exit, err := d.Wait(bounded(t), spec.ID)
		if err != nil || exit.Code == nil || exit.Reached == nil || !*exit.Reached {
			t.Errorf("the end is %+v, %v: a signal reached the command", exit, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = open(t, c)
	}
	remove(t, d, spec.ID)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
