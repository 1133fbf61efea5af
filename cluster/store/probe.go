package store

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"

	"github.com/errand-run/errand/cluster/records"
)

// How soon a watch that hears nothing is noticed: at most ProbeInterval and twice
// ProbeTimeout after the change that it missed.
const (
	ProbeInterval = 5 * time.Second
	ProbeTimeout  = 2 * time.Second
	// probeAgain is how often progress is asked for while a watch lags.
	probeAgain = 100 * time.Millisecond
)

// errGoneBack ends a watch of what the store does not hold any more.
var errGoneBack = errors.New("the store has gone back")

// sparedMax is how many probes in a row take a watch that lags for busy.
const sparedMax = 6

// listener is a watch as the probe found it.
type listener struct {
	follow *follow
	watch  *watch
	// position and heard are how far the watch and its stream were.
	position, heard int64
}

func (l listener) behind(revision int64) bool {
	return l.follow.position.Load() < revision && l.follow.currentWatch() == l.watch
}

// silent tells whether a watch that was not past the revision in time hears
// nothing any more. It may only be busy: a server drops the request for progress
// while one of the stream's watches lags, and then what comes on the stream, or on
// the watch itself, is the proof that it lives.
func (l listener) silent(revision int64) bool {
	switch {
	case l.follow.position.Load() != l.position:
	case l.watch.stream.progress.Load() >= revision, l.watch.stream.heard.Load() == l.heard:
		return true
	}
	l.watch.spared++
	return l.watch.spared > sparedMax
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
			s.silence.Store(!answering)
		case <-s.running.Done():
			return
		}
	}
}

// Trouble returns why writes are not taken at the moment, as far as it is known, or nil:
// the store has no space or is as large as it may be, or it does not answer. What an
// embedded one lacks is noticed within a second, all else within ProbeInterval and
// ProbeTimeout. It does not block.
func (s *Store) Trouble() error {
	if err := s.space.refusal(); err != nil {
		return err
	}
	if s.silence.Load() {
		return records.Errorf(records.ClassUnavailable, "the %s does not answer", s)
	}
	if s.noSpace.Load() {
		return records.Errorf(records.ClassUnavailable, "%w", s.errNoSpace())
	}
	return nil
}

// probeOnce returns why the store could not be asked.
func (s *Store) probeOnce() error {
	follows, listeners := s.listeners()
	if follows == 0 {
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
	s.askForSpace(conn)
	listeners = s.endBeyond(listeners, revision)
	var silent []listener
	dead := false
	for _, l := range s.awaitProgress(conn, listeners, revision) {
		if l.silent(revision) {
			silent = append(silent, l)
			dead = dead || l.watch.stream.heard.Load() == l.heard
		}
	}
	if len(silent) == 0 {
		return nil
	}
	s.log.Warn("watches fell silent and begin again", zap.Int("watches", len(silent)), zap.Int64("revision", revision))
	if dead && !conn.inProcess {
		// A client may have a connection per endpoint: one of them is dead.
		return s.redial(conn, listeners)
	}
	s.restart(silent, errSilent)
	return nil
}

// endBeyond lets the watches begin again that have heard more than there is, and returns
// the others. The revision was read through a quorum after the listeners were: a store
// that is not as far has lost what it had. The client has taken such a watch up again
// where it was, and would hear of nothing before the store comes there.
func (s *Store) endBeyond(listeners []listener, revision int64) []listener {
	var beyond, others []listener
	for _, l := range listeners {
		if l.position > revision {
			beyond = append(beyond, l)
		} else {
			others = append(others, l)
		}
	}
	if len(beyond) > 0 {
		s.log.Error("the store has gone back: it has lost changes that were made, and what follows it begins anew",
			zap.Stringer("store", s), zap.Int64("revision", revision), zap.Int64("was", beyond[0].position), zap.Int("watches", len(beyond)))
		s.restart(beyond, errGoneBack)
	}
	return others
}

// restart lets watches begin again, on other streams.
func (s *Store) restart(listeners []listener, cause error) {
	for _, l := range listeners {
		s.streams.drop(l.watch.stream)
	}
	for _, l := range listeners {
		l.watch.end(cause)
	}
}

// listeners returns how many follows there are, and the watches of those that
// listen.
func (s *Store) listeners() (int, []listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listeners := make([]listener, 0, len(s.follows))
	for f := range s.follows {
		if w := f.currentWatch(); w != nil {
			listeners = append(listeners, listener{f, w, f.position.Load(), w.stream.heard.Load()})
		}
	}
	return len(s.follows), listeners
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
			} else {
				l.watch.spared = 0
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
	asked := map[*stream]bool{}
	for _, l := range listeners {
		if asked[l.watch.stream] || l.watch.ctx.Err() != nil {
			continue
		}
		if l.watch.within != nil {
			l.watch.within.ask()
			continue
		}
		asked[l.watch.stream] = true
		// One that is stuck must not use up the time of the others; its watches show
		// as late, as do those of one that is gone.
		asking, cancel := context.WithTimeout(l.watch.stream.context(ctx), probeAgain)
		_ = c.client.RequestProgress(asking)
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
	s.restart(listeners, errSilent)
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
