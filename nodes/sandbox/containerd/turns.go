package containerd

import (
	"context"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// execsPerSandbox is how many commands are being started beside a sandbox's own at a
	// time: its shim starts them one by one, the next is looked up meanwhile.
	execsPerSandbox = 2
	// execTurnMax is how long one waits for that; many clients come at once.
	execTurnMax = time.Minute
)

// execTurns bound the commands that are being started beside others. Each costs the
// runtime some tens of milliseconds of a core, and all have the same time: of many that
// begin together none would be done within it. A sandbox whose shim hangs holds up only
// its own.
type execTurns struct {
	all chan struct{}

	mu sync.Mutex
	of map[string]*sandboxTurns
}

// sandboxTurns are those of one sandbox; users is how many have or want one.
type sandboxTurns struct {
	turns chan struct{}
	users int
}

func newExecTurns(all int) *execTurns {
	return &execTurns{all: make(chan struct{}, all), of: map[string]*sandboxTurns{}}
}

// take waits for a turn in a sandbox, in the order of the calls, until the context ends.
func (e *execTurns) take(ctx context.Context, id string) (leave func(), err error) {
	own := e.enter(id)
	for i, turns := range []chan struct{}{own.turns, e.all} {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-own.turns
			}
			e.left(id, own)
			return nil, records.Errorf(records.ClassUnavailable, "too many commands are being started in sandboxes, and this one was not: try again")
		}
	}
	return func() {
		<-e.all
		<-own.turns
		e.left(id, own)
	}, nil
}

func (e *execTurns) enter(id string) *sandboxTurns {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := e.of[id]
	if own == nil {
		own = &sandboxTurns{turns: make(chan struct{}, execsPerSandbox)}
		e.of[id] = own
	}
	own.users++
	return own
}

func (e *execTurns) left(id string, own *sandboxTurns) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(e.of, id)
	}
}
