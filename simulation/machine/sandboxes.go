package machine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// The deadlines of operations, as those of a node's pool of drivers.
const (
	createTimeout = 10 * time.Minute
	startTimeout  = time.Minute
	killTimeout   = 15 * time.Second
	// orphanMax is how long after the end of a daemon what it has asked for may still
	// happen: it is with the runtime or the kernel then, which do not wait.
	orphanMax = 2 * time.Second
)

// sandboxes is the runtime as one life of the daemon uses it.
type sandboxes struct{ daemon *Daemon }

var _ nodes.Sandboxes = sandboxes{}

// operation is one call of Do.
type operation struct {
	nodes.SandboxOp
	runtime *runtime
	daemon  *Daemon
	deliver func(nodes.SandboxResult)
	// unset stops what is next of it; only a create is ever stopped.
	unset func()
}

// Do carries an operation out: it has its effect after a while and is answered a
// little later, unless the daemon has ended by then.
func (s sandboxes) Do(op nodes.SandboxOp, deliver func(nodes.SandboxResult)) {
	if s.daemon.dead {
		return
	}
	r := &s.daemon.machine.runtime
	o := &operation{SandboxOp: op, runtime: r, daemon: s.daemon, deliver: deliver}
	if !slices.Contains(r.drivers, op.Driver) {
		o.fail(records.Errorf(records.ClassNotFound, "%s sandbox %s: there is no driver %q", op.Verb, op.ID, op.Driver))
		return
	}
	if virtual.Chance(r.machine.random, r.machine.Faults.Runtime.UnavailableRate) {
		o.fail(records.Errorf(records.ClassUnavailable, "%s sandbox %s: the runtime does not answer", op.Verb, op.ID))
		return
	}
	faults := &r.machine.Faults.Runtime
	switch op.Verb {
	case nodes.VerbCreate:
		o.create()
	case nodes.VerbStart:
		o.start()
	case nodes.VerbSignal:
		o.later(faults.Signal, o.signal)
	case nodes.VerbKill:
		o.beginKill()
	case nodes.VerbWait:
		o.later(virtual.Span{}, o.wait)
	case nodes.VerbFlush:
		o.later(faults.Flush, o.flush)
	case nodes.VerbRemove:
		o.later(faults.Remove, o.remove)
	case nodes.VerbList:
		o.later(faults.List, o.list)
	default:
		o.fail(records.Errorf(records.ClassInvalid, "%s sandbox %s: there is no such verb", op.Verb, op.ID))
	}
}

// Abandon ends the Create of a sandbox early.
func (s sandboxes) Abandon(driver, id string) {
	r := &s.daemon.machine.runtime
	if o, ok := r.creating[boxKey{driver, id}]; ok && o.daemon == s.daemon && !s.daemon.dead {
		o.tooLate(context.Canceled)
	}
}

// later lets an operation have its effect after a while. One whose daemon has ended
// meanwhile may have it all the same.
func (o *operation) later(span virtual.Span, effect func()) {
	m := o.runtime.machine
	o.after(span.Draw(m.random), effect)
}

func (o *operation) after(d time.Duration, effect func()) {
	m := o.runtime.machine
	o.unset = m.timers.after(d, false, func() {
		if !o.daemon.dead || o.orphaned() {
			effect()
		}
	})
}

// orphaned decides whether what a dead daemon has asked for happens all the same.
func (o *operation) orphaned() bool {
	m := o.runtime.machine
	mono, _, _ := m.oscillator.read(m.now())
	return mono-o.daemon.diedAt <= orphanMax && virtual.Chance(m.random, m.Faults.Runtime.OrphanRate)
}

// answer delivers a result, a little later.
func (o *operation) answer(result nodes.SandboxResult) {
	m, deliver := o.runtime.machine, o.deliver
	m.timers.after(m.Faults.Runtime.Answer.Draw(m.random), false, func() {
		o.daemon.answer(func() { deliver(result) })
	})
}

func (o *operation) fail(err error) { o.answer(nodes.SandboxResult{Err: err}) }

// done answers that it was done, or, if the answer is lost, that it may have been.
func (o *operation) done(result nodes.SandboxResult) {
	m := o.runtime.machine
	if virtual.Chance(m.random, m.Faults.Runtime.AnswerLostRate) {
		o.fail(records.Errorf(records.ClassUnavailable, "%s sandbox %s: the connection broke", o.Verb, o.ID))
		return
	}
	o.answer(result)
}

func missing(verb nodes.SandboxVerb, id string) error {
	return records.Errorf(records.ClassNotFound, "%s sandbox %s: it is not there", verb, id)
}

func (o *operation) box() *box { return o.runtime.boxes[boxKey{o.Driver, o.ID}] }

