package activation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// repeatsPast are the ranks that the repeats of an ask pass over: the first is for who
// owns the actor, the last stays here.
var repeatsPast = [...]int{0, 1, RanksTried + 1}

// AskRepeatedly is Ask for a message that does no harm when it is taken more than once:
// an owner that has it and does not answer, because it has lost the store for example,
// is passed over. After a third of the context's time the message is sent again past
// the first in rank, after two to the actor on this node. The first answer counts.
func (d *Directory) AskRepeatedly(ctx context.Context, kind, identity string, message proto.Message) (proto.Message, error) {
	answer, err := d.await(ctx, func(wait time.Duration, then func(proto.Message, error)) (drop func()) {
		return d.AskRepeatedlyThen(kind, identity, message, wait, then)
	})
	if err != nil {
		return nil, fmt.Errorf("ask %s %s: %w", kind, identity, err)
	}
	return answer, nil
}

// AskRepeatedlyThen is to AskRepeatedly what AskThen is to Ask; the thirds are those of
// wait. then is not called after drop has returned, save for a call that is under way.
func (d *Directory) AskRepeatedlyThen(kind, identity string, message proto.Message, wait time.Duration, then func(proto.Message, error)) (drop func()) {
	r := &repeatedAsk{
		directory: d, to: address{kind, identity}, message: message, wait: wait, then: then,
		pause: wait / time.Duration(len(repeatsPast)),
	}
	r.send(0)
	return func() { r.end() }
}

// repeatedAsk is an ask that is sent more than once. Its answers come from any
// goroutine.
type repeatedAsk struct {
	directory   *Directory
	to          address
	message     proto.Message
	wait, pause time.Duration

	mu    sync.Mutex
	then  func(proto.Message, error)
	drops []func()
}

// send sends the message for the n-th time, and sees to the next.
func (r *repeatedAsk) send(n int) {
	if r.over() {
		return
	}
	past := repeatsPast[n]
	drop := r.directory.askThen(&delivery{to: r.to, message: r.message, past: past, wait: r.wait}, r.answer)
	stop := func() {}
	if n+1 < len(repeatsPast) {
		stop = r.directory.host.Clock().After(r.pause, func() { r.send(n + 1) })
	}
	r.mu.Lock()
	over := r.then == nil
	if !over {
		r.drops = append(r.drops, drop, stop)
	}
	r.mu.Unlock()
	if over {
		drop()
		stop()
	}
}

func (r *repeatedAsk) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.then == nil
}

func (r *repeatedAsk) answer(answer proto.Message, err error) {
	if then := r.end(); then != nil {
		then(answer, err)
	}
}

// end takes the place of the answer: who gets it may use it.
func (r *repeatedAsk) end() func(proto.Message, error) {
	r.mu.Lock()
	then, drops := r.then, r.drops
	r.then, r.drops = nil, nil
	r.mu.Unlock()
	for _, drop := range drops {
		drop()
	}
	return then
}
