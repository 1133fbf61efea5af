package machine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

func exactly(d time.Duration) virtual.Span { return virtual.Span{Min: d, Max: d} }

func TestCommandIsToldToHistoryAsItReallyWas(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1500ms", "3")
	isCode(t, b.verb(nodes.VerbWait, "e1"), 3, 0)
	want := []history.Command{{Sandbox: "e1", Started: true, Token: 77}, {Sandbox: "e1", Token: 77, Code: 3, Cause: "itself"}}
	if got := b.commands("e1"); !slices.Equal(got, want) {
		t.Errorf("history %+v, want %+v", got, want)
	}
	var at []time.Duration
	for _, e := range b.events {
		if e.Kind == history.KindCommand {
			at = append(at, e.At)
			if e.Run != "r.app.e1" || e.Attempt != 1 || e.Placement != 2 || e.Node != "m1" {
				t.Errorf("event %+v", e)
			}
		}
	}
	if len(at) != 2 || at[1]-at[0] != 1500*ms {
		t.Errorf("it ran from and to %v", at)
	}
}

func TestChildOutlivesItsParentUntilItIsKilled(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "fork", "1h", "sleep-exit", "1s", "0")
	isCode(t, b.verb(nodes.VerbWait, "e1"), 0, 0)
	if len(b.commands("e1")) != 1 || !b.Sandboxes()[0].Alive {
		t.Error("the command ended with its parent")
	}
	if r := b.verb(nodes.VerbKill, "e1"); r.Err != nil || !r.Leftover {
		t.Errorf("kill: %+v", r)
	}
	if got := b.commands("e1"); len(got) != 2 || got[1].Code != 0 || got[1].Cause != "itself" {
		t.Errorf("history %+v", got)
	}
	b.run("e2", "fork", "5s", "sleep-exit", "1s", "0")
	b.pass(10 * second)
	if r := b.verb(nodes.VerbKill, "e2"); r.Leftover || len(b.commands("e2")) != 2 {
		t.Errorf("kill after the child's own end: %+v", r)
	}
}

func TestKilledCommandLeavesNoTimer(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "fork", "2h", "sleep-exit", "1h", "0")
	if r := b.verb(nodes.VerbKill, "e1"); r.Err != nil || !r.Leftover {
		t.Errorf("kill: %+v", r)
	}
	if got := b.commands("e1"); len(got) != 2 || got[1].Code != 137 || got[1].Cause != "kill" {
		t.Errorf("history %+v", got)
	}
	b.pass(second)
	if at, ok := b.line.NextAt(); ok {
		t.Errorf("something will happen at %v", at)
	}
}

func TestSignals(t *testing.T) {
	term := func(b *bench, id string) bool {
		return b.do(nodes.SandboxOp{Verb: nodes.VerbSignal, ID: id, Signal: sigterm}).Delivered
	}
	b := newBench(t, 1, calm())
	b.run("plain", "sleep-exit", "1h", "0")
	b.run("deaf", "ignore-term", "sleep-exit", "30s", "4")
	b.run("polite", "on-term", "2s", "5", "sleep-exit", "1h", "0")
	for _, id := range []string{"plain", "deaf", "polite"} {
		if !term(b, id) {
			t.Errorf("%s was not there", id)
		}
	}
	isCode(t, b.verb(nodes.VerbWait, "plain"), 143, 15)
	isCode(t, b.verb(nodes.VerbWait, "polite"), 5, 0)
	isCode(t, b.verb(nodes.VerbWait, "deaf"), 4, 0)
	if term(b, "plain") {
		t.Error("a signal reached what has ended")
	}
	if got := b.commands("polite")[1]; got.Cause != "signal" || got.Code != 5 {
		t.Errorf("history %+v", got)
	}
}

func TestCreateFaults(t *testing.T) {
	start := func(err error) *sandbox.StartError {
		var s *sandbox.StartError
		if !errors.As(err, &s) {
			t.Fatalf("error %v, want a StartError", err)
		}
		return s
	}
	b := newBench(t, 1, calm())
	if s := start(b.do(creating("e1", "create-error", "SECRET")).Err); !s.Permanent || s.Reason.String() != "REASON_SECRET" {
		t.Errorf("%+v", s)
	}
	if s := start(b.do(creating("e1", "create-refused", "IMAGE_PULL")).Err); s.Permanent {
		t.Errorf("%+v", s)
	}
	if s := start(b.do(creating("e1", "no-such-word")).Err); !s.Permanent {
		t.Errorf("%+v", s)
	}
	b.Faults.Runtime.CreateFailRate = 1
	if s := start(b.do(creating("e1", "sleep-exit", "1s", "0")).Err); !s.Permanent {
		t.Errorf("%+v", s)
	}
	b.Faults.Runtime.CreateFailRate, b.Faults.Runtime.CreateRefuseRate = 0, 1
	if s := start(b.do(creating("e1", "sleep-exit", "1s", "0")).Err); s.Permanent {
		t.Errorf("%+v", s)
	}
	b.Faults.Runtime = calm().Runtime
	b.Faults.Runtime.UnavailableRate = 1
	isClass(t, b.do(creating("e1", "sleep-exit", "1s", "0")).Err, records.ClassUnavailable)
	if len(b.Sandboxes()) > 0 {
		t.Errorf("refused sandboxes are there: %v", b.Sandboxes())
	}
}

