package host

import (
	"context"
	"sync"
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

// Reply is the address of one answer that a goroutine outside the actors waits
// for. protoactor's futures are not used: each starts a timer of its own.
type Reply struct {
	once
	answers chan any
	drop    sync.Once
}

// NewReply makes an address. Drop it when the answer is not wanted any more.
func (h *Host) NewReply() *Reply {
	r := &Reply{answers: make(chan any, 1)}
	h.register("reply", r)
	return r
}

// PID is where the answer is to be sent.
func (r *Reply) PID() *actor.PID { return r.pid }

// Wait returns the answer. Without one it returns an error of ClassUnavailable
// when the actor that was asked is gone or stopped is closed, and of
// ClassOutcomeUnknown when the context ends: the actor may have acted, or may
// yet.
func (r *Reply) Wait(ctx context.Context, stopped <-chan struct{}) (any, error) {
	defer r.Drop()
	select {
	case answer := <-r.answers:
		return r.read(answer)
	default:
	}
	select {
	case answer := <-r.answers:
		return r.read(answer)
	case <-stopped:
		return nil, records.Errorf(records.ClassUnavailable, "wait for an answer: %w", ErrClosed)
	case <-ctx.Done():
		return nil, records.Errorf(records.ClassOutcomeUnknown, "wait for an answer: %w", ctx.Err())
	}
}

func (r *Reply) read(answer any) (any, error) {
	if _, dead := answer.(*actor.DeadLetterResponse); dead {
		return nil, records.Errorf(records.ClassUnavailable, "the actor has stopped")
	}
	return answer, nil
}

// Drop gives the address back; a later answer goes nowhere. Wait does it too.
func (r *Reply) Drop() { r.drop.Do(func() { r.take() }) }

// SendUserMessage takes the answer.
func (r *Reply) SendUserMessage(_ *actor.PID, message any) {
	if r.take() {
		r.answers <- actor.UnwrapEnvelopeMessage(message)
	}
}

// SendSystemMessage ignores what is not an answer.
func (r *Reply) SendSystemMessage(*actor.PID, any) {}

// Stop ignores the wish of others.
func (r *Reply) Stop(*actor.PID) {}
