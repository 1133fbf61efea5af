package host_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
)

// goroutine names the one that runs.
func goroutine() string {
	var head [64]byte
	name, _, _ := bytes.Cut(head[:runtime.Stack(head[:], false)], []byte(" ["))
	return string(name)
}

func TestTurnsUseGoroutinesAgainUntilTheHostCloses(t *testing.T) {
	h := host.New(host.Options{Clock: &stepping.Clock{}})
	turns := make(chan string)
	top, err := h.Spawn("one", func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(string); ok {
				turns <- goroutine()
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	const messages = 50
	for range messages {
		h.System().Root.Send(top.PID, "turn")
		names[<-turns] = true
	}
	// A message that comes while a turn ends may have another goroutine.
	if len(names) > messages/2 {
		t.Errorf("%d turns, one after the other, on %d goroutines", messages, len(names))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Close(ctx); err != nil {
		t.Error(err)
	}
	// goleak sees that none is left.
}