// A runtime that is started again breaks off who waits; who asks anew hears the exit.
func TestBrokenWaitCanBeAskedAgain(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "5s", "3")
	broken := b.begin(nodes.SandboxOp{Verb: nodes.VerbWait, ID: "e1"})
	b.pass(second)
	b.BreakWaits()
	b.pass(second)
	if broken() == nil {
		t.Fatal("the wait goes on")
	}
	isClass(t, broken().Err, records.ClassUnavailable)
	isCode(t, b.verb(nodes.VerbWait, "e1"), 3, 0)
}

func TestHangingCreateEndsWhenItIsAbandonedOrItsTimeIsOver(t *testing.T) {
	for _, leave := range []float64{0, 1} {
		b := newBench(t, 1, calm())
		b.Faults.Runtime.CreateHangRate, b.Faults.Runtime.CreateLeaveRate = 1, leave
		op := creating("e1", "sleep-exit", "1s", "0")
		op.Timeout = 7 * second
		result := b.begin(op)
		b.pass(5 * second)
		b.life.Sandboxes().Abandon("null", "other")
		if result() != nil {
			t.Fatal("it does not hang")
		}
		b.life.Sandboxes().Abandon("null", "e1")
		b.pass(ms)
		if r := result(); r == nil || !errors.Is(r.Err, context.Canceled) || records.ClassOf(r.Err) != records.ClassDeadline {
			t.Fatalf("abandoned: %+v", r)
		}
		if n := len(b.Sandboxes()); n != int(leave) {
			t.Errorf("%d sandboxes are left", n)
		}
		op.ID = "e2"
		result = b.begin(op)
		b.pass(8 * second)
		if r := result(); r == nil || !errors.Is(r.Err, context.DeadlineExceeded) {
			t.Errorf("after its time: %+v", r)
		}
	}
}

func TestStartOfUnknownOutcomeMayHaveHappened(t *testing.T) {
	ran, not := 0, 0
	for seed := range uint64(40) {
		b := newBench(t, seed, calm())
		b.do(creating("e1", "sleep-exit", "1h", "0"))
		b.Faults.Runtime.StartUnknownRate = 1
		isClass(t, b.verb(nodes.VerbStart, "e1").Err, records.ClassOutcomeUnknown)
		b.pass(second)
		if b.Sandboxes()[0].Alive {
			ran++
		} else {
			not++
		}
	}
	if ran == 0 || not == 0 {
		t.Errorf("%d ran, %d did not", ran, not)
	}
}

func TestSandboxStartsOnceAndNotAfterAKill(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1s", "0")
	isClass(t, b.verb(nodes.VerbStart, "e1").Err, records.ClassConflict)
	isClass(t, b.do(creating("e1", "sleep-exit", "1s", "0")).Err, records.ClassConflict)
	b.pass(2 * second)
	isClass(t, b.verb(nodes.VerbStart, "e1").Err, records.ClassConflict)
	b.do(creating("e2", "sleep-exit", "1s", "0"))
	if r := b.verb(nodes.VerbKill, "e2"); r.Leftover {
		t.Error("a sandbox that was not started had something in it")
	}
	isClass(t, b.verb(nodes.VerbStart, "e2").Err, records.ClassConflict)
	if len(b.commands("e2")) > 0 {
		t.Error("it started after the kill")
	}
}

func TestVanishedSandboxHasNoExit(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	wait := b.begin(nodes.SandboxOp{Verb: nodes.VerbWait, ID: "e1"})
	b.pass(second)
	if !b.VanishSandbox("e1") || b.VanishSandbox("e1") {
		t.Error("it vanishes once")
	}
	b.pass(second)
	if wait() == nil {
		t.Fatal("the wait has no answer")
	}
	isClass(t, wait().Err, records.ClassNotFound)
	if got := b.commands("e1"); len(got) != 2 || got[1].Cause != "vanished" {
		t.Errorf("history %+v", got)
	}
}

