package page

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
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

func mustOpen(t *testing.T, dir string) *File {
	t.Helper()
	f, err := Open(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func wantState(t *testing.T, f *File, want State, wantOK bool) {
	t.Helper()
	if have, ok := f.Load(); have != want || ok != wantOK {
		t.Fatalf("the fence holds %+v, %t; want %+v, %t", have, ok, want, wantOK)
	}
}

func TestFileHoldsWhatWasArmedForEverybodyWhoOpensIt(t *testing.T) {
	dir := inMemory(t)
	f := mustOpen(t, dir)
	wantState(t, f, State{}, false)
	state := State{BootID: "8d1c7dd4-9f3e-4d47-b14e-0b3f5d3a9a11", Session: 7, Deadline: time.Hour}
	f.Arm(state)
	wantState(t, f, state, true)
	wantState(t, mustOpen(t, dir), state, true)
	state.Deadline += time.Hour
	f.Arm(state)
	wantState(t, mustOpen(t, dir), state, true)
}

func TestLatchIsKeptInItsSessionAndItsDeadlineWithIt(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	state := State{BootID: "boot", Session: 7, Deadline: time.Hour}
	f.Arm(state)
	if passed, _ := f.Passed(time.Hour - 1); passed {
		t.Fatal("the fence has passed before its deadline")
	}
	if passed, first := f.Passed(time.Hour); !passed || !first {
		t.Fatalf("at its deadline: passed %t, first %t", passed, first)
	}
	if passed, first := f.Passed(time.Hour + 1); !passed || first {
		t.Fatalf("behind it: passed %t, first %t", passed, first)
	}
	f.Arm(State{BootID: "boot", Session: 7, Deadline: 3 * time.Hour})
	wantState(t, f, State{BootID: "boot", Session: 7, Deadline: time.Hour, FencedAt: time.Hour}, true)
	next := State{BootID: "boot", Session: 8, Deadline: 3 * time.Hour}
	f.Arm(next)
	wantState(t, f, next, true)
}

func TestDaemonSetsTheLatchToo(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "boot", Session: 7, Deadline: time.Hour})
	fenced := State{BootID: "boot", Session: 7, Deadline: time.Hour, FencedAt: time.Minute}
	f.Arm(fenced)
	wantState(t, f, fenced, true)
	if passed, first := f.Passed(0); !passed || first {
		t.Fatalf("passed %t, first %t", passed, first)
	}
}

func TestStateOfAnotherBootIsReplacedWithItsLatch(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "a longer id of a boot", Session: 7, Deadline: time.Hour, FencedAt: 1})
	next := State{BootID: "boot", Session: 7, Deadline: time.Minute}
	f.Arm(next)
	wantState(t, f, next, true)
}

func TestSessionThatIsHalfArmedIsNone(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "boot", Session: 7, Deadline: time.Hour})
	f.deadline.Store(0) // where a daemon died that armed another one
	f.session.Store(8)
	wantState(t, f, State{}, false)
	if passed, _ := f.Passed(2 * time.Hour); passed {
		t.Error("a session that is half armed has passed")
	}
}

func TestWordThatHasChangedSinceItWasReadIsNotChanged(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{Session: 7, Deadline: 100})
	moved := State{Session: 7, Deadline: 200}
	f.Arm(moved)
	if f.change(100, 100|latched, 100) {
		t.Error("the latch was set by a deadline that had been moved")
	}
	wantState(t, f, moved, true)
	if passed, first := f.Passed(200); !passed || !first {
		t.Fatalf("passed %t, first %t", passed, first)
	}
	if f.change(200, 300, 0) {
		t.Error("the deadline was moved though the latch was set")
	}
	wantState(t, f, State{Session: 7, Deadline: 200, FencedAt: 200}, true)
}

// TestDeadlineIsMovedOrTheLatchIsSeen: one moves the deadline on while others find the
// old one over. Whoever moved it and sees no latch may go on; then nobody kills by it.
func TestDeadlineIsMovedOrTheLatchIsSeen(t *testing.T) {
	const rounds = 5000
	dir := inMemory(t)
	daemon, guard := mustOpen(t, dir), mustOpen(t, dir)
	var begun, done atomic.Int64
	var killed [rounds + 1]bool
	var killer sync.WaitGroup
	killer.Go(func() {
		for round := int64(1); round <= rounds; round++ {
			for begun.Load() < round {
				runtime.Gosched()
			}
			_, killed[round] = guard.Passed(100)
			done.Store(round)
		}
	})
	defer killer.Wait()
	for round := int64(1); round <= rounds; round++ {
		daemon.Arm(State{Session: round, Deadline: 100})
		begun.Store(round)
		for range round % 64 {
			runtime.Gosched()
		}
		daemon.Arm(State{Session: round, Deadline: 200})
		have, _ := daemon.Load()
		for done.Load() < round {
			runtime.Gosched()
		}
		if free := have.FencedAt == 0; killed[round] == free || free != (have.Deadline == 200) {
			begun.Store(rounds)
			t.Fatalf("round %d: somebody kills: %t; the daemon reads %+v", round, killed[round], have)
		}
	}
}

func TestOpenRefusesWhatCanBeNoFence(t *testing.T) {
	if _, err := Open(t.TempDir(), "a"); !errors.Is(err, ErrNotInMemory) {
		t.Errorf("on a disk: %v", err)
	}
	open := inMemory(t)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(open, "a"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a directory of everybody: %v", err)
	}
	other := inMemory(t)
	if err := os.WriteFile(filepath.Join(other, "fence-a"), []byte("another layout"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(other, "a"); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("another layout: %v", err)
	}
}

func TestFenceOfAFullMemoryIsRefusedAtOpen(t *testing.T) {
	dir := inMemory(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4096,mode=700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(dir+"/full", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "a"); err == nil {
		t.Fatal("there is no room for the fence, and it opened")
	}
}
