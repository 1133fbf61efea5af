package page

import (
	"testing"
	"time"
)

// kills notes when a lookout kills, by the boottime clock.
type kills chan time.Duration

// watch watches a fence that has been armed.
func watch(t *testing.T, f *File) kills {
	t.Helper()
	k := make(kills, 1000)
	l, err := Watch(f.Path(), func() { k <- Boottime() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return k
}

// next waits for a kill.
func (k kills) next(t *testing.T) time.Duration {
	t.Helper()
	select {
	case at := <-k:
		return at
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not kill")
		return 0
	}
}

func TestLookoutKillsAtTheDeadlineAndFromThenOn(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	deadline := Boottime() + 300*time.Millisecond
	f.Arm(State{BootID: "boot", Session: 7, Deadline: deadline, Window: time.Hour})
	k := watch(t, f)
	for range 3 {
		if at := k.next(t); at < deadline {
			t.Fatalf("it kills %s early", deadline-at)
		}
	}
	if state, _ := f.Load(); state.FencedAt < deadline {
		t.Errorf("the fence holds %+v after the kill", state)
	}
}

func TestLookoutKillsByTheLatchOfAnother(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "boot", Session: 7, Deadline: Boottime() + time.Hour, FencedAt: 1, Window: time.Hour})
	watch(t, f).next(t)
}

// TestLookoutSleepsForAWindow is what makes it cheap: however often the deadline is moved
// on, one look per window.
func TestLookoutSleepsForAWindow(t *testing.T) {
	const window = time.Second
	f := mustOpen(t, inMemory(t))
	now := Boottime()
	l := &Lookout{file: f}
	f.Arm(State{BootID: "boot", Session: 7, Deadline: now + time.Hour, Window: window})
	if due := l.due(now); due != now+window {
		t.Errorf("it looks again after %s, with a window of %s", due-now, window)
	}
	f.Arm(State{BootID: "boot", Session: 7, Deadline: now + window, Window: window})
	if due := l.due(now + window/2); due != now+window {
		t.Errorf("it looks again after %s, half a window before the deadline", due-now-window/2)
	}
	f.Arm(State{BootID: "boot", Session: 7, Deadline: now + time.Hour})
	if due := l.due(now); due != now+lookMax {
		t.Errorf("it looks again after %s, without a window", due-now)
	}
}

// TestDeadlineThatIsMovedOnIsNotKilledAt: it is looked at again, and nothing is done.
func TestDeadlineThatIsMovedOnIsNotKilledAt(t *testing.T) {
	const window = 300 * time.Millisecond
	f := mustOpen(t, inMemory(t))
	state := State{BootID: "boot", Session: 7, Deadline: Boottime() + window, Window: window}
	f.Arm(state)
	k := watch(t, f)
	state.Deadline = Boottime() + 4*window
	f.Arm(state)
	if at := k.next(t); at < state.Deadline {
		t.Errorf("it kills %s early", state.Deadline-at)
	}
}

// TestDeadlineThatIsMovedNearerIsNotSleptThrough: it was read an hour away, and is a
// window away now.
func TestDeadlineThatIsMovedNearerIsNotSleptThrough(t *testing.T) {
	const window = 300 * time.Millisecond
	f := mustOpen(t, inMemory(t))
	state := State{BootID: "boot", Session: 7, Deadline: Boottime() + time.Hour, Window: window}
	f.Arm(state)
	k := watch(t, f)
	state.Deadline = Boottime() + window
	f.Arm(state)
	if at := k.next(t); at < state.Deadline {
		t.Errorf("it kills %s early", state.Deadline-at)
	}
}

// TestLookoutThatIsClosedKillsNoMore, at whatever moment that is.
func TestLookoutThatIsClosedKillsNoMore(t *testing.T) {
	f := mustOpen(t, inMemory(t))
	f.Arm(State{BootID: "boot", Session: 7, Deadline: Boottime() + time.Hour, FencedAt: 1, Window: time.Hour})
	for range 200 {
		closed := false
		l, err := Watch(f.Path(), func() {
			if closed {
				t.Error("it kills after it was closed")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		closed = true
	}
	(*Lookout)(nil).Close()
}

func TestWatchNeedsAFence(t *testing.T) {
	if _, err := Watch(Path(inMemory(t), "a"), func() {}); err == nil {
		t.Error("there is none, and it is watched")
	}
}