func TestCrashOfAShimLeavesNoCode(t *testing.T) {
	for _, live := range []bool{false, true} {
		b := newBench(t, 1, calm())
		b.run("e1", "sleep-exit", "1m", "0")
		wait := b.begin(nodes.SandboxOp{Verb: nodes.VerbWait, ID: "e1"})
		b.pass(second)
		b.CrashShim("e1", live)
		b.pass(second)
		isLost(t, *wait())
		if b.Sandboxes()[0].Alive != live {
			t.Errorf("processes live: %v, want %v", !live, live)
		}
		b.pass(2 * time.Minute)
		isLost(t, b.verb(nodes.VerbWait, "e1"))
		if got := b.commands("e1"); len(got) != 2 {
			t.Errorf("history %+v", got)
		}
	}
}

func TestLyingRuntimeMakesACodeUp(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.LieRate = 1
	b.run("e1", "sleep-exit", "1h", "0")
	b.CrashShim("e1", false)
	r := b.verb(nodes.VerbWait, "e1")
	if r.Exit.Code == nil || *r.Exit.Code != 137 && *r.Exit.Code != 255 {
		t.Errorf("exit %s", showExit(r))
	}
}

func TestExitMayComeLateAndTwice(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.ExitDelay, b.Faults.Runtime.DoubleRate = exactly(time.Minute), 1
	b.run("e1", "sleep-exit", "1s", "2")
	n := 0
	b.life.Sandboxes().Do(nodes.SandboxOp{Verb: nodes.VerbWait, Driver: "null", ID: "e1"}, func(nodes.SandboxResult) { n++ })
	b.pass(30 * second)
	if n != 0 {
		t.Error("the exit is not late")
	}
	b.pass(time.Hour)
	if n != 2 {
		t.Errorf("it came %d times", n)
	}
}

func TestSandboxesOutliveTheDaemonAndAreGoneAfterAReboot(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "10s", "6")
	b.run("e2", "sleep-exit", "1h", "0")
	stale := b.begin(nodes.SandboxOp{Verb: nodes.VerbWait, ID: "e1"})
	b.life.Crash()
	b.pass(time.Minute)
	b.life = b.Launch()
	if stale() != nil {
		t.Error("a dead daemon was answered")
	}
	infos := b.verb(nodes.VerbList, "").Infos
	if len(infos) != 2 || infos[0].State != sandbox.StateExited || infos[1].State != sandbox.StateRunning || string(infos[1].StartToken) != "token e2" {
		t.Errorf("list %+v", infos)
	}
	isCode(t, b.verb(nodes.VerbWait, "e1"), 6, 0)
	b.PowerOff()
	b.pass(time.Minute)
	b.PowerOn()
	b.life = b.Launch()
	if infos := b.verb(nodes.VerbList, "").Infos; len(infos) > 0 {
		t.Errorf("list after the reboot %+v", infos)
	}
	if got := b.commands("e2"); len(got) != 2 || got[1].Cause != "reboot" {
		t.Errorf("history %+v", got)
	}
}

func TestSandboxThatIsKeptThroughAReboot(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.KeepRate = 1
	b.run("e1", "sleep-exit", "1s", "6")
	b.run("e2", "sleep-exit", "1h", "0")
	b.pass(2 * second)
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	isCode(t, b.verb(nodes.VerbWait, "e1"), 6, 0)
	isLost(t, b.verb(nodes.VerbWait, "e2"))
}

func TestWhatADeadDaemonAskedForMayStillHappen(t *testing.T) {
	for _, rate := range []float64{0, 1} {
		b := newBench(t, 1, calm())
		b.Faults.Runtime.OrphanRate = rate
		b.begin(creating("e1", "sleep-exit", "1s", "0"))
		b.life.Crash()
		b.life = b.Launch()
		b.pass(second)
		if n := len(b.Sandboxes()); n != int(rate) {
			t.Errorf("%d sandboxes at an orphan rate of %v", n, rate)
		}
	}
}

