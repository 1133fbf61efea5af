package store

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"
)

// How soon a watch that hears nothing is noticed: at most ProbeInterval and twice
// ProbeTimeout after the change that it missed.
const (
	ProbeInterval = 5 * time.Second
	ProbeTimeout  = 2 * time.Second
	// probeAgain is how often progress is asked for while a watch lags.
	probeAgain = 100 * time.Millisecond
)

// listener is a watch as the probe found it.
type listener struct {
	follow *follow
	watch  *watch
}

func (l listener) behind(revision int64) bool {
	return l.follow.position.Load() < revision && l.follow.currentWatch() == l.watch
}

// probe proves again and again that the watches hear what happens. An idle store
// costs one read of a revision each time, whatever the number of follows.
func (s *Store) probe() {
	ticker := time.NewTicker(ProbeInterval)
	defer ticker.Stop()
	answering := true
	for {
		select {
		case <-ticker.C:
			err := s.probeOnce()
			switch {
			case s.running.Err() != nil:
			case err != nil && answering:
				s.log.Warn("the store does not answer", zap.Stringer("store", s), zap.Error(err))
			case err == nil && !answering:
				s.log.Info("the store answers again", zap.Stringer("store", s))
			}
			answering = err == nil
		case <-s.running.Done():
			return
		}
	}
}

// probeOnce returns why the store could not be asked.
func (s *Store) probeOnce() error {
	listeners := s.listeners()
	if len(listeners) == 0 {
		return nil
	}
	conn := s.conn.Load()
	ctx, cancel := context.WithTimeout(s.running, ProbeTimeout)
	revision, err := conn.revision(ctx)
	cancel()
	if err != nil {
		if s.running.Err() == nil && conn.silent() {
			return errors.Join(err, s.redial(conn, listeners))
		}
		return err
	}
	if late := s.awaitProgress(conn, listeners, revision); len(late) > 0 {
		s.log.Warn("watches fell silent and begin again", zap.Int("watches", len(late)), zap.Int64("revision", revision))
		s.generation.Add(1)
		for _, l := range late {
			l.watch.end(errSilent)
		}
	}
	return nil
}

func (s *Store) listeners() []listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	listeners := make([]listener, 0, len(s.follows))
	for f := range s.follows {
		if w := f.currentWatch(); w != nil {
			listeners = append(listeners, listener{f, w})
		}
	}
	return listeners
}

// awaitProgress returns the watches that are not past the revision in time.
func (s *Store) awaitProgress(conn *connection, listeners []listener, revision int64) []listener {
	ctx, cancel := context.WithTimeout(s.running, ProbeTimeout)
	defer cancel()
	again := time.NewTicker(probeAgain)
	defer again.Stop()
	for {
		var late []listener
		for _, l := range listeners {
			if l.behind(revision) {
				late = append(late, l)
			}
		}
		if len(late) == 0 {
			return nil
		}
		listeners = late
		conn.requestProgress(ctx, late)
		select {
		case <-again.C:
		case <-ctx.Done():
			if s.running.Err() != nil {
				return nil
			}
			return late
		}
	}
}

// requestProgress asks once per stream: the answer reaches every watch on it. A
// server drops the request while one of them still catches up.
func (c *connection) requestProgress(ctx context.Context, listeners []listener) {
	asked := map[int64]bool{}
	for _, l := range listeners {
		if asked[l.watch.generation] {
			continue
		}
		asked[l.watch.generation] = true
		stream, cancel := context.WithCancel(l.watch.stream)
		stop := context.AfterFunc(ctx, cancel)
		// A stream that is gone takes no request; its watches show as late.
		_ = c.client.RequestProgress(stream)
		stop()
		cancel()
	}
}

// silent tells that a connection takes requests and answers none.
func (c *connection) silent() bool {
	return !c.inProcess && c.client.ActiveConnection().GetState() == connectivity.Ready
}

// redial replaces a silent connection, long before the transport would notice.
// What is under way on the old one may still be answered.
func (s *Store) redial(old *connection, listeners []listener) error {
	conn, err := dial(&s.config, s.log)
	if err != nil {
		return err
	}
	s.conn.Store(conn)
	s.generation.Add(1)
	for _, l := range listeners {
		l.watch.end(errSilent)
	}
	s.background.Go(func() {
		timer := time.NewTimer(OpTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.base.Done():
		}
		old.close()
	})
	return nil
}
