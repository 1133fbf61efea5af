package boot

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
)

const (
	// stopHurry is what a stage has left to stop once nobody waits for it any more.
	stopHurry = 2 * time.Second
	tellEvery = 10 * time.Second
)

// stage is one step of the start and, in reverse, of the stop.
type stage struct {
	name         string
	startTimeout time.Duration
	stopTimeout  time.Duration
	// start leaves nothing behind when it fails. Its goroutines outlive its context.
	start func(context.Context) error
	// stop goes through to its end; when its context is over it waits for nothing.
	stop func(context.Context) error
}

// sequence is the order of the stages. It is one hook of fx, since fx runs no further
// hook, be it to roll back, once its context is over.
type sequence struct {
	log    *zap.Logger
	every  time.Duration // how often a start that takes long says what it is at
	stages []stage

	// cancel ends the start that is under way; the others are the running start's.
	cancel   context.CancelFunc
	canceled sync.Mutex

	mu      sync.Mutex
	started int
}

func newSequence(lifecycle fx.Lifecycle, parts Parts) *sequence {
	s := &sequence{log: parts.log("node"), every: tellEvery}
	lifecycle.Append(fx.Hook{OnStart: s.start, OnStop: s.stop})
	return s
}

func (s *sequence) add(next stage) { s.stages = append(s.stages, next) }

// start starts the stages in order, or leaves none of them started.
func (s *sequence) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.setCancel(cancel)
	defer s.setCancel(nil)
	for s.started < len(s.stages) {
		next := s.stages[s.started]
		told := s.tell(next)
		err := next.within(ctx, "start", next.startTimeout, next.start)
		told()
		if err == nil {
			s.started++
			err = ctx.Err() // else nobody may be left who would stop it
		}
		if err != nil {
			return errors.Join(err, s.stopStarted(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

// tell logs now and then that a stage is still starting, until the function that it
// returns is called.
func (s *sequence) tell(next stage) (done func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	begin, tick := time.Now(), time.NewTicker(s.every)
	go func() {
		defer close(gone)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				s.log.Info("still starting", zap.String("stage", next.name),
					zap.Duration("for", time.Since(begin).Round(time.Second)), zap.Duration("most", next.startTimeout))
			}
		}
	}()
	return func() { close(quit); <-gone }
}

// stop stops what has started, a start that is under way included.
func (s *sequence) stop(ctx context.Context) error {
	s.canceled.Lock()
	if s.cancel != nil {
		s.cancel()
	}
	s.canceled.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopStarted(ctx)
}

func (s *sequence) setCancel(cancel context.CancelFunc) {
	s.canceled.Lock()
	defer s.canceled.Unlock()
	s.cancel = cancel
}

func (s *sequence) stopStarted(ctx context.Context) error {
	var problems []error
	for ; s.started > 0; s.started-- {
		last := s.stages[s.started-1]
		patient, cancel := hurried(ctx)
		problems = append(problems, last.within(patient, "stop", last.stopTimeout, last.stop))
		cancel()
	}
	return errors.Join(problems...)
}

// hurried is a context that outlives another by stopHurry.
func hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(stopHurry, cancel) })
	return longer, func() { unhook(); cancel() }
}

func (s stage) within(ctx context.Context, verb string, timeout time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", verb, s.name, err)
	}
	return nil
}
