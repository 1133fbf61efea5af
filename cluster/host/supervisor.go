package host

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// What a failing actor is granted. An actor that panics again and again at once
// is stopped about 3 s after its first panic.
const (
	// RestartsMax is how many restarts one actor gets within RestartWindow.
	RestartsMax = 5
	// RestartWindow is on the injected clock.
	RestartWindow = time.Minute
	// restartPauseMin is the pause before the first restart; each further one within
	// the window doubles it, up to restartPauseMax.
	restartPauseMin = 100 * time.Millisecond
	restartPauseMax = 5 * time.Second
	// failuresMax bounds what is remembered of all actors; beyond it the oldest
	// failures are forgotten, which only grants more restarts.
	failuresMax = 4096
)

// ErrFailed is returned, or told, when an actor was stopped because it failed too
// often.
var ErrFailed = errors.New("actor failed too often")

// supervisor restarts a failing actor alone, never its siblings. It may be called
// from the turns of several parents at a time.
type supervisor struct {
	clock  Clock
	log    *zap.Logger
	failed func(error)

	mu       sync.Mutex
	closed   bool
	failures []failure
	pauses   []*pause
}

// failure is one panic of one actor, in the order of their times.
type failure struct {
	actor string
	at    time.Duration
}

// pause is a restart that waits for its time.
type pause struct {
	stop func()
}

var _ actor.SupervisorStrategy = (*supervisor)(nil)

func newSupervisor(clock Clock, log *zap.Logger, failed func(error)) *supervisor {
	return &supervisor{clock: clock, log: log, failed: failed}
}

// HandleFailure decides on an actor whose turn panicked and whose mailbox is
// suspended.
func (s *supervisor) HandleFailure(
	_ *actor.ActorSystem, parent actor.Supervisor, child *actor.PID, _ *actor.RestartStatistics, reason, _ any,
) {
	count, closed := s.count(child.GetId())
	switch {
	case closed:
		parent.StopChildren(child)
	case count > RestartsMax:
		s.log.Error("actor failed too often and is stopped", zap.String("actor", child.GetId()),
			zap.Int("failures", count), zap.Duration("window", RestartWindow), zap.String("reason", PanicText(reason)))
		parent.StopChildren(child)
		if s.failed != nil {
			s.failed(fmt.Errorf("%s: %w: %s", child.GetId(), ErrFailed, PanicText(reason)))
		}
	default:
		s.restartLater(pauseAfter(count), func() { parent.RestartChildren(child) })
	}
}

// count notes a failure and returns how many the actor had within the window. One
// that is about to be given up begins anew, should there be another of its name.
func (s *supervisor) count(name string) (count int, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	old := 0
	for old < len(s.failures) && now-s.failures[old].at >= RestartWindow {
		old++
	}
	old = max(old, len(s.failures)-failuresMax+1)
	s.failures = append(slices.Delete(s.failures, 0, old), failure{actor: name, at: now})
	for _, f := range s.failures {
		if f.actor == name {
			count++
		}
	}
	if count > RestartsMax {
		s.failures = slices.DeleteFunc(s.failures, func(f failure) bool { return f.actor == name })
	}
	return count, s.closed
}

func pauseAfter(count int) time.Duration {
	d := restartPauseMin
	for range count - 1 {
		d = min(2*d, restartPauseMax)
	}
	return d
}

func (s *supervisor) restartLater(d time.Duration, restart func()) {
	p := &pause{}
	s.mu.Lock()
	s.pauses = append(s.pauses, p)
	s.mu.Unlock()
	stop := s.clock.After(d, func() {
		if s.forget(p) {
			restart()
		}
	})
	s.mu.Lock()
	p.stop = stop
	abandoned := s.closed
	s.mu.Unlock()
	if abandoned {
		stop()
	}
}

// forget reports whether the pause was still wanted.
func (s *supervisor) forget(p *pause) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.pauses, p)
	if i < 0 {
		return false
	}
	s.pauses = slices.Delete(s.pauses, i, i+1)
	return true
}

// close abandons the restarts that wait.
func (s *supervisor) close() {
	s.mu.Lock()
	pauses := s.pauses
	s.pauses, s.closed = nil, true
	s.mu.Unlock()
	for _, p := range pauses {
		s.mu.Lock()
		stop := p.stop
		s.mu.Unlock()
		if stop != nil {
			stop()
		}
	}
}
