package machine

import (
	"math/bits"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes/pace"
)

const (
	million = 1_000_000
	// bootMin and bootMax bound how long a machine is up before its first daemon.
	bootMin = 5 * time.Second
	bootMax = 60 * time.Second
)

// oscillator is what the clocks of a machine count by: readings at one true time,
// from which they go on evenly until something changes them. Reading changes
// nothing.
type oscillator struct {
	at                time.Duration
	mono, bootT, wall time.Duration
	// rate is by how many millionths it is fast; slew is how much more the wall is.
	rate, slew int64
	// Which of the clocks stand still.
	monoStands, bootStands, wallStands bool
}

// scale returns what a clock that is fast by ppm millionths counts in d.
func scale(d time.Duration, ppm int64) time.Duration {
	if ppm == 0 {
		return d
	}
	return d + d/million*time.Duration(ppm) + d%million*time.Duration(ppm)/million
}

// unscale returns how long it takes until a clock that is fast by ppm has counted d.
func unscale(d time.Duration, ppm int64) time.Duration {
	if ppm == 0 {
		return d
	}
	hi, lo := bits.Mul64(uint64(d), million)        //nolint:gosec // not negative
	q, r := bits.Div64(hi, lo, uint64(million+ppm)) //nolint:gosec // a rate is above minus a half
	if r > 0 {
		q++
	}
	// scale rounds down twice: it may lack a little still.
	for scale(time.Duration(q), ppm) < d { //nolint:gosec // far below the bound
		q++
	}
	return time.Duration(q) //nolint:gosec // far below the bound
}

// read returns the clocks at a true time.
func (o *oscillator) read(now time.Duration) (mono, boot, wall time.Duration) {
	passed := scale(now-o.at, o.rate)
	mono, boot, wall = o.mono, o.bootT, o.wall
	if !o.monoStands {
		mono += passed
	}
	if !o.bootStands {
		boot += passed
	}
	if !o.wallStands {
		wall += scale(passed, o.slew)
	}
	return mono, boot, wall
}

// base makes now the time from which the clocks go on.
func (o *oscillator) base(now time.Duration) {
	o.mono, o.bootT, o.wall = o.read(now)
	o.at = now
}

// boot begins monotonic and boottime again; the wall has a battery.
func (o *oscillator) boot(now, since time.Duration) {
	o.base(now)
	o.mono, o.bootT = since, since
	o.monoStands, o.bootStands, o.wallStands = false, false, false
}

// Rate sets by how many millionths all clocks of the machine, and with them its
// timers, are fast; negative is slow.
func (m *Machine) Rate(ppm int64) {
	was := m.oscillator.rate
	m.change(func(o *oscillator) { o.rate = max(ppm, -million/2) })
	if beyond := m.driftsBeyond(ppm); beyond != m.driftsBeyond(was) {
		m.outside("drift beyond the bound", beyond)
	}
}

func (m *Machine) driftsBeyond(ppm int64) bool { return ppm > m.driftMax || -ppm > m.driftMax }

// Slew makes the wall clock run faster than the others by so many millionths, as a
// correction does.
func (m *Machine) Slew(ppm int64) { m.change(func(o *oscillator) { o.slew = max(ppm, -million/2) }) }

// StepWall sets the wall clock forward by d, or back.
func (m *Machine) StepWall(d time.Duration) { m.change(func(o *oscillator) { o.wall += d }) }

// WallOffset is by how much the wall clock is ahead of the true time.
func (m *Machine) WallOffset() time.Duration {
	_, _, wall := m.oscillator.read(m.now())
	return wall - time.Duration(Epoch.UnixNano()) - m.now()
}

// change changes how the clocks go, and what that means for the timers.
func (m *Machine) change(f func(*oscillator)) {
	if m.daemon != nil {
		m.daemon.clock.sample()
	}
	m.oscillator.base(m.now())
	f(&m.oscillator)
	m.timers.arm()
}

// boottime reads the clock of the fence.
func (m *Machine) boottime() time.Duration {
	_, boot, _ := m.oscillator.read(m.now())
	return boot
}

// wall reads the wall clock as what stamps things on this machine.
func (m *Machine) wallNow() time.Time {
	_, _, wall := m.oscillator.read(m.now())
	return time.Unix(0, int64(wall)).UTC()
}

// clock is the actors' Clock of one life of a daemon.
type clock struct {
	daemon *Daemon
	health pace.Health
	// sampled is the boottime of the last look at the wall by itself.
	sampled time.Duration
}

var _ actors.Clock = (*clock)(nil)

// Now reads all clocks at one moment.
func (c *clock) Now() actors.Instant {
	m := c.daemon.machine
	c.sample()
	mono, boot, wall := m.oscillator.read(m.now())
	at := time.Unix(0, int64(wall)).UTC()
	c.health.Observe(boot, at)
	return actors.Instant{Mono: mono, Boot: boot, Wall: at, WallHealthy: c.health.Good(boot)}
}

// samplesMax is how many looks are caught up with: older ones are out of the window
// within which a step counts.
const samplesMax = 16

// sample takes the looks at the wall that fell due since the last one. Between two
// changes the clocks go on evenly, so that it can be done afterwards.
func (c *clock) sample() {
	o := &c.daemon.machine.oscillator
	_, boot, wall := o.read(c.daemon.machine.now())
	if c.daemon.machine.Paused() {
		return
	}
	if due := (boot - c.sampled) / pace.SampleInterval; due > samplesMax {
		c.sampled += (due - samplesMax) * pace.SampleInterval
	}
	for c.sampled+pace.SampleInterval <= boot {
		c.sampled += pace.SampleInterval
		ago := boot - c.sampled
		c.health.Observe(c.sampled, time.Unix(0, int64(wall-scale(ago, o.slew))))
	}
}

// After calls deliver when d has passed on the monotonic clock of the machine.
func (c *clock) After(d time.Duration, deliver func()) (stop func()) {
	daemon := c.daemon
	return daemon.machine.timers.after(d, false, func() {
		if !daemon.dead {
			deliver()
		}
	})
}

// skip passes over the looks at the wall that nobody could take.
func (c *clock) skip() { _, c.sampled, _ = c.daemon.machine.oscillator.read(c.daemon.machine.now()) }
