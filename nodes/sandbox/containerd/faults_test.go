package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private/privatetest"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// eventually polls a condition that no event tells of.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func (b *bench) signalShim(id string, signal unix.Signal) {
	b.t.Helper()
	shims := b.d.shims(id)
	if len(shims) != 1 {
		b.t.Fatalf("%d shims, not 1", len(shims))
	}
	if err := shims[0].Signal(signal); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) awaitOutput(spec sandbox.Spec, text string) {
	b.t.Helper()
	eventually(b.t, "the command writes "+text, func() bool { return strings.Contains(readLog(b.t, spec.LogPath), text) })
}

func (b *bench) isLost(exit sandbox.Exit) {
	b.t.Helper()
	if exit.Code != nil || exit.Reason != recordv1.Reason_REASON_SANDBOX_LOST {
		b.t.Errorf("want lost and no code, got %+v (code %v)", exit, exit.Code)
	}
}

func (b *bench) isCode(exit sandbox.Exit, code int32) {
	b.t.Helper()
	if exit.Code == nil || *exit.Code != code {
		b.t.Errorf("want code %d, got %+v", code, exit)
	}
}

func TestKilledShimOfARunningCommandIsLostAndHasNoCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	b.signalShim(spec.ID, unix.SIGKILL)
	b.isLost(b.wait(spec.ID))
	if empty, err := b.d.parent.Group(spec.ID).Empty(); err != nil || !empty {
		t.Errorf("told as lost while it runs: %v", err)
	}
	b.end(spec)
}

func TestKilledShimWhileSomeoneWaitsIsLostAndHasNoCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	waiting := make(chan sandbox.Exit, 1)
	ctx := within(t)
	go func() {
		exit, err := b.d.Wait(ctx, spec.ID)
		if err != nil {
			t.Error(err)
		}
		waiting <- exit
	}()
	b.signalShim(spec.ID, unix.SIGKILL)
	b.isLost(<-waiting)
	b.end(spec)
}

func TestKilledShimOfAnEndedCommandLeavesInitsWord(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "exit 42")
	b.start(spec)
	eventually(t, "init tells the end", func() bool {
		s, _, err := b.d.readStatus(spec.ID)
		return err == nil && s.State.Ended()
	})
	b.signalShim(spec.ID, unix.SIGKILL)
	exit := b.wait(spec.ID)
	b.isCode(exit, 42)
	if again := b.wait(spec.ID); *again.Code != 42 {
		t.Errorf("and then %+v", again)
	}
	b.end(spec)
}

func TestTaskDeletedBySomebodyElse(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "exit 5")
	b.start(spec)
	eventually(t, "the task is deleted", func() bool { return b.d.deleteTask(within(t), spec.ID) == nil })
	exit := b.wait(spec.ID)
	b.isCode(exit, 5)
	if exit.Source != sourceInit {
		t.Errorf("source %q", exit.Source)
	}
	b.end(spec)
}

func TestContainerDeletedBySomebodyElseStillTellsItsCodeAndIsRemoved(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
	b.start(spec)
	b.awaitOutput(spec, "ready")
	if err := b.d.client.ContainerService().Delete(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	found, err := b.d.List(within(t))
	if err != nil || len(found) != 1 || found[0].State != sandbox.StateRunning {
		t.Errorf("List has %+v, %v", found, err)
	}
	for _, number := range groupProcesses(t, b.d, spec.ID) {
		_ = unix.Kill(number, unix.SIGTERM)
	}
	b.isCode(b.wait(spec.ID), 9)
	b.end(spec)
}

func groupProcesses(t *testing.T, d *Driver, id string) []int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/pids", d.parent.Name(), id, "cgroup.procs"))
	if err != nil {
		content, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", d.parent.Name(), id, "cgroup.procs"))
	}
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for field := range strings.FieldsSeq(string(content)) {
		if number, err := strconv.Atoi(field); err == nil {
			found = append(found, number)
		}
	}
	return found
}

func TestSnapshotRemovedBySomebodyElseStillTellsTheCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 6")
	b.start(spec)
	b.awaitOutput(spec, "ready")
	if err := b.d.snapshot.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.d.Signal(within(t), spec.ID, int(unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if exit := b.wait(spec.ID); exit.Code == nil {
		t.Errorf("got %+v", exit)
	}
	b.end(spec)
}

func TestHungShimIsNotWaitedForOnceInitHasTold(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "sleep 0.3; exit 8")
	b.start(spec)
	b.signalShim(spec.ID, unix.SIGSTOP)
	exit := b.wait(spec.ID)
	b.isCode(exit, 8)
	if exit.Source != sourceInit {
		t.Errorf("source %q", exit.Source)
	}
	b.end(spec)
}

func TestKillOfASandboxWithAHungShimIsToldSoonAndWithoutACode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	b.signalShim(spec.ID, unix.SIGSTOP)
	killedAt := time.Now()
	if leftover, err := b.d.Kill(within(t), spec.ID); err != nil || !leftover {
		t.Fatalf("kill: %v, %v", leftover, err)
	}
	exit := b.wait(spec.ID)
	b.isLost(exit)
	if exit.Message != unseenKill || exit.At.Before(killedAt) {
		t.Errorf("got %+v", exit)
	}
	if took := time.Since(killedAt); took >= silentMax {
		t.Errorf("a shim that is stopped was waited for: %v", took)
	}
	removedAt := time.Now()
	b.end(spec)
	// One try to delete the task, and none more before the shim is killed.
	if took := time.Since(removedAt); took >= 2*deleteMax {
		t.Errorf("the removal took %v", took)
	}
}

