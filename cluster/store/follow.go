package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/errand-run/errand/cluster/records"
)

// pageKeys is how many keys the first read of a follow asks for at a time.
const pageKeys = 512

// errSilent ends a watch that has not come past a revision in time.
var errSilent = errors.New("the watch fell silent")

// follow is one followed prefix. Its goroutine alone calls deliver.
type follow struct {
	store   *Store
	prefix  string
	deliver func(records.Batch)
	ctx     context.Context
	cancel  context.CancelFunc
	// position is the revision up to which everything has been heard.
	position atomic.Int64

	mu      sync.Mutex
	stopped bool
	watch   *watch
}

// watch is the part of a follow that listens. Each has its own identity, so that
// the probe never ends a successor.
type watch struct {
	generation int64
	stream     context.Context
	end        context.CancelCauseFunc
}

// Follow delivers a Reset with all that is below the prefix, as a quorum has it,
// then every change in order. What can not be bridged (a compaction, a silent or
// broken connection) shows as another Reset: records.Mirror turns it into
// changes. Batches without events only move the position. deliver is called from
// one goroutine, must not block and owns what it gets. No call begins after stop
// has returned; stop may be called from deliver, more than once, and after Close.
func (s *Store) Follow(prefix string, deliver func(records.Batch)) (stop func()) {
	ctx, cancel := context.WithCancel(s.running)
	f := &follow{store: s, prefix: prefix, deliver: deliver, ctx: ctx, cancel: cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return func() {}
	}
	s.follows[f] = struct{}{}
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
	var backoff backoff
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
		if !backoff.wait(f.ctx) {
			return
		}
	}
}

// once reads the prefix and watches it until that fails.
func (f *follow) once() error {
	conn := f.store.conn.Load()
	generation := f.store.generation.Load()
	reset, err := f.load(conn)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.prefix, err)
	}
	f.store.metrics.resets.Inc()
	f.hand(reset)
	if err := f.listen(conn, generation, reset.Revision); err != nil {
		return fmt.Errorf("watch %s: %w", f.prefix, err)
	}
	return nil
}

// load reads everything below the prefix at one revision, page by page.
func (f *follow) load(conn *connection) (records.Batch, error) {
	reset := records.Batch{Reset: true}
	end := clientv3.GetPrefixRangeEnd(f.prefix)
	options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageKeys)}
	for from := f.prefix; ; {
		ctx, cancel := context.WithTimeout(f.ctx, readAttemptTimeout)
		page, err := conn.client.Get(ctx, from, options...)
		cancel()
		if err != nil {
			return records.Batch{}, err
		}
		if reset.Revision == 0 {
			// The first page is read through a quorum and names the revision of the rest.
			reset.Revision = page.Header.GetRevision()
			options = append(options, clientv3.WithRev(reset.Revision))
		}
		for _, kv := range page.Kvs {
			reset.Events = append(reset.Events, records.Event{KV: kvOf(kv)})
		}
		if !page.More || len(page.Kvs) == 0 {
			return reset, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// listen watches from a revision on. It begins at that revision, whose events it
// drops, and not behind it: a watch that begins in the future keeps the server
// from reporting progress to everybody on its stream.
func (f *follow) listen(conn *connection, generation, from int64) error {
	stream := clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(f.ctx, "errand-stream", strconv.FormatInt(generation, 10)))
	ctx, end := context.WithCancelCause(stream)
	defer end(nil)
	f.setWatch(&watch{generation: generation, stream: stream, end: end})
	defer f.setWatch(nil)
	for response := range conn.client.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := response.Err(); err != nil {
			return err
		}
		batch := f.batchOf(response, conn.inProcess)
		if batch.Revision > f.position.Load() {
			f.hand(batch)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New("the watch ended")
}

// batchOf drops what was heard before. With events the position is that of the
// last one: the header may be ahead of what a watch that catches up has sent.
func (f *follow) batchOf(response clientv3.WatchResponse, shared bool) records.Batch {
	position := f.position.Load()
	if response.IsProgressNotify() {
		return records.Batch{Revision: response.Header.GetRevision()}
	}
	batch := records.Batch{Revision: position}
	for _, event := range response.Events {
		kv := kvOf(event.Kv)
		if kv.Mod <= position {
			continue
		}
		if shared {
			// In this process the server hands one value to all who watch it.
			kv.Value = bytes.Clone(kv.Value)
		}
		batch.Events = append(batch.Events, records.Event{KV: kv, Deleted: event.Type == clientv3.EventTypeDelete})
		batch.Revision = kv.Mod
	}
	return batch
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
