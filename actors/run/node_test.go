package run

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// node follows the journal rules of the protocol for the one run of a world.
type node struct {
	world   *world
	name    string
	session int64
	journal map[slot]*entry
	// goneAt is when the sessions that are over were gone, stopBy when the node must
	// have stopped what it runs in the last of them; fenced, that it has.
	goneAt map[int64]time.Duration
	stopBy time.Duration
	fenced bool
}

// slot names a placement of an attempt.
type slot struct{ attempt, placement int32 }

func slotOf(m interface {
	GetAttempt() int32
	GetPlacement() int32
},
) slot {
	return slot{m.GetAttempt(), m.GetPlacement()}
}

// slots returns those of the journal, oldest first.
func (n *node) slots() []slot {
	return slices.SortedFunc(maps.Keys(n.journal), func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.attempt, b.attempt), cmp.Compare(a.placement, b.placement))
	})
}

type entry struct {
	assignment *recordv1.Assignment
	started    bool
	startedAt  int64
	stop       recordv1.StopCause
	void       *recordv1.Void
	exit       *recordv1.Exit
	acked      bool
}

func (n *node) receive(message proto.Message, yes bool) {
	switch m := message.(type) {
	case *actorv1.Reserve:
		answer := &actorv1.Reserved{Run: m.GetRun(), Attempt: m.GetAttempt(), Placement: m.GetPlacement(), Node: n.name, Yes: yes, Session: n.session}
		if !yes {
			answer.Message = "no room: 64 of 64 sandboxes in use"
			n.world.said[n.name+answer.GetMessage()] = true
		}
		n.world.toRun = append(n.world.toRun, answer)
	case *actorv1.Start:
		// Only what the store holds at exactly this revision.
		if kv, ok := n.assigned(); ok && kv.Create == m.GetCommit() {
			n.accept(m.GetAssignment())
		}
	case *actorv1.Stop:
		n.stop(slotOf(m), m.GetDesired(), m.GetReason())
	case *actorv1.Ack:
		if e := n.journal[slotOf(m)]; e != nil {
			e.acked = true
		}
	}
}

func (n *node) assigned() (records.KV, bool) {
	kv, ok := n.world.store.keys[n.world.keys.Assignment(n.name, testID)]
	return kv, ok
}

func (n *node) accept(a *recordv1.Assignment) {
	if a.GetSession() == n.session && !n.fenced && n.journal[slotOf(a)] == nil {
		n.journal[slotOf(a)] = &entry{assignment: a}
	}
}

// sync is what the node's watch of its assignments brings.
func (n *node) sync() {
	var held *recordv1.Assignment
	if kv, ok := n.assigned(); ok {
		held = &recordv1.Assignment{}
		if err := records.Decode(kv, held); err != nil {
			n.world.t.Fatal(err)
		}
		n.accept(held)
		n.stop(slotOf(held), held.GetDesired(), held.GetStopReason())
	}
	for p, e := range n.journal {
		if e.exit == nil && e.void == nil && p != slotOf(held) {
			n.stop(p, recordv1.Desired_DESIRED_STOP, recordv1.Reason_REASON_CANCELED)
		}
	}
}

func (n *node) stop(p slot, desired recordv1.Desired, reason recordv1.Reason) {
	e := n.journal[p]
	if e == nil || e.exit != nil || e.void != nil || desired <= recordv1.Desired_DESIRED_RUN {
		return
	}
	switch {
	case !e.started:
		e.void = &recordv1.Void{Reason: reason}
	case desired == recordv1.Desired_DESIRED_STOP && reason == recordv1.Reason_REASON_CANCELED:
		e.stop = recordv1.StopCause_STOP_CAUSE_CANCEL
	case desired == recordv1.Desired_DESIRED_STOP:
		e.stop = recordv1.StopCause_STOP_CAUSE_TIMEOUT
	}
}

// last returns the newest placement here, if any.
func (n *node) last() *entry {
	if slots := n.slots(); len(slots) > 0 {
		return n.journal[slots[len(slots)-1]]
	}
	return nil
}

func (n *node) refuseToStart(permanent bool) {
	if e := n.last(); e != nil && !e.started && e.void == nil && e.exit == nil {
		e.void = &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "registry away", Permanent: permanent}
	}
}

func (n *node) start() {
	e := n.last()
	if e == nil || e.started || e.void != nil || e.exit != nil {
		return
	}
	for _, other := range n.world.nodes {
		for _, o := range other.journal {
			if o.started && o.assignment.GetAttempt() == e.assignment.GetAttempt() {
				n.world.t.Fatal("the command of one attempt is started twice")
			}
			if o.started && o.exit == nil {
				n.world.t.Fatal("two attempts run at one time")
			}
		}
	}
	e.started, e.startedAt = true, n.world.now.Milli()
}

// exit ends a started command with a code, or without one if code is negative.
func (n *node) exit(code int32) {
	e := n.last()
	if e == nil || !e.started || e.exit != nil {
		return
	}
	e.exit = &recordv1.Exit{StartedAt: e.startedAt, At: n.world.now.Milli(), StopDelivered: e.stop != 0, StopCause: e.stop}
	if code >= 0 {
		e.exit.Code = &code
	} else {
		e.exit.Reason = recordv1.Reason_REASON_SANDBOX_LOST
	}
}

// report tells what is not acknowledged; with acked, that too.
func (n *node) report(acked bool) {
	for _, p := range n.slots() {
		e := n.journal[p]
		if e.acked && !acked {
			continue
		}
		var message proto.Message
		switch {
		case e.void != nil:
			message = &actorv1.Voided{Run: testID, Attempt: p.attempt, Placement: p.placement, Node: n.name, Void: e.void}
		case e.exit != nil:
			message = &actorv1.Exited{Run: testID, Attempt: p.attempt, Placement: p.placement, Node: n.name, Exit: e.exit}
		case e.started:
			message = &actorv1.Started{Run: testID, Attempt: p.attempt, Placement: p.placement, Node: n.name, At: e.startedAt}
		default:
			continue
		}
		n.world.toRun = append(n.world.toRun, message)
	}
}
