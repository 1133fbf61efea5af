package page

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watch returns a lookout for a fence that has been armed.
func watch(t *testing.T, f *File) *Lookout {
	t.Helper()
	l, err := Watch(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// due waits until the lookout is to look, and tells whether that was within a time.
func due(t *testing.T, l *Lookout, within time.Duration) bool {
	t.Helper()
	for end := Boottime() + within; ; {
		left := end - Boottime()
		fds := []unix.PollFd{{Fd: int32(l.FD()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(left, 0)/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

func TestLookoutWakesAtTheDeadlineAndKillsFromThenOn(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	deadline := Boottime() + 300*time.Millisecond
	f.Arm(State{BootID: "boot", Session: 7, Deadline: deadline, Window: time.Hour})
	l := watch(t, f)
	if l.Look() {
		t.Fatal("it kills before the deadline")
	}
	if !due(t, l, 10*time.Second) || Boottime() < deadline {
		t.Fatal("it does not look at the deadline")
	}
	for range 3 {
		if !l.Look() {
			t.Fatal("behind the deadline it does not kill")
		}
		if !due(t, l, 10*time.Second) {
			t.Fatal("it does not look again though it may not be done")
		}
	}
	if state, _ := f.Load(); state.FencedAt < deadline {
		t.Errorf("the fence holds %+v after the kill", state)
	}
}

func TestLookoutKillsByTheLatchOfAnother(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "boot", Session: 7, Deadline: Boottime() + time.Hour, FencedAt: 1, Window: time.Hour})
	if l := watch(t, f); !due(t, l, 10*time.Second) || !l.Look() {
		t.Error("somebody has begun to kill and it does not")
	}
}

// TestLookoutSleepsForAWindow is what makes it cheap: however often the deadline is moved
// on, one look per window.
func TestLookoutSleepsForAWindow(t *testing.T) {
	const window, span = 500 * time.Millisecond, 3 * time.Second
	f := mustOpen(t, inMemory(t))
	begin := Boottime()
	state := State{BootID: "boot", Session: 7, Deadline: begin + window, Window: window}
	f.Arm(state)
	l := watch(t, f)
	looks := 0
	for Boottime() < begin+span {
		state.Deadline = Boottime() + window
		f.Arm(state)
		if due(t, l, 20*time.Millisecond) {
			looks++
			if l.Look() {
				t.Fatal("it kills before the deadline")
			}
		}
	}
	if most := int(span/window) + 2; looks > most {
		t.Errorf("%d looks in %s with windows of %s", looks, span, window)
	}
}

// TestDeadlineThatIsMovedNearerIsNotSleptThrough: it was read an hour away, and is a
// window away now.
func TestDeadlineThatIsMovedNearerIsNotSleptThrough(t *testing.T) {
	const window = 300 * time.Millisecond
	f := mustOpen(t, inMemory(t))
	state := State{BootID: "boot", Session: 7, Deadline: Boottime() + time.Hour, Window: window}
	f.Arm(state)
	l := watch(t, f)
	if l.Look() {
		t.Fatal("it kills an hour early")
	}
	state.Deadline = Boottime() + window
	f.Arm(state)
	for !due(t, l, 10*time.Second) || !l.Look() {
		if Boottime() > state.Deadline+5*time.Second {
			t.Fatal("the deadline is long over")
		}
	}
	if late := Boottime() - state.Deadline; late < 0 {
		t.Errorf("it kills %s early", -late)
	}
}

func TestWatchNeedsAFence(t *testing.T) {
	if _, err := Watch(Path(inMemory(t), "a")); err == nil {
		t.Error("there is none, and it is watched")
	}
	if fd := (*Lookout)(nil).FD(); fd != -1 {
		t.Errorf("no lookout has descriptor %d", fd)
	}
}