func TestWhatIsUnderWayWhenThePowerGoesDoesNotHappen(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.OrphanRate = 1
	b.begin(creating("e1", "sleep-exit", "1s", "0"))
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	b.pass(second)
	if n := len(b.Sandboxes()); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

func TestWhatADeadDaemonAskedForDoesNotHappenLongAfter(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.OrphanRate, b.Faults.Runtime.CreateHangRate, b.Faults.Runtime.CreateLeaveRate = 1, 1, 1
	b.begin(creating("e1", "sleep-exit", "1s", "0"))
	b.Faults.Runtime.CreateHangRate, b.Faults.Runtime.Create = 0, exactly(3*second)
	b.begin(creating("e2", "sleep-exit", "1s", "0"))
	b.life.Crash()
	b.life = b.Launch()
	b.pass(time.Hour)
	if n := len(b.Sandboxes()); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

func TestSlowKillGivesUpAndKillsAllTheSame(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	b.Faults.Runtime.Kill = exactly(time.Minute)
	begin := b.line.Now()
	isClass(t, b.verb(nodes.VerbKill, "e1").Err, records.ClassDeadline)
	if took := b.line.Now() - begin; took > killTimeout+second || !b.Sandboxes()[0].Alive {
		t.Errorf("it gave up after %v", took)
	}
	b.pass(time.Minute)
	if b.Sandboxes()[0].Alive {
		t.Error("it did not kill")
	}
}

func TestLostAnswerIsNoUndoing(t *testing.T) {
	b := newBench(t, 1, calm())
	b.run("e1", "sleep-exit", "1h", "0")
	b.Faults.Runtime.AnswerLostRate = 1
	isClass(t, b.do(nodes.SandboxOp{Verb: nodes.VerbSignal, ID: "e1", Signal: sigterm}).Err, records.ClassUnavailable)
	isClass(t, b.verb(nodes.VerbRemove, "e1").Err, records.ClassUnavailable)
	if b.Sandboxes() != nil || b.commands("e1")[1].Cause != "signal" {
		t.Errorf("left %v", b.Sandboxes())
	}
}

func TestLogIsIncompleteWithoutItsProcess(t *testing.T) {
	b := newBench(t, 1, calm())
	for _, id := range []string{"e1", "e2", "e3"} {
		b.run(id, "sleep-exit", "1s", "0")
	}
	b.KillLog("e2")
	b.pass(2 * second)
	complete := []bool{b.verb(nodes.VerbFlush, "e1").Complete, b.verb(nodes.VerbFlush, "e2").Complete}
	b.Faults.Runtime.IncompleteRate = 1
	if complete = append(complete, b.verb(nodes.VerbFlush, "e3").Complete); !slices.Equal(complete, []bool{true, false, false}) {
		t.Errorf("complete %v", complete)
	}
}

func TestUnknownDriver(t *testing.T) {
	b := newBench(t, 1, calm())
	var got *nodes.SandboxResult
	b.life.Sandboxes().Do(nodes.SandboxOp{Verb: nodes.VerbList, Driver: "other"}, func(r nodes.SandboxResult) { got = &r })
	b.pass(second)
	isClass(t, got.Err, records.ClassNotFound)
}

func TestLeftTellsWhatIsLeft(t *testing.T) {
	b := newBench(t, 1, calm())
	if !b.Left().Empty() {
		t.Errorf("a new machine has %+v", b.Left())
	}
	b.run("e1", "sleep-exit", "1h", "0")
	if left := b.Left(); left.Empty() || len(left.Sandboxes) != 1 || !left.Sandboxes[0].Alive || left.Sandboxes[0].Token != 77 {
		t.Errorf("left %+v", left)
	}
}

func TestDurableExitIsSettledAndOutlivesAReboot(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Runtime.DurableRate = 1
	b.run("e1", "fork", "1h", "sleep-exit", "1s", "3")
	b.run("e2", "sleep-exit", "1s", "4")
	b.run("e3", "sleep-exit", "1h", "5")
	b.KillLog("e2")
	b.pass(2 * second)
	for id, want := range map[string]bool{"e1": true, "e2": false} {
		r := b.verb(nodes.VerbWait, id)
		if !r.Exit.Durable || !r.Exit.Settled || r.Exit.Leftover != want || r.Exit.LogComplete != want {
			t.Errorf("%s: exit %+v, want leftover and complete %v", id, r.Exit, want)
		}
		if kill := b.verb(nodes.VerbKill, id); kill.Leftover != want {
			t.Errorf("%s: kill says leftover %v, want %v", id, kill.Leftover, want)
		}
		if flush := b.verb(nodes.VerbFlush, id); flush.Complete != want {
			t.Errorf("%s: flush says complete %v, want %v", id, flush.Complete, want)
		}
	}
	if b.alive() != 1 || len(b.commands("e1")) != 2 {
		t.Errorf("%d live, history %+v", b.alive(), b.commands("e1"))
	}
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	if infos := b.verb(nodes.VerbList, "").Infos; len(infos) != 2 {
		t.Errorf("list after the reboot %+v", infos)
	}
	isCode(t, b.verb(nodes.VerbWait, "e1"), 3, 0)
	isCode(t, b.verb(nodes.VerbWait, "e2"), 4, 0)
}