// slow is how long a create or start takes.
func (o *operation) slow(span virtual.Span) time.Duration {
	m := o.runtime.machine
	took := span.Draw(m.random)
	if virtual.Chance(m.random, m.Faults.Runtime.SlowRate) {
		took += m.Faults.Runtime.Slow.Draw(m.random)
	}
	return took
}

func (o *operation) create() {
	m := o.runtime.machine
	faults := &m.Faults.Runtime
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = createTimeout
	}
	o.runtime.creating[boxKey{o.Driver, o.ID}] = o
	took := o.slow(faults.Create)
	hangs := took >= timeout || virtual.Chance(m.random, faults.CreateHangRate)
	begun := o.runtime.images.mono()
	o.after(timeout, func() { o.tooLate(context.DeadlineExceeded) })
	o.runtime.images.await(o, func(err error) {
		left := timeout - (o.runtime.images.mono() - begun)
		switch {
		case err != nil:
			o.unset()
			o.created()
			o.fail(err)
		case !hangs && took < left:
			o.unset()
			o.after(took, func() {
				o.created()
				o.fail(o.tryCreate())
			})
		}
	})
}

// created takes a create off those under way.
func (o *operation) created() {
	if key := (boxKey{o.Driver, o.ID}); o.runtime.creating[key] == o {
		delete(o.runtime.creating, key)
	}
}

// breakOff ends a create that has not come to its end. It may leave the sandbox.
func (o *operation) breakOff(err error) {
	m := o.runtime.machine
	o.unset()
	o.created()
	o.runtime.images.give(o)
	if virtual.Chance(m.random, m.Faults.Runtime.CreateLeaveRate) && o.runtime.images.has(o.Spec.Spec.GetImage()) {
		_ = o.tryCreate() // the answer is the other error
	}
	o.fail(err)
}

// tryCreate makes the sandbox, unless it is refused.
func (o *operation) tryCreate() error {
	m := o.runtime.machine
	faults := &m.Faults.Runtime
	program, err := ParseProgram(o.Spec.Spec.GetCommand())
	switch {
	case err != nil:
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%v", err)
	case program.CreateError != 0:
		return sandbox.Permanentf(program.CreateError, "the program says so")
	case program.CreateRefused != 0:
		return sandbox.Transientf(program.CreateRefused, "the program says so")
	case virtual.Chance(m.random, faults.CreateFailRate):
		return sandbox.Permanentf(recordv1.Reason_REASON_IMAGE_NOT_FOUND, "there is no such image")
	case virtual.Chance(m.random, faults.CreateRefuseRate):
		return sandbox.Transientf(recordv1.Reason_REASON_IMAGE_PULL, "the registry does not answer")
	case o.box() != nil:
		return records.Errorf(records.ClassConflict, "create sandbox %s: it exists", o.ID)
	}
	b := &box{
		runtime: o.runtime, driver: o.Driver, program: program.of(o.Spec.Attempt), token: tokenOf(o.Spec.Spec.GetEnv()),
		unfenced: o.Spec.Unfenced,
		info: sandbox.Info{
			ID: o.ID, Run: o.Spec.Run, Attempt: o.Spec.Attempt, Placement: o.Spec.Placement, State: sandbox.StateCreated,
			StartToken: slices.Clone(o.Spec.StartToken), SpecHash: slices.Clone(o.Spec.SpecHash),
		},
	}
	o.runtime.add(boxKey{o.Driver, o.ID}, b)
	b.note("created")
	return nil
}

func (o *operation) start() {
	m := o.runtime.machine
	took := o.slow(m.Faults.Runtime.Start)
	unknown := virtual.Chance(m.random, m.Faults.Runtime.StartUnknownRate)
	if unknown || took > startTimeout {
		happens := took > startTimeout || virtual.Chance(m.random, 0.5)
		if happens {
			late := virtual.Span{Max: m.Faults.Runtime.Slow.Max}.Draw(m.random)
			o.after(took+late, func() { _, _ = o.tryStart() }) // nobody hears of it
		}
		o.runtime.machine.timers.after(min(took, startTimeout), false, func() {
			o.notKnown()
			o.fail(records.Errorf(records.ClassOutcomeUnknown, "start sandbox %s: %w", o.ID, context.DeadlineExceeded))
		})
		return
	}
	o.after(took, func() {
		at, err := o.tryStart()
		o.answer(nodes.SandboxResult{StartedAt: at, Err: err})
	})
}

// notKnown takes note that the daemon is told that nobody knows what became of a start.
func (o *operation) notKnown() {
	b, m := o.box(), o.runtime.machine
	if b == nil || o.daemon.dead {
		return
	}
	m.history.Add(history.Event{
		Step: m.step(), At: m.now(), Kind: history.KindSandbox, Node: m.name,
		Run: b.info.Run, Attempt: b.info.Attempt, Placement: b.info.Placement, Text: "start not known", Detail: history.StartUnknown{},
	})
}

