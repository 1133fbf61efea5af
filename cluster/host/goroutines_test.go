package host_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

// A world of one goroutine must stay one, whatever its actors do.
func TestSteppedHostStartsNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	check := func(after string) {
		t.Helper()
		if got := runtime.NumGoroutine(); got != before {
			stacks := make([]byte, 1<<16)
			t.Fatalf("after %s: %d goroutines, %d before\n%s", after, got, before, stacks[:runtime.Stack(stacks, true)])
		}
	}
	b := newBench(1)
	check("making a host")
	top := b.spawn(t, "parent", func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *actor.Started:
			child := ctx.Spawn(b.Props(func() actor.Actor { return actor.ReceiveFunc(func(actor.Context) {}) }))
			ctx.Watch(child)
			ctx.Stop(child)
			ctx.Send(child, "too late")
		case string:
			if m == "panic" {
				panic("as told")
			}
			ctx.Respond("answer")
		}
	})
	b.settle()
	check("spawning, watching and stopping a child")
	reply := b.Expect(func(any, error) {})
	b.System().Root.RequestWithCustomSender(top.PID, "ask", reply.PID())
	b.settle()
	check("an answer")
	for range 20 {
		b.send(top, "panic")
		for b.settle(); b.clock.Next(); b.settle() {
		}
	}
	if len(b.failed) == 0 {
		t.Fatal("the actor was not given up")
	}
	check("restarts, and an actor that was given up")
	for range 100 { // more than any throttle lets pass
		b.send(top, "dead letter")
	}
	dead := b.Expect(func(any, error) {})
	b.System().Root.RequestWithCustomSender(top.PID, "ask", dead.PID())
	b.settle()
	check("dead letters")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = b.Close(ctx)
	b.settle()
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("closing it")
}