func TestHungLoggerDoesNotHoldUpTheRemoval(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	// The command outlives the signal to the logger, which else might be done before.
	spec := b.spec("sh", "-c", "echo out; sleep 3600")
	b.start(spec)
	b.awaitOutput(spec, "out")
	content, err := os.ReadFile(filepath.Join(b.d.dir(spec.ID), logger.PIDFile))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := pid.Parse(string(content))
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := b.d.Kill(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	b.wait(spec.ID)
	if complete, err := b.d.Flush(within(t), spec.ID); err != nil || complete {
		t.Errorf("a log of a hung logger is complete: %v, %v", complete, err)
	}
	b.end(spec)
	if ref.Alive() {
		t.Error("the logger lives")
	}
}

func TestKilledLoggerIsToldAsAnIncompleteLogWithAnEndMark(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "echo out; sleep 3600")
	b.start(spec)
	b.awaitOutput(spec, "out")
	b.d.killLogger(spec.ID)
	if _, err := b.d.Kill(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	b.wait(spec.ID)
	for range 2 {
		if complete, err := b.d.Flush(within(t), spec.ID); err != nil || complete {
			t.Errorf("complete %v, %v", complete, err)
		}
	}
	if out := b.end(spec); out != "out\n" {
		t.Errorf("got %q", out)
	}
}

func TestMalformedStatusFileIsNotBelieved(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "head -c 480 /dev/urandom > /run/errand/status; kill -9 1; sleep 1; exit 3")
	b.start(spec)
	exit := b.wait(spec.ID)
	if exit.Code == nil || exit.Source == sourceInit {
		t.Errorf("got %+v", exit)
	}
	b.end(spec)
}

func TestInitThatEndsWithoutAWordIsAStartErrorAndNoCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	init := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(init, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.d.config.Init = init
	spec := b.spec("true")
	if err := b.d.Create(within(t), spec); err != nil {
		t.Fatal(err)
	}
	_, err := b.d.Start(within(t), spec.ID)
	var refused *sandbox.StartError
	if !errors.As(err, &refused) || !refused.Permanent || refused.Reason != recordv1.Reason_REASON_START_ERROR {
		t.Errorf("got %v", err)
	}
	if exit := b.wait(spec.ID); exit.Code != nil || exit.Reason != recordv1.Reason_REASON_START_ERROR {
		t.Errorf("got %+v", exit)
	}
	b.end(spec)
}

func TestCanceledCreateLeavesNothing(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(within(t), after)
		spec := b.spec("true")
		err := b.d.Create(ctx, spec)
		cancel()
		if err == nil {
			b.end(spec)
			continue
		}
		for _, leak := range leaks(t, b.d) {
			t.Errorf("canceled after %v: left over: %s", after, leak)
		}
	}
}

// own containerd, for it is stopped and killed.
func setUpAlone(t *testing.T) (*bench, *private.Daemon) {
	t.Helper()
	privatetest.Address(t)
	dir, err := os.MkdirTemp("", "errand-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := private.Start(within(t), private.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(within(t)); err != nil {
			t.Error(err)
		}
		if err := privatetest.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	b := &bench{t: t, dir: t.TempDir()}
	b.open(daemon.Address())
	importImages(t, b.d)
	return b, daemon
}

// killContainerd kills containerd and returns its pid; it is started again by the
// daemon that looks after it.
func killContainerd(t *testing.T, daemon *private.Daemon) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(filepath.Dir(daemon.LogPath()), "containerd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := pid.Of(number)
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "containerd is gone", func() bool { return !ref.Alive() })
}

func TestSandboxesGoOnWhenContainerdIsStartedAgain(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	before, during, after := b.spec("sh", "-c", "exit 21"), b.spec("sh", "-c", "sleep 0.3; exit 22"), b.spec("sh", "-c", "trap 'exit 23' TERM; echo ready; while :; do sleep 0.1; done")
	for _, spec := range []sandbox.Spec{before, during, after} {
		b.start(spec)
	}
	b.awaitOutput(after, "ready")
	ctx := within(t)
	waiting := make(chan sandbox.Exit, 1)
	go func() {
		exit, err := b.d.Wait(ctx, during.ID)
		if err != nil {
			t.Error(err)
		}
		waiting <- exit
	}()
	killContainerd(t, daemon)
	if err := b.d.Create(ctx, b.spec("true")); err == nil {
		t.Error("a sandbox was created without containerd")
	}
	b.isCode(<-waiting, 22)
	exit := b.wait(before.ID)
	b.isCode(exit, 21)
	if exit.Source != sourceBoth {
		t.Errorf("the shim's word was not waited for: %+v", exit)
	}
	eventually(t, "containerd answers", func() bool {
		delivered, err := b.d.Signal(ctx, after.ID, int(unix.SIGTERM))
		return err == nil && delivered
	})
	b.isCode(b.wait(after.ID), 23)
	for _, spec := range []sandbox.Spec{before, during, after} {
		b.end(spec)
	}
	// What was to be created while containerd was away goes by itself.
	eventually(t, "nothing is left", func() bool {
		idle, err := b.d.Idle(ctx)
		return err == nil && idle
	})
}

func TestShimAndContainerdLostTogetherIsLostAndHasNoCode(t *testing.T) {
	b, daemon := setUpAlone(t)
	defer b.finish()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	shims := b.d.shims(spec.ID)
	killContainerd(t, daemon)
	for _, shim := range shims {
		if err := shim.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.isLost(b.wait(spec.ID))
	eventually(t, "it is removed", func() bool {
		err := b.d.Remove(within(t), spec.ID)
		return err == nil || records.ClassOf(err) != records.ClassUnavailable
	})
}
