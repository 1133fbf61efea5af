package store

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// pastTimeout bounds a look into the past as a whole.
	pastTimeout = 10 * time.Second
	// pastAsk is how often the server is asked whether it has told everything.
	pastAsk = 50 * time.Millisecond
	// pastBytesMax bounds the values of what is returned.
	pastBytesMax = 8 << 20
)

// Past returns the changes below a prefix that came after a revision, up to another one
// that the store has reached, as far back as it holds them: all of those in (from,
// until], from being after, or more if that is compacted or if there are more changes
// than limit or pastBytesMax; then the newest are returned. It costs a watch of its own.
func (s *Store) Past(ctx context.Context, prefix string, after, until int64, limit int) (events []records.Event, from int64, err error) {
	if after < 0 || until < after || limit <= 0 {
		return nil, 0, records.Errorf(records.ClassInvalid, "changes of %s in (%d, %d], at most %d", prefix, after, until, limit)
	}
	ctx, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	defer context.AfterFunc(s.running, cancel)()
	p := &past{prefix: prefix, from: after, until: until, limit: limit}
	for p.from < p.until {
		err := p.read(ctx, s.conn.Load(), s.streams.own())
		if err == nil {
			break
		}
		if compacted := (*compactedError)(nil); errors.As(err, &compacted) && compacted.revision > p.from {
			p.from, p.events, p.bytes = compacted.revision, nil, 0
			continue
		}
		class := classify(err, outcome{sent: true, expired: ctx.Err() != nil})
		return nil, 0, records.Errorf(class, "read the changes of %s since %d: %w", prefix, p.from, err)
	}
	s.metrics.operations.WithLabelValues(operationPast).Inc()
	return p.events, min(p.from, until), nil
}

// past is a look at the changes in (from, until].
type past struct {
	prefix      string
	from, until int64
	limit       int
	events      []records.Event
	// bytes are those of the events' values.
	bytes int
}

// compactedError says up to where the changes are gone.
type compactedError struct{ revision int64 }

// Error implements error.
func (*compactedError) Error() string { return "the changes are compacted" }

// read takes all that a watch tells of it. That this is all is known from the first
// change beyond it, or from the server's word that it has told everything.
func (p *past) read(ctx context.Context, conn *connection, own *stream) error {
	ctx, cancel := context.WithCancel(own.context(ctx))
	defer cancel()
	responses := conn.client.Watch(ctx, p.prefix, clientv3.WithPrefix(), clientv3.WithRev(p.from+1))
	ask := time.NewTicker(pastAsk)
	defer ask.Stop()
	for {
		select {
		case response, ok := <-responses:
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case !ok:
				return errors.New("the watch ended")
			case response.CompactRevision != 0:
				return &compactedError{response.CompactRevision}
			case response.Err() != nil:
				return response.Err()
			}
			if p.take(response) {
				return nil
			}
		case <-ask.C:
			asking, stop := context.WithTimeout(ctx, pastAsk)
			_ = conn.client.RequestProgress(asking) // asked again soon
			stop()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take returns true when there is no more.
func (p *past) take(response clientv3.WatchResponse) bool {
	for _, event := range response.Events {
		kv := kvOf(event.Kv)
		if kv.Mod > p.until {
			return true
		}
		p.events = append(p.events, records.Event{KV: kv, Deleted: event.Type == clientv3.EventTypeDelete})
		p.bytes += len(kv.Value)
	}
	p.bound()
	return response.IsProgressNotify() && response.Header.GetRevision() >= p.until
}

// bound lets go of the oldest changes beyond the limits.
func (p *past) bound() {
	excess := 0
	for ; len(p.events)-excess > p.limit || p.bytes > pastBytesMax; excess++ {
		p.bytes -= len(p.events[excess].KV.Value)
	}
	if excess == 0 {
		return
	}
	// The rest of the newest revision that is dropped tells only a part of it.
	p.from = p.events[excess-1].KV.Mod
	for ; excess < len(p.events) && p.events[excess].KV.Mod == p.from; excess++ {
		p.bytes -= len(p.events[excess].KV.Value)
	}
	p.events = slices.Delete(p.events, 0, excess)
}
