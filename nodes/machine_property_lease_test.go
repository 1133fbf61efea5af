package nodes

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// tenant is what a chaos knows of the node's sessions when they have leases.
type tenant struct {
	// guarded worlds have a guard that kills in the daemon's stead.
	guarded, guarding bool
	// session is the one in the store; goneAt is when each that is over was gone.
	session int64
	goneAt  map[int64]time.Duration
	// windowAt is for how long others wait for it from then on.
	windowAt map[int64]time.Duration
	// late are transactions of lives before that the store may still carry out.
	late []records.Txn
	// fenceKilled are the sandboxes whose command a KILL because of the fence ended.
	fenceKilled map[string]bool
}

func newLeasedChaos(t *rapid.T) *chaos {
	c := newChaosOf(t, newLeasedLab())
	c.tenant.guarded = rapid.Bool().Draw(t, "guarded")
	return c
}

// onKill holds that every KILL of a running command has its cause on record.
func (c *chaos) onKill(id string) {
	b := c.boxes[id]
	fence := c.fence.state
	if b.state == sandbox.StateRunning && fence.FencedAt > 0 && !b.unfenced {
		c.tenant.fenceKilled[id] = true
	}
	if c.tenant.guarding || b.state != sandbox.StateRunning {
		return
	}
	e := c.entries[PlacementKey{b.run, b.attempt, b.placement}]
	stopped := e.GetStopCause() != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED && e.GetStopCause() != recordv1.StopCause_STOP_CAUSE_FENCE
	late := fence.FencedAt > 0 && c.now.Boot >= fence.FencedAt+FenceSyncMax
	if e != nil && !terminalEntry(e) && !stopped && !late {
		c.t.Fatalf("%s is killed while the disk says %v and the fence %+v", id, e, fence)
	}
}

// onCommit follows the session in the store.
func (c *chaos) onCommit() {
	c.checkReach()
	kv, _ := c.key()
	if kv.Create == c.tenant.session {
		return
	}
	if c.tenant.session != 0 {
		c.tenant.goneAt[c.tenant.session], c.tenant.windowAt[c.tenant.session] = c.now.Boot, c.window()
	}
	c.tenant.session = kv.Create
	if kv.Create == 0 {
		return
	}
	for id, b := range c.boxes {
		// What outlives a session may have ended since the next one was asked for.
		e := c.entries[PlacementKey{b.run, b.attempt, b.placement}]
		outlives := b.unfenced && e != nil && e.GetVoid() == nil && !e.GetExit().GetFenced()
		if b.alive && !outlives {
			c.t.Fatalf("session %d is opened and %s is alive", kv.Create, id)
		}
	}
}

// checkReach holds that the fence never reaches further than others wait.
func (c *chaos) checkReach() {
	if beyond := c.beyond(); beyond > 0 {
		c.t.Fatalf("the fence %+v reaches %s further than whoever sees the session's end at %s waits", c.fence.state, beyond, c.now.Boot)
	}
}

// onLeased holds what the machine may do to the fence and before it.
func (c *chaos) onLeased(effect actors.Effect) {
	switch e := effect.(type) {
	case ArmFence:
		c.checkReach()
		gone, over := c.tenant.goneAt[e.State.Session]
		if from := e.State.Deadline - c.tenant.windowAt[e.State.Session]; over && from > gone {
			c.t.Fatalf("session %d may go on for a window from %s, and was gone at %s", e.State.Session, from, gone)
		}
	case DoSandbox:
		state := c.fence.state
		if e.Op.Verb == VerbStart && c.session.Lease > 0 && (state.FencedAt > 0 || c.now.Boot+c.session.StartMargin >= state.Deadline) {
			c.t.Fatalf("%s is started at %s, with the fence at %+v", e.Op.ID, c.now.Boot, state)
		}
	}
}

// actLeased draws one thing that happens to leases, leaders and clocks.
func (c *chaos) actLeased() {
	pick := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(c.t, what) }
	switch k := pick(24, "lease"); {
	case k == 0:
		c.expire()
	case k == 1:
		c.lessor.deposed = !c.lessor.deposed
	case k == 2 && pick(6, "admin") == 0:
		c.deleteKey(c.keys.Node("n1"))
	case k == 3:
		// A new leader grants every lease its whole time again.
		c.lessor.term++
		for _, lease := range c.lessor.leases {
			lease.expires = c.now.Boot + lease.ttl
		}
	case k == 4:
		c.pass(time.Duration(pick(20, "s")) * time.Second)
	case k == 5 && pick(4, "pause") == 0:
		// The machine stands still, or the daemon is gone for a while.
		c.advanceTo(c.now.Mono + time.Duration(pick(100, "s"))*time.Second)
		c.guardPerhaps()
	case k == 6:
		c.guardPerhaps()
	case k == 8 && c.reached >= PhaseRegistered && pick(4, "leave") == 0:
		c.step(Leave{})
	case k == 9 && len(c.tenant.late) > 0:
		c.commit(c.tenant.late[0])
		c.tenant.late = c.tenant.late[1:]
	case k == 10 && c.left:
		// The daemon ends, and the next one comes at its leisure.
		c.advanceTo(c.now.Mono + time.Duration(pick(150, "away"))*time.Second)
		c.guardPerhaps()
		c.crash(len(c.writes), true, false)
	case k == 7 && pick(4, "detach") == 0:
		if kv, ok := c.key(); ok {
			c.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: kv.Key, Value: kv.Value}}})
		}
	case len(c.calls) > 0:
		call := c.calls[0]
		c.calls = c.calls[1:]
		done := c.answer(call)
		if pick(8, "answer") == 0 {
			done.Result = actors.LeaseResult{Err: records.Errorf(records.ClassOutcomeUnknown, "timeout")}
		}
		c.step(done)
	default:
		c.flow()
	}
}

func (c *chaos) guardPerhaps() {
	if c.tenant.guarded {
		c.tenant.guarding = true
		c.guard()
		c.tenant.guarding = false
	}
}

func TestLeasedMachineKeepsItsPromisesThroughFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newLeasedChaos(t)
		for range rapid.IntRange(50, 800).Draw(t, "acts") {
			if rapid.IntRange(0, 2).Draw(t, "leased") == 0 {
				c.actLeased()
			} else {
				c.act()
			}
		}
		c.lessor.deposed = false
		if c.machine.leaving {
			c.launch()
		}
		c.heal()
		kv, ok := c.key()
		if !ok || kv.Create != c.machine.session || !slices.Contains(c.follows, kv.Key) {
			t.Fatalf("key %+v, session %d", kv, c.machine.session)
		}
	})
}
