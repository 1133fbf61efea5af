package machine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
)

// arm arms the fence so that its deadline is in d.
func (b *bench) arm(session int64, d time.Duration) time.Duration {
	deadline := b.life.Clock().Now().Boot + d
	b.life.Fence().Arm(nodes.FenceState{BootID: b.BootID(), Session: session, Deadline: deadline})
	return deadline
}

func (b *bench) alive() (n int) {
	for _, s := range b.Sandboxes() {
		if s.Alive {
			n++
		}
	}
	return n
}

func TestGuardKillsAtTheDeadlineThoughTheDaemonIsDead(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	b.run("e2", "fork", "1h", "sleep-exit", "1s", "0")
	b.arm(1, 10*second)
	b.pass(5 * second)
	deadline := b.arm(1, 10*second) // renewed
	b.life.Crash()
	b.pass(9900 * ms)
	if b.alive() != 2 {
		t.Fatal("killed too early")
	}
	b.pass(second)
	if b.alive() != 0 {
		t.Error("something lives behind the fence")
	}
	state, ok := b.FenceState()
	if !ok || state.FencedAt != deadline || state.Deadline != deadline {
		t.Errorf("state %+v, want fenced at %v", state, deadline)
	}
	ends := []history.Command{b.commands("e1")[1], b.commands("e2")[1]}
	if ends[0].Cause != "fence" || ends[0].Code != 137 || ends[1].Cause != "itself" || ends[1].Code != 0 {
		t.Errorf("history %+v", ends)
	}
	if !slices.Contains(b.texts(history.KindMachine), "guard fences") {
		t.Errorf("history %v", b.texts(history.KindMachine))
	}
}

// What waits for its node and has lost its shim has no end that anybody can see: the
// daemon clears it up, and that is no kill of the fence.
func TestKillOfWhatTheFenceLeavesAloneIsTheFencesUnlessItWasLost(t *testing.T) {
	for _, test := range []struct {
		lost bool
		want string
	}{{false, "fence"}, {true, "kill"}} {
		b := newBench(t, 1, calm())
		op := creating("e1", "sleep-exit", "1h", "0")
		op.Spec.Unfenced = true
		if r := b.do(op); r.Err != nil {
			t.Fatal(r.Err)
		}
		if r := b.verb(nodes.VerbStart, "e1"); r.Err != nil {
			t.Fatal(r.Err)
		}
		b.arm(1, 10*second)
		b.pass(11 * second)
		if test.lost {
			b.CrashShim("e1", true)
		}
		if b.alive() != 1 {
			t.Fatal("the fence does not leave it alone")
		}
		b.verb(nodes.VerbKill, "e1")
		if ends := b.commands("e1"); len(ends) != 2 || ends[1].Cause != test.want {
			t.Errorf("lost %t: history %+v, want the cause %s", test.lost, ends, test.want)
		}
	}
}

func TestSoloIsNeverFenced(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "240h", "0")
	b.life.Crash()
	b.pass(200 * time.Hour)
	if b.alive() != 1 {
		t.Error("killed without a fence")
	}
}

func TestLogProcessesKillWhereTheGuardIsGone(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	b.run("e2", "sleep-exit", "1h", "0")
	b.arm(1, 10*second)
	b.KillGuard()
	b.KillLog("e1")
	b.pass(11 * second)
	if b.alive() != 0 {
		t.Error("the log process of e2 did not kill all")
	}
	b = newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	b.arm(1, 10*second)
	b.KillGuard()
	b.KillLog("e1")
	b.pass(time.Minute)
	if b.alive() != 1 {
		t.Error("somebody killed with guard and log dead")
	}
	b.StartGuard()
	b.pass(second)
	if b.alive() != 0 {
		t.Error("a guard that comes back does not kill")
	}
}

// relaunch begins another life of the daemon, which reads its journal.
func (b *bench) relaunch() {
	b.life = b.Launch()
	if _, err := b.load(); err != nil {
		b.t.Fatal(err)
	}
}

