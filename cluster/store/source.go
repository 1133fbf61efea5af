package store

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"github.com/errand-run/errand/cluster/records"
)

// errEnded is a watch that has ended without a reason.
var errEnded = errors.New("the watch ended")

// source is where a watch hears what happens. One goroutine calls next.
type source interface {
	// next waits for what comes next, until the context ends. Its error ends the watch.
	next(ctx context.Context) (heard, error)
	// close lets go of it. Nobody calls next any more.
	close()
}

// heard is one answer of a watch.
type heard struct {
	events []records.Event
	// revision is, in an answer without events, up to where everything has been told.
	revision int64
}

// progress tells that an answer says nothing but how far the watch has come.
func (h *heard) progress() bool { return len(h.events) == 0 }

// remote hears by a client's watch.
type remote clientv3.WatchChan

func (r remote) close() {} // ends with its context

func (r remote) next(ctx context.Context) (heard, error) {
	select {
	case response, ok := <-r:
		if !ok {
			return heard{}, errEnded
		}
		if err := response.Err(); err != nil {
			return heard{}, err
		}
		h := heard{revision: response.Header.GetRevision()}
		if len(response.Events) > 0 {
			h.events = make([]records.Event, len(response.Events))
		}
		for i, event := range response.Events {
			h.events[i] = eventOf((*mvccpb.Event)(event))
		}
		return h, nil
	case <-ctx.Done():
		// A client that is stuck never closes the channel.
		return heard{}, context.Cause(ctx)
	}
}

// watchable is the part of an embedded server that is watched.
type watchable interface{ NewWatchStream() mvcc.WatchStream }

// within hears from the embedded server itself, without a connection: nothing is encoded
// and decoded again, and between a change and who follows it lies one channel. It has a
// stream of the server's to itself, so that one that lags holds no other up.
type within struct {
	stream mvcc.WatchStream
	// asked holds one request for progress. It is carried out by who calls next: the server
	// may be holding its lock while it waits for the disk, and the probe must not wait there.
	asked chan struct{}
}

// watchWithin begins a watch of what is below a prefix, at a revision or at what is to
// come. What is written after it has returned will be heard.
func watchWithin(ctx context.Context, server watchable, prefix string, from int64) (*within, error) {
	w := &within{stream: server.NewWatchStream(), asked: make(chan struct{}, 1)}
	if _, err := w.stream.Watch(ctx, clientv3.AutoWatchID, []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), from); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// ask has the server say how far the watch has come, if it does not lag. It does not block.
func (w *within) ask() {
	select {
	case w.asked <- struct{}{}:
	default: // it is asked already
	}
}

func (w *within) next(ctx context.Context) (heard, error) {
	for {
		select {
		case response, ok := <-w.stream.Chan():
			if !ok {
				return heard{}, errEnded
			}
			mvcc.ReportEventReceived(len(response.Events))
			if response.CompactRevision != 0 {
				return heard{}, rpctypes.ErrCompacted
			}
			h := heard{revision: response.Revision}
			if len(response.Events) > 0 {
				h.events = make([]records.Event, len(response.Events))
			}
			for i, event := range response.Events {
				h.events[i] = eventOf(event)
			}
			return h, nil
		case <-w.asked:
			w.stream.RequestProgressAll()
		case <-ctx.Done():
			return heard{}, context.Cause(ctx)
		}
	}
}

// close ends the watch and takes what nobody has heard off the server's count.
func (w *within) close() {
	w.stream.Close()
	for response := range w.stream.Chan() {
		mvcc.ReportEventReceived(len(response.Events))
	}
}

func eventOf(event *mvccpb.Event) records.Event {
	return records.Event{KV: kvOf(event.GetKv()), Deleted: event.GetType() == mvccpb.Event_DELETE}
}
