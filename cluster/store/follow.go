package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// The first read of a follow asks for pageKeys at a time, and for twice as many each
	// time that the answer is below pageBytes, up to pageKeysMax: whatever its limit is, an
	// ordinary get walks the server's index to the end of the range, so that many small
	// pages cost the square of what is there.
	pageKeys    = 512
	pageKeysMax = 16 * pageKeys
	pageBytes   = 2 << 20
	// loadsMax bounds how many follows read at a time what is there, so that each is
	// answered in time, however many begin at once.
	loadsMax = 8
	// createTimeout is how long a server may take to begin a watch while nothing
	// comes on the stream, createTries how many of these pass if something does.
	createTimeout = ProbeTimeout
	createTries   = 5
)

// errSilent ends a watch that has not come past a revision in time.
var errSilent = errors.New("the watch fell silent")

// follow is one followed prefix. Its goroutine alone calls deliver.
type follow struct {
	store   *Store
	prefix  string
	deliver func(records.Batch)
	// changesOnly leaves out of a Reset what is there.
	changesOnly bool
	ctx         context.Context
	cancel      context.CancelFunc
	// position is the revision up to which everything has been heard.
	position atomic.Int64

	mu      sync.Mutex
	stopped bool
	watch   *watch
}

// watch is the part of a follow that listens. Each has its own identity, so that
// the probe never ends a successor.
type watch struct {
	stream *stream
	ctx    context.Context
	end    context.CancelCauseFunc
	// within is the source of a watch of the embedded server, which has a stream to itself.
	within *within
	// spared counts how many probes in a row found it late on a stream that is
	// busy. Only the probe touches it.
	spared int
}

// Follow delivers a Reset with all that is below the prefix, as a quorum has it,
// then every change in order. What can not be bridged (a compaction, a silent or
// broken connection) shows as another Reset: records.Mirror turns it into
// changes. Batches without events only move the position. deliver is called from
// one goroutine, must not block and owns what it gets. No call begins after stop
// has returned; stop may be called from deliver, more than once, and after Close.
func (s *Store) Follow(prefix string, deliver func(records.Batch)) (stop func()) {
	return s.start(&follow{prefix: prefix, deliver: deliver})
}

// FollowChanges is Follow for a prefix with more below it than anybody wants to read:
// a Reset holds nothing, and says that what comes after its revision will be heard and
// that what came before may have been missed. An interruption shows as a Reset only if
// the store does not hold the changes any more.
func (s *Store) FollowChanges(prefix string, deliver func(records.Batch)) (stop func()) {
	return s.start(&follow{prefix: prefix, deliver: deliver, changesOnly: true})
}

func (s *Store) start(f *follow) (stop func()) {
	ctx, cancel := context.WithCancel(s.running)
	f.store, f.ctx, f.cancel = s, ctx, cancel
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return func() {}
	}
	s.follows[f] = struct{}{}
	s.metrics.operations.WithLabelValues(operationFollow).Inc()
	s.background.Go(f.run)
	return f.stop
}

func (f *follow) stop() {
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.cancel()
}

// run reads and watches, again and again, until the follow is stopped.
func (f *follow) run() {
	defer func() {
		f.cancel()
		f.store.mu.Lock()
		delete(f.store.follows, f)
		f.store.mu.Unlock()
	}()
	var backoff retries
	for {
		before := f.position.Load()
		err := f.once()
		if f.ctx.Err() != nil {
			return
		}
		f.store.log.Debug("follow begins again", zap.String("prefix", f.prefix), zap.Error(err))
		if f.position.Load() > before {
			backoff.reset()
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			f.position.Store(0)
		}
		if !backoff.wait(f.ctx) || !f.store.answers(f.ctx, &backoff) {
			return
		}
	}
}

// answers waits until the store does, or returns false because the context ended.
// A watch of a store that is away would leave the client with a stream that waits
// for it.
func (s *Store) answers(ctx context.Context, backoff *retries) bool {
	for {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		_, err := s.conn.Load().revision(attempt)
		cancel()
		if err == nil {
			return true
		}
		if !backoff.wait(ctx) {
			return false
		}
	}
}

// once watches the prefix and reads it, until the watch fails. The watch begins
// first, at whatever the store holds then, and the read follows: so the server
// has nothing to catch up with. A watch that begins in the past would wait for the
// server's next round of catching up, and keep it from reporting progress on the
// stream until then; one that begins in the future would do so until that comes.
func (f *follow) once() error {
	conn := f.store.conn.Load()
	stream := f.store.streamFor(conn, f.prefix)
	ctx, end := context.WithCancelCause(stream.context(f.ctx))
	defer end(nil)
	w := &watch{stream: stream, ctx: ctx, end: end}
	from, err := f.resumes(ctx, conn)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.prefix, err)
	}
	source, err := f.create(conn, w, from)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.prefix, err)
	}
	defer source.close()
	if from == 0 {
		reset, err := f.load(ctx, conn)
		if err != nil {
			return fmt.Errorf("read %s: %w", f.prefix, err)
		}
		f.store.metrics.resets.Inc()
		f.hand(reset)
	}
	f.setWatch(w)
	defer f.setWatch(nil)
	return fmt.Errorf("watch %s: %w", f.prefix, f.listen(w, source))
}

