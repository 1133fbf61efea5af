package host

import (
	"errors"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
)

// ErrForeignProps is returned by a spawn, under StrictSpawn, when the props were
// not made by the host's factory.
var ErrForeignProps = errors.New("these props are not of the host's factory and would run on goroutines")

// sealed is a parent that only the host's own spawn function can use. Props do not
// show who made them, but protoactor's own spawn function asks the parent for
// its address first, and there it stops.
type sealed struct {
	actor.SpawnerContext
}

// Self panics: the props that are being spawned are foreign.
func (sealed) Self() *actor.PID { panic(ErrForeignProps) }

// refuse is the spawn middleware of the root, which nobody uses: top actors are
// the host's.
func refuse(actor.SpawnFunc) actor.SpawnFunc {
	return func(_ *actor.ActorSystem, id string, _ *actor.Props, _ actor.SpawnerContext) (*actor.PID, error) {
		return nil, fmt.Errorf("spawn %s past Host.Spawn: %w", id, ErrForeignProps)
	}
}

// seal is the spawn middleware of every actor of the factory.
func seal(next actor.SpawnFunc) actor.SpawnFunc {
	return func(system *actor.ActorSystem, id string, props *actor.Props, parent actor.SpawnerContext) (pid *actor.PID, err error) {
		defer func() {
			if r := recover(); r != nil {
				if reason, ok := r.(error); !ok || !errors.Is(reason, ErrForeignProps) {
					panic(r)
				}
				err = fmt.Errorf("spawn %s: %w", id, ErrForeignProps)
			}
		}()
		return next(system, id, props, sealed{parent})
	}
}

// spawnSealed is the spawn function of the factory's props.
func spawnSealed(system *actor.ActorSystem, id string, props *actor.Props, parent actor.SpawnerContext) (*actor.PID, error) {
	if s, ok := parent.(sealed); ok {
		parent = s.SpawnerContext
	}
	return actor.DefaultSpawner(system, id, props, parent)
}
