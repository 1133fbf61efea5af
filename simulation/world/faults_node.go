package world

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// stopped is how a machine that stays broken is paused.
const stopped = machine.Stopped

// million is the unit of a clock's rate.
const million = 1_000_000

// applyNode applies the faults of machines and daemons.
func (w *World) applyNode(a *active) (end func()) {
	s := w.seats[a.What.On()]
	switch f := a.What.(type) {
	case plan.Crash:
		return w.withoutDaemon(s, func() { w.exit(s, -1) })
	case plan.Restart:
		return w.withoutDaemon(s, func() {
			w.stop(s)
			if f.Revoke {
				w.revoke(s)
			}
			if d := s.daemon; f.Cut > 0 && d != nil {
				w.timeline.After(f.Cut.D(), func() {
					if s.daemon == d {
						w.exit(s, -1)
						w.launch(s)
					}
				})
			}
		})
	case plan.Reboot:
		return w.withoutPower(s)
	case plan.Pause:
		return w.applyPause(s, f)
	case plan.Panic:
		if s.daemon != nil {
			s.daemon.panics[f.Actor] += f.Turns
		}
		return nil
	case plan.DiskStall, plan.DiskFull, plan.DiskErrors:
		return w.refreshed(s)
	case plan.DiskSwap:
		return w.applySwap(s, w.seats[f.With])
	case plan.DiskRevert:
		return w.applyRevert(s, a)
	case plan.DiskTorn:
		s.forgot = true
		s.torn++
		w.refresh(s)
		power := w.withoutPower(s)
		return func() { s.torn--; w.refresh(s); power() }
	case plan.DiskLoss:
		s.forgot, s.accepted = true, true
		return w.withoutDaemon(s, func() { w.exit(s, -1); s.Disk().Lose() })
	case plan.NodeRemoved:
		return w.sayDead(f.Node, f.Through)
	case plan.Namesake:
		return w.applyNamesake(s, f.As)
	default:
		panic(fmt.Sprintf("world: nobody applies %s", a.What.Kind()))
	}
}

// withoutDaemon ends the daemon of a machine for the length of a fault.
func (w *World) withoutDaemon(s *seat, ended func()) (end func()) {
	s.down++
	ended()
	return func() {
		s.down--
		w.launch(s)
	}
}

// withoutPower takes a machine down for the length of a fault.
func (w *World) withoutPower(s *seat) (end func()) {
	s.down++
	w.exit(s, -1)
	s.PowerOff()
	return func() {
		s.PowerOn()
		s.down--
		w.launch(s)
	}
}

func (w *World) applyPause(s *seat, f plan.Pause) (end func()) {
	if s.Off() {
		return nil
	}
	how := machine.Stopped
	switch {
	case f.Uncounted:
		how = machine.Frozen
	case f.Suspend:
		how = machine.Suspended
	}
	s.Pause(how)
	w.present()
	return func() { w.resume(s) }
}

// resume lets a machine go on.
func (w *World) resume(s *seat) {
	s.Resume()
	w.present()
}

// copyEarly copies the disk that a fault will put back, while it is the machine's own.
func (f *faults) copyEarly(a *active, fault plan.DiskRevert) {
	f.world.timeline.After((a.Begin - fault.Age).D(), func() {
		if s := f.world.seats[fault.Node]; s != nil && !f.over && !s.foreign() {
			older := s.Disk().Copy()
			a.older = &older
		}
	})
}

// applyRevert brings the daemon back on the journal of before, if there is a copy and
// the disk that is there is the machine's own.
func (w *World) applyRevert(s *seat, a *active) (end func()) {
	if a.older == nil || s.foreign() {
		return w.withoutDaemon(s, func() { w.exit(s, -1) })
	}
	s.forgot, s.accepted = true, true
	return w.withoutDaemon(s, func() { w.exit(s, -1); s.Disk().Revert(*a.older) })
}

// applySwap swaps two disks while both daemons are down.
func (w *World) applySwap(s, other *seat) (end func()) {
	if other == nil || other == s || s.foreign() || other.foreign() {
		return nil
	}
	s.swapped, other.swapped = true, true
	s.forgot, other.forgot = true, true
	one := w.withoutDaemon(s, func() { w.exit(s, -1) })
	two := w.withoutDaemon(other, func() { w.exit(other, -1) })
	swap := func() {
		s.Disk().Swap(other.Disk())
		s.uuid, other.uuid = other.uuid, s.uuid
		// What is lost meanwhile, and accepted as lost, is the disk and not the machine.
		s.accepted, other.accepted = other.accepted, s.accepted
	}
	swap()
	return func() {
		// Somebody notices that neither comes up and puts them back.
		one()
		two()
		w.timeline.After(swapNoticed, func() {
			w.exit(s, -1)
			w.exit(other, -1)
			swap()
			s.swapped, other.swapped = false, false
			w.launch(s)
			w.launch(other)
		})
	}
}

// foreign tells whether a machine has another's disk or name already.
func (s *seat) foreign() bool { return s.swapped || s.as != s.name }

// swapNoticed is how long swapped disks stay after the daemons are started.
const swapNoticed = 40 * time.Second

