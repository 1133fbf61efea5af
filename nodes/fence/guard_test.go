package fence

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// inMemory is a directory on a tmpfs, which goes with the test.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "errand-fence-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// sandboxOf puts a shell that ignores every signal that it can, with a child, into a
// group of the node, and returns what is closed when the shell has ended.
func sandboxOf(t *testing.T, parent *cgroup.Parent, id string) <-chan struct{} {
	t.Helper()
	group := parent.Group(id)
	if err := group.Create(cgroup.Limits{}); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", "-c", "trap '' TERM INT HUP; read go; sleep 3600 & wait; sleep 3600")
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := group.Add(command.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := input.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait()
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if _, err := group.Kill(ctx); err != nil {
			t.Error(err)
		}
		<-ended
		if err := group.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	return ended
}

func ownParent(t *testing.T, uuid string) *cgroup.Parent {
	t.Helper()
	parent, err := cgroup.Open(cgroup.Root, cgroup.ParentName(uuid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := parent.Remove(); err != nil {
			t.Error(err)
		}
	})
	return parent
}

// runGuard runs a guard until the test ends, or ends it.
func runGuard(t *testing.T, g *Guard) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

func awaitBeat(t *testing.T, f *page.File, after time.Duration) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); f.Beaten() <= after; {
		if time.Now().After(limit) {
			t.Fatal("no guard looks at the fence")
		}
		time.Sleep(time.Millisecond) // the page tells nobody that it was written
	}
}

func TestGuardEmptiesItsNodeAndNoOtherWhenTheFenceHasPassed(t *testing.T) {
	uuid := "feedc0de-guard-" + t.Name()
	dir := inMemory(t)
	f, err := page.Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours, others := ownParent(t, uuid), ownParent(t, "0badc0de")
	first, second := sandboxOf(t, ours, "e1"), sandboxOf(t, ours, "e2")
	neighbor := sandboxOf(t, others, "e1")
	f.Arm(page.State{BootID: "boot", Session: 7, Deadline: page.Boottime() + time.Hour})
	runGuard(t, &Guard{Dir: dir, UUID: uuid, Stay: true, Log: zap.NewNop()})
	awaitBeat(t, f, 0)
	awaitBeat(t, f, f.Beaten())
	select {
	case <-first:
		t.Fatal("killed before the deadline")
	default:
	}
	f.Arm(page.State{BootID: "boot", Session: 7, Deadline: page.Boottime()})
	for _, ended := range []<-chan struct{}{first, second} {
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatal("a sandbox outlives the fence")
		}
	}
	if state, ok := f.Load(); !ok || state.FencedAt == 0 {
		t.Errorf("the fence holds %+v, %t after the kill", state, ok)
	}
	// The latch is no single shot: what comes up behind it is killed too.
	select {
	case <-sandboxOf(t, ours, "e3"):
	case <-time.After(2 * time.Minute):
		t.Fatal("a sandbox came up behind the fence and lives")
	}
	select {
	case <-neighbor:
		t.Fatal("a sandbox of another node was killed")
	default:
	}
	if err := f.AtWork(); err != nil {
		t.Error(err)
	}
}

func TestGuardLeavesAloneWhatIsMarked(t *testing.T) {
	uuid := "feedc0d1-guard-" + t.Name()
	dir := inMemory(t)
	f, err := page.Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours := ownParent(t, uuid)
	spared, killed := sandboxOf(t, ours, "e1"), sandboxOf(t, ours, "e2")
	if err := ours.Group("e1").Unfence(); err != nil {
		t.Fatal(err)
	}
	f.Arm(page.State{BootID: "boot", Session: 7, Deadline: page.Boottime()})
	runGuard(t, &Guard{Dir: dir, UUID: uuid, Stay: true, Log: zap.NewNop()})
	select {
	case <-killed:
	case <-time.After(2 * time.Minute):
		t.Fatal("a sandbox outlives the fence")
	}
	// Another look, which kills whatever one before has left.
	awaitBeat(t, f, page.Boottime())
	awaitBeat(t, f, f.Beaten())
	select {
	case <-spared:
		t.Fatal("a sandbox whose run waits for its node was killed")
	default:
	}
}

func TestSecondGuardWaitsForTheFirstOrEnds(t *testing.T) {
	uuid := "feedc0df-guard"
	dir := inMemory(t)
	f, err := page.Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stopFirst := runGuard(t, &Guard{Dir: dir, UUID: uuid, Stay: true, Log: zap.NewNop()})
	awaitBeat(t, f, 0)
	passing := &Guard{Dir: dir, UUID: uuid, Log: zap.NewNop()}
	if err := passing.Run(t.Context()); err != nil {
		t.Fatalf("a guard that need not stay, beside another: %v", err)
	}
	runGuard(t, &Guard{Dir: dir, UUID: uuid, Stay: true, Log: zap.NewNop()})
	if err := stopFirst(); err != nil {
		t.Fatal(err)
	}
	awaitBeat(t, f, page.Boottime())
}

func TestGuardThatCanNotKillRefuses(t *testing.T) {
	err := (&Guard{Dir: inMemory(t), UUID: "feedc0d0", CgroupRoot: t.TempDir(), Log: zap.NewNop()}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "it kills by cgroup") {
		t.Fatalf("got %v", err)
	}
}

func TestGuardComplainsOnceAMinuteOfOneSandbox(t *testing.T) {
	seen, logs := observer.New(zap.ErrorLevel)
	g := &Guard{Log: zap.New(seen)}
	for range 100 {
		g.complain("e1", "it is not empty yet")
		g.complain("e2", "it is not empty yet")
	}
	if n := logs.Len(); n != 2 {
		t.Errorf("%d lines about two sandboxes", n)
	}
	g.said["e1"] -= sayAgain
	g.complain("e1", "it is not empty yet")
	if n := logs.Len(); n != 3 {
		t.Errorf("%d lines a minute later", n)
	}
}