// A fence that nobody enforces is outside the model: from its deadline, or from the end
// of the last who would kill, until somebody is there again or nothing is left.
func TestFenceThatNobodyEnforcesIsOutsideTheModel(t *testing.T) {
	for _, test := range []struct {
		name string
		play func(b *bench)
		want []bool
	}{
		{"a daemon lives", func(b *bench) { b.relaunch() }, nil},
		{"a daemon that can not read its journal", func(b *bench) {
			b.life.Crash()
			b.life = b.Launch()
			b.pass(20 * second)
			b.relaunch()
		}, []bool{true, false}},
		{"a log process lives", func(b *bench) { b.run("e2", "sleep-exit", "1h", "0"); b.life.Crash() }, nil},
		{"a daemon whose runtime does not answer", func(b *bench) {
			away := b.Faults
			away.Runtime.UnavailableRate = 1
			calm := b.Faults
			b.Alter(away)
			b.pass(20 * second)
			b.Alter(calm)
		}, []bool{true, false}},
		{"nobody, until the daemon is back", func(b *bench) {
			b.life.Crash()
			b.pass(20 * second)
			b.relaunch()
		}, []bool{true, false}},
		{"nobody, until the guard is back", func(b *bench) {
			b.life.Crash()
			b.pass(20 * second)
			b.StartGuard()
		}, []bool{true, false}},
		{"the last one dies behind the deadline", func(b *bench) {
			b.pass(20 * second)
			b.life.Crash()
		}, []bool{true}},
		{"the command ends by itself", func(b *bench) {
			b.life.Crash()
			b.pass(2 * time.Hour)
		}, []bool{true, false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, 1, calm())
			b.relaunch()
			b.run("e1", "sleep-exit", "1h", "0")
			b.arm(1, 10*second)
			b.KillGuard()
			b.KillLog("e1")
			test.play(b)
			b.pass(11 * second)
			var got []bool
			for _, e := range b.events {
				if f, ok := e.Detail.(history.Fault); ok && f.Outside {
					got = append(got, f.Begin)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("outside of the model: %v, want %v", got, test.want)
			}
		})
	}
}

func TestFenceKillsWhatAppearsBehindIt(t *testing.T) {
	b := newBench(t, 1, calm())
	b.do(creating("e1", "sleep-exit", "1h", "0"))
	b.arm(1, second)
	b.pass(2 * second)
	b.verb(nodes.VerbStart, "e1")
	if b.alive() != 1 {
		t.Fatal("it did not start")
	}
	b.pass(second)
	if b.alive() != 0 {
		t.Error("what appeared behind the fence lives")
	}
}

func TestPausedGuardKillsWhenItWakes(t *testing.T) {
	for _, c := range []struct {
		how   Pause
		alive int // right after a pause of a minute, from 5 s before the deadline
	}{{Stopped, 0}, {Suspended, 0}, {Frozen, 1}} {
		t.Run(c.how.String(), func(t *testing.T) {
			b := newBench(t, 1, calm())
			b.run("e1", "sleep-exit", "1h", "0")
			b.arm(1, 10*second)
			b.pass(5 * second)
			b.Pause(c.how)
			b.pass(time.Minute)
			if b.alive() != 1 {
				t.Error("something happened in the pause")
			}
			b.Resume()
			b.pass(second)
			if b.alive() != c.alive {
				t.Errorf("%d live after the pause, want %d", b.alive(), c.alive)
			}
			b.pass(10 * second)
			if b.alive() != 0 {
				t.Error("it lives for good")
			}
		})
	}
}

func TestKillSlowerThanItsBudgetIsOutsideTheModel(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Fence.Kill = exactly(2 * time.Minute)
	b.run("e1", "sleep-exit", "1h", "0")
	b.arm(1, second)
	b.pass(time.Minute)
	if b.alive() != 1 || len(b.texts(history.KindFault)) != 1 {
		t.Errorf("%d live, faults %v", b.alive(), b.texts(history.KindFault))
	}
	b.pass(2 * time.Minute)
	if b.alive() != 0 || len(b.texts(history.KindFault)) != 2 {
		t.Errorf("%d live, faults %v", b.alive(), b.texts(history.KindFault))
	}
}

func TestFenceIsForgottenAtAReboot(t *testing.T) {
	b := newBench(t, 1, calm())
	b.arm(1, time.Minute)
	b.life.Crash()
	b.life = b.Launch()
	if _, ok := b.life.Fence().Load(); !ok {
		t.Error("it did not outlive the daemon")
	}
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	if state, ok := b.life.Fence().Load(); ok {
		t.Errorf("after the boot %+v", state)
	}
	b.run("e1", "sleep-exit", "1h", "0")
	b.pass(2 * time.Minute)
	if b.alive() != 1 {
		t.Error("a fence of the boot before killed")
	}
}

func TestArmKeepsFencedAtWithinASession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(nil, 1, calm())
		var want nodes.FenceState
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			state := nodes.FenceState{
				BootID: "boot", Session: rapid.Int64Range(1, 2).Draw(t, "session"), Deadline: time.Hour,
				FencedAt: time.Duration(rapid.Int64Range(0, 2).Draw(t, "fenced")),
			}
			b.life.Fence().Arm(state)
			if state.Session == want.Session && want.FencedAt != 0 {
				state.FencedAt = want.FencedAt
			}
			want = state
			if got, ok := b.life.Fence().Load(); !ok || got != want {
				t.Fatalf("state %+v, want %+v", got, want)
			}
		}
	})
}
