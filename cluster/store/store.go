package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// Store is an open store. It implements actors.Store, actors.Leases and
// records.Reader; all of its methods may be called from any goroutine.
type Store struct {
	config   Config
	log      *zap.Logger
	metrics  *metrics
	embedded *embedded
	// space is nil for a store elsewhere.
	space   *space
	conn    atomic.Pointer[connection]
	streams streams
	// loads has a place for each first read of a follow that is under way.
	loads chan struct{}
	reads chan struct{}

	// base ends when Close has given up waiting for what is under way.
	base context.Context
	end  context.CancelFunc
	// running ends when Close begins; follows and the probe live in it.
	running context.Context
	stop    context.CancelFunc

	// silence is set while the store does not answer the probe, noSpace while a store
	// elsewhere takes no writes because it is at its quota.
	silence, noSpace atomic.Bool

	workers    sync.WaitGroup
	background sync.WaitGroup

	// sweep wakes who answers what has had its time.
	sweep *time.Timer

	mu     sync.Mutex
	closed bool
	// queue holds the reads of Txn that wait, working counts who carries them out.
	queue   fifo
	working int
	// readAnswered is when the store last answered one of them, in nanoseconds of Unix time.
	readAnswered atomic.Int64
	// machine decides which writes are sent together. order holds writes until they are
	// answered, the oldest first; sweeping says that sweep is set for one of them.
	machine  *flight.Machine[*pending]
	order    fifo
	sweeping bool
	// leasing counts the calls about leases that are under way.
	leasing int
	follows map[*follow]struct{}
}

// Open starts the embedded store, or connects to the endpoints, and returns when
// it has answered a read through a quorum: within OpenTimeout or OpenEmbeddedTimeout,
// and the context.
// Errors have a class: ClassInvalid for a configuration that can not work,
// ClassConflict for a data directory that another process holds.
func Open(ctx context.Context, config Config) (*Store, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	s := &Store{
		sweep: time.NewTimer(OpTimeout), machine: flight.New[*pending](config.flightOptions()),
		config: config, log: config.Log, metrics: newMetrics(),
		reads: make(chan struct{}, ReadsMax), loads: make(chan struct{}, loadsMax), follows: map[*follow]struct{}{},
	}
	ctx, cancel := context.WithTimeout(ctx, config.openTimeout())
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if err := s.metrics.register(config.Metrics); err != nil {
		s.disconnect()
		return nil, err
	}
	s.base, s.end = context.WithCancel(context.Background())
	s.running, s.stop = context.WithCancel(s.base)
	s.background.Go(s.probe)
	s.background.Go(s.sweepLate)
	if s.space != nil {
		s.background.Go(func() { s.space.watch(s.running) })
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context) error {
	if len(s.config.Endpoints) == 0 {
		server, conn, err := startEmbedded(ctx, s.config.DataDir, cmp.Or(s.config.QuotaBytes, QuotaDefault), s.log)
		if err != nil {
			return err
		}
		s.embedded, s.space = server, server.space
		s.conn.Store(conn)
		return nil
	}
	conn, err := dial(&s.config, s.log)
	if err != nil {
		return err
	}
	if err := firstAnswer(ctx, conn); err != nil {
		conn.close()
		return unreachable(s.config.Endpoints, err)
	}
	s.conn.Store(conn)
	return nil
}

// firstAnswer waits for the first answer of a quorum. It keeps the last error
// that says more than that the time is up.
func firstAnswer(ctx context.Context, conn *connection) error {
	var backoff retries
	var told error
	for {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		_, err := conn.revision(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if told == nil || ctx.Err() == nil {
			told = err
		}
		if class := classify(err, outcome{sent: true}); class != records.ClassUnavailable || wantsUser(err) || !backoff.wait(ctx) {
			return told
		}
	}
}

func (s *Store) disconnect() {
	if conn := s.conn.Load(); conn != nil {
		conn.close()
	}
	if s.embedded != nil {
		s.embedded.stop()
	}
}

// Close ends the store: what waits is answered as unavailable, what was sent may
// finish for a moment, follows end without another call, the embedded server
// stops. Every goroutine of the store has ended when it returns nil; an error
// says what had not after CloseTimeout. Only the first call does anything.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	waiting := s.queue.takeAll()
	for _, member := range s.machine.Clear() {
		waiting = append(waiting, member.Owner)
	}
	s.mu.Unlock()

	s.stop()
	for _, p := range waiting {
		s.answer(p, records.Result{Err: errClosed})
	}
	limit := time.NewTimer(CloseTimeout)
	defer limit.Stop()
	drained := whenDone(s.workers.Wait)
	drain := time.NewTimer(drainTimeout)
	defer drain.Stop()
	select {
	case <-drained:
	case <-drain.C:
	}
	s.end()

	var late []string
	for _, part := range []struct {
		name string
		done <-chan struct{}
	}{
		{"transactions", drained},
		{"follows", whenDone(s.background.Wait)},
		{"server", whenDone(s.disconnect)},
	} {
		select {
		case <-part.done:
		case <-limit.C:
			late = append(late, part.name)
			limit.Reset(0)
		}
	}
	s.metrics.unregister(s.config.Metrics)
	if len(late) > 0 {
		return records.Errorf(records.ClassDeadline, "close store: still running after %v: %s", CloseTimeout, strings.Join(late, ", "))
	}
	return nil
}

var errClosed = records.Errorf(records.ClassUnavailable, "the store is closed")

// whenDone runs a wait in a goroutine of its own, which ends with it.
func whenDone(wait func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	return done
}

// retries waits between tries: doubling, up to retryBackoffMax.
type retries struct{ next time.Duration }

// wait returns false if the context ended first.
func (b *retries) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, retryBackoffMin), retryBackoffMax)
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *retries) reset() { b.next = 0 }

// String names where the store is, for logs.
func (s *Store) String() string {
	if s.embedded != nil {
		return fmt.Sprintf("embedded store in %s", s.config.DataDir)
	}
	return "etcd at " + strings.Join(s.config.Endpoints, ", ")
}
