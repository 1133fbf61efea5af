package host

import (
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/errand-run/errand/cluster/records"
)

// addressed is a process that learns its own address.
type addressed interface {
	actor.Process
	at(system *actor.ActorSystem, pid *actor.PID)
}

// once is a process that takes one message and is gone.
type once struct {
	system *actor.ActorSystem
	pid    *actor.PID
	done   atomic.Bool
}

func (o *once) at(system *actor.ActorSystem, pid *actor.PID) { o.system, o.pid = system, pid }

// take reports whether this is the one message, and takes the address back.
func (o *once) take() bool {
	if !o.done.CompareAndSwap(false, true) {
		return false
	}
	o.system.ProcessRegistry.Remove(o.pid)
	return true
}

// watcher calls then when the actor it watches has stopped.
type watcher struct {
	once
	then func()
}

func (w *watcher) SendUserMessage(*actor.PID, any) {}

func (w *watcher) SendSystemMessage(_ *actor.PID, message any) {
	if _, ok := message.(*actor.Terminated); ok && w.take() {
		w.then()
	}
}

func (w *watcher) Stop(*actor.PID) {}

// Reply is the address of one answer that somebody outside the actors waits for.
// protoactor's futures are not used: each starts a timer of its own.
type Reply struct {
	once
	then func(answer any, err error)
}

// Expect makes an address for one answer. then is called once, when it comes, from
// a goroutine of the dispatcher; it does not block. The error says that the
// actor that was asked is gone, with ClassUnavailable.
func (h *Host) Expect(then func(answer any, err error)) *Reply {
	r := &Reply{then: then}
	h.register("reply", r)
	return r
}

// PID is where the answer is to be sent.
func (r *Reply) PID() *actor.PID { return r.pid }

// Drop takes the address back; then is not called after it, save for a call that
// is under way.
func (r *Reply) Drop() { r.take() }

// SendUserMessage takes the answer.
func (r *Reply) SendUserMessage(_ *actor.PID, message any) {
	if !r.take() {
		return
	}
	answer := actor.UnwrapEnvelopeMessage(message)
	if _, dead := answer.(*actor.DeadLetterResponse); dead {
		r.then(nil, records.Errorf(records.ClassUnavailable, "the actor has stopped"))
		return
	}
	r.then(answer, nil)
}

// SendSystemMessage ignores what is not an answer.
func (r *Reply) SendSystemMessage(*actor.PID, any) {}

// Stop ignores the wish of others.
func (r *Reply) Stop(*actor.PID) {}