// tryStart starts the command, unless it is refused.
func (o *operation) tryStart() (time.Time, error) {
	m := o.runtime.machine
	b := o.box()
	switch {
	case b == nil:
		return time.Time{}, missing(o.Verb, o.ID)
	case b.info.State != sandbox.StateCreated:
		return time.Time{}, records.Errorf(records.ClassConflict, "start sandbox %s: started before", o.ID)
	case b.program.StartError != 0:
		return time.Time{}, sandbox.Permanentf(b.program.StartError, "the program says so")
	case b.barred:
		return time.Time{}, records.Errorf(records.ClassConflict, "start sandbox %s: killed before", o.ID)
	case virtual.Chance(m.random, m.Faults.Runtime.StartFailRate):
		b.barred = true
		return time.Time{}, sandbox.Permanentf(recordv1.Reason_REASON_NOT_FOUND, "there is no such command")
	case virtual.Chance(m.random, m.Faults.Runtime.StartRefuseRate):
		b.barred = true
		return time.Time{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "there is no room for the command")
	}
	b.start()
	return b.exit.StartedAt, nil
}

func (o *operation) signal() {
	b := o.box()
	if b == nil {
		o.fail(missing(o.Verb, o.ID))
		return
	}
	delivered := b.signal(int32(o.Signal)) //nolint:gosec // a signal's number
	if delivered {
		b.note("signaled")
	}
	o.done(nodes.SandboxResult{Delivered: delivered})
}

// beginKill gives up after a while on a kill that goes on.
func (o *operation) beginKill() {
	m := o.runtime.machine
	took := m.Faults.Runtime.Kill.Draw(m.random)
	if took > killTimeout {
		m.timers.after(killTimeout, false, func() {
			o.fail(records.Errorf(records.ClassDeadline, "kill sandbox %s: %w", o.ID, context.DeadlineExceeded))
			o.deliver = func(nodes.SandboxResult) {}
		})
	}
	meant := o.box()
	o.after(took, func() { o.kill(meant) })
}

// kill ends what lives, and answers when nothing does. It does not reach a sandbox that
// was made in the place of the one that it was meant for.
func (o *operation) kill(meant *box) {
	b := o.box()
	if b == nil || meant != nil && b != meant {
		o.answer(nodes.SandboxResult{})
		return
	}
	b.barred = true
	leftover := b.alive()
	if leftover {
		b.note("killed")
		b.die(b.killCause())
	}
	o.done(nodes.SandboxResult{Leftover: leftover || b.exit.Leftover})
}

// killCause says whose kill by the daemon it is: once somebody fences, it is one of them.
// But what the fence leaves alone and has lost its shim is cleared up, fence or not.
func (b *box) killCause() string {
	if b.runtime.machine.fence.state.FencedAt != 0 && !(b.unfenced && b.lost) {
		return causeFence
	}
	return causeKill
}

func (o *operation) wait() {
	b := o.box()
	w := waiter{o.daemon, o.deliver}
	switch {
	case b == nil:
		o.fail(missing(o.Verb, o.ID))
	case b.info.State == sandbox.StateExited:
		b.report(w)
	case !o.daemon.dead:
		b.waiters = append(b.waiters, w)
	}
}

func (o *operation) flush() {
	b := o.box()
	if b == nil || b.info.State == sandbox.StateCreated {
		o.answer(nodes.SandboxResult{Complete: true})
		return
	}
	complete := b.exit.LogComplete
	if !b.exit.Settled {
		complete = b.completes()
	}
	o.answer(nodes.SandboxResult{Complete: complete})
}

// remove removes a sandbox, and what still lives in it.
func (o *operation) remove() {
	if b := o.box(); b != nil {
		b.note("removed")
		waiters := b.waiters
		b.waiters = nil
		b.die(b.killCause())
		o.runtime.remove(b)
		for _, w := range waiters {
			w := operation{SandboxOp: nodes.SandboxOp{Verb: nodes.VerbWait, ID: o.ID}, runtime: o.runtime, daemon: w.daemon, deliver: w.deliver}
			w.fail(records.Errorf(records.ClassUnavailable, "wait sandbox %s: it was removed", o.ID))
		}
	}
	o.done(nodes.SandboxResult{})
}

// list tells what there is of the driver, by id.
func (o *operation) list() {
	infos := make([]sandbox.Info, 0, len(o.runtime.order))
	for _, b := range o.runtime.order {
		if b.driver == o.Driver {
			infos = append(infos, b.info)
		}
	}
	slices.SortFunc(infos, func(a, b sandbox.Info) int { return strings.Compare(a.ID, b.ID) })
	o.answer(nodes.SandboxResult{Infos: infos})
}