// applyNamesake lets a machine come up under another's name, on an empty disk.
func (w *World) applyNamesake(s *seat, as string) (end func()) {
	if s.foreign() {
		return nil
	}
	s.forgot = true
	w.exit(s, -1)
	theirs := s.Disk().Copy()
	s.Disk().Lose()
	own := s.uuid
	s.as, s.uuid = as, own+"-again"
	w.launch(s)
	return func() {
		w.exit(s, -1)
		s.Disk().Revert(theirs)
		s.as, s.uuid = s.name, own
		w.launch(s)
	}
}

// applyClock applies the faults of clocks.
func (w *World) applyClock(a *active) (end func()) {
	s := w.seats[a.What.On()]
	switch f := a.What.(type) {
	case plan.WallStep:
		w.stepWall(s, f.By.D())
		return func() { w.stepWall(s, -f.By.D()) }
	case plan.Drift:
		s.Rate(int64(f.By * million))
		return func() { s.Rate(0) }
	default:
		panic(fmt.Sprintf("world: nobody applies %s", a.What.Kind()))
	}
}

// stepWall sets the wall clock of a machine, and lets the others compare theirs.
func (w *World) stepWall(s *seat, by time.Duration) {
	s.StepWall(by)
	w.Members.Clock(s.name, s.WallOffset())
}

// applySandbox applies the faults of sandboxes.
func (w *World) applySandbox(a *active) (end func()) {
	s := w.seats[a.What.On()]
	switch f := a.What.(type) {
	case plan.Vanish:
		for _, box := range s.Sandboxes() {
			s.VanishSandbox(box.ID)
		}
		return nil
	case plan.ShimDeath:
		for _, box := range s.Sandboxes() {
			s.CrashShim(box.ID, f.Alive)
		}
		return nil
	case plan.LogDeath:
		for _, box := range s.Sandboxes() {
			s.KillLog(box.ID)
		}
		if a.End > a.Begin {
			return w.refreshed(s)
		}
		return nil
	case plan.RuntimeAway:
		s.BreakWaits()
		return w.refreshed(s)
	case plan.GuardDeath:
		s.KillGuard()
		return s.StartGuard
	default:
		return w.refreshed(s)
	}
}

// base is how a good machine of this world is.
func (w *World) base() machine.Faults {
	l := w.plan.Options.Latency
	around := func(d plan.Duration) virtual.Span { return virtual.Span{Min: d.D() / 2, Max: 2 * d.D()} }
	f := machine.Sound()
	f.Disk.Sync = around(l.Disk)
	f.Runtime.Create, f.Runtime.Start, f.Runtime.Kill = around(l.Create), around(l.Start), around(l.Kill)
	return f
}

// refreshed makes a fault of a machine's traits count, and then no more.
func (w *World) refreshed(s *seat) (end func()) {
	w.refresh(s)
	return func() { w.refresh(s) }
}

// refresh derives the traits of a machine from the faults under way.
func (w *World) refresh(s *seat) {
	f := w.base()
	if s.torn > 0 {
		f.Disk.TearRate = 1
	}
	for _, a := range w.faults.active {
		if a.What.On() == s.name {
			alter(&f, a)
		}
	}
	s.Alter(f)
}

// alter adds a fault to the traits of a machine.
func alter(f *machine.Faults, a *active) {
	upTo := func(d plan.Duration) virtual.Span { return virtual.Span{Max: d.D()} }
	exactly := func(d plan.Duration) virtual.Span { return virtual.Span{Min: d.D(), Max: d.D()} }
	switch what := a.What.(type) {
	case plan.DiskStall:
		f.Disk.StallRate, f.Disk.Stall = 1, exactly(what.By)
		if what.By == 0 {
			f.Disk.Stall = exactly(min(a.End-a.Begin, plan.Duration(time.Minute)))
		}
	case plan.DiskFull:
		f.Disk.Full = true
	case plan.DiskErrors:
		f.Disk.ErrorRate = what.Chance
	case plan.RuntimeAway:
		f.Runtime.UnavailableRate = 1
	case plan.Flaky:
		f.Runtime.AnswerLostRate, f.Runtime.CreateLeaveRate = what.Chance, what.Chance
		f.Runtime.IncompleteRate, f.Runtime.KeepRate = what.Chance, what.Chance
	case plan.RegistryBusy:
		f.Runtime.PullFailRate, f.Runtime.PullRetryAfter = what.Chance, upTo(what.RetryAfter)
		f.Runtime.Pull.Max += what.Slow.D()
	case plan.SlowCreate:
		f.Runtime.SlowRate, f.Runtime.Slow = 1, upTo(what.By)
	case plan.FailedStart:
		if what.Permanent {
			f.Runtime.CreateFailRate, f.Runtime.StartFailRate = what.Chance/2, what.Chance/2
			return
		}
		f.Runtime.CreateRefuseRate, f.Runtime.StartRefuseRate = what.Chance/2, what.Chance/2
		f.Runtime.StartUnknownRate, f.Runtime.CreateHangRate, f.Runtime.UnavailableRate = what.Chance/4, what.Chance/8, what.Chance/8
	case plan.LateExit:
		f.Runtime.ExitDelay = upTo(what.By)
	case plan.DoubledExit:
		f.Runtime.DoubleRate = 1
	case plan.LogDeath:
		f.Runtime.LoglessRate = 1
	case plan.SlowKill:
		f.Runtime.Kill, f.Fence.Kill = upTo(what.By), upTo(what.By)
	}
}