// resumes returns the revision at which a follow of changes goes on where it was, or 0
// where it begins anew: at first, after a compaction, and at a store that has not come
// as far, which is another one or an older copy. A follow of contents reads them, since
// that is what makes up for changes that it has missed.
func (f *follow) resumes(ctx context.Context, conn *connection) (int64, error) {
	position := f.position.Load()
	if !f.changesOnly || position == 0 {
		return 0, nil
	}
	attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
	defer cancel()
	revision, err := conn.revision(attempt)
	if err != nil {
		return 0, err
	}
	if revision < position {
		f.position.Store(0)
		return 0, nil
	}
	return position + 1, nil
}

// create begins a watch, at a revision or at what is to come. A stream on which that takes too long is left alone.
func (f *follow) create(conn *connection, w *watch, from int64) (source, error) {
	if conn.changes != nil {
		var err error
		w.within, err = watchWithin(w.ctx, conn.changes, f.prefix, from)
		return w.within, err
	}
	stop := w.limitCreation()
	responses := conn.client.Watch(w.ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	stop()
	if w.ctx.Err() == nil {
		w.stream.heard.Add(1)
		return remote(responses), nil
	}
	cause := context.Cause(w.ctx)
	if errors.Is(cause, errSilent) {
		f.store.streams.drop(w.stream)
	}
	return nil, cause
}

// limitCreation ends the watch unless stop is called in time.
func (w *watch) limitCreation() (stop func()) {
	heard, tries := w.stream.heard.Load(), 0
	var stopped atomic.Bool
	var timer *time.Timer
	set := make(chan struct{})
	timer = time.AfterFunc(createTimeout, func() {
		<-set
		now := w.stream.heard.Load()
		tries++
		switch {
		case stopped.Load():
		case now == heard || tries == createTries:
			w.end(errSilent)
		default:
			heard = now
			timer.Reset(createTimeout)
		}
	})
	close(set)
	return func() {
		stopped.Store(true)
		timer.Stop()
	}
}

// load reads everything below the prefix at one revision, page by page, or the
// revision alone, when its turn has come.
func (f *follow) load(ctx context.Context, conn *connection) (records.Batch, error) {
	select {
	case f.store.loads <- struct{}{}:
		defer func() { <-f.store.loads }()
	case <-ctx.Done():
		return records.Batch{}, context.Cause(ctx)
	}
	reset := records.Batch{Reset: true}
	if f.changesOnly {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		defer cancel()
		var err error
		reset.Revision, err = conn.revision(attempt)
		return reset, err
	}
	end := clientv3.GetPrefixRangeEnd(f.prefix)
	limit := int64(pageKeys)
	for from := f.prefix; ; {
		attempt, cancel := context.WithTimeout(ctx, readAttemptTimeout)
		page, err := conn.client.Get(attempt, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(reset.Revision))
		cancel()
		if err != nil {
			return records.Batch{}, err
		}
		if reset.Revision == 0 {
			// The first page is read through a quorum and names the revision of the rest.
			reset.Revision = page.Header.GetRevision()
		}
		bytes := 0
		for _, kv := range page.Kvs {
			reset.Events = append(reset.Events, records.Event{KV: kvOf(kv)})
			bytes += len(kv.Key) + len(kv.Value)
		}
		if bytes < pageBytes {
			limit = min(2*limit, pageKeysMax)
		}
		if !page.More || len(page.Kvs) == 0 {
			return reset, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// listen hands over what the watch hears and returns why it ended: its context did, for one.
func (f *follow) listen(w *watch, from source) error {
	for {
		h, err := from.next(w.ctx)
		if err != nil {
			return err
		}
		w.stream.note(h)
		if batch := f.batchOf(h); batch.Revision > f.position.Load() {
			f.hand(batch)
		}
	}
}

// batchOf drops what was heard before. With events the position is that of the
// last one: the answer's may be ahead of what a watch that catches up has sent.
func (f *follow) batchOf(h heard) records.Batch {
	if h.progress() {
		return records.Batch{Revision: h.revision}
	}
	position := f.position.Load()
	events := slices.DeleteFunc(h.events, func(e records.Event) bool { return e.KV.Mod <= position })
	if len(events) == 0 {
		return records.Batch{Revision: position}
	}
	return records.Batch{Revision: events[len(events)-1].KV.Mod, Events: events}
}

// hand delivers a batch unless the follow was stopped.
func (f *follow) hand(batch records.Batch) {
	f.position.Store(batch.Revision)
	f.mu.Lock()
	stopped := f.stopped
	f.mu.Unlock()
	if !stopped && f.ctx.Err() == nil {
		f.deliver(batch)
	}
}

func (f *follow) setWatch(w *watch) {
	f.mu.Lock()
	f.watch = w
	f.mu.Unlock()
}

func (f *follow) currentWatch() *watch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watch
}
