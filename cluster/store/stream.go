package store

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// keyStreams is how many streams the follows of single keys share. A stream
// creates its watches one after the other, a round trip each.
const keyStreams = 4

// stream is a gRPC stream that watches share. The client keeps one per value of
// the request's metadata.
type stream struct {
	name string
	// heard counts everything that the server has sent on it and a follow has taken.
	heard atomic.Int64
	// progress is the newest revision up to which the server has told all its
	// watches that they heard everything.
	progress atomic.Int64
}

// context returns a context whose watches go over the stream.
func (s *stream) context(ctx context.Context) context.Context {
	return clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, "errand-stream", s.name))
}

// note keeps what an answer says of the stream.
func (s *stream) note(h heard) {
	s.heard.Add(1)
	if !h.progress() {
		return
	}
	for revision := h.revision; ; {
		known := s.progress.Load()
		if known >= revision || s.progress.CompareAndSwap(known, revision) {
			return
		}
	}
}

// streams hands out the streams of a store. The long-lived follows of folders
// have one of their own, which the coming and going of follows of single keys does
// not touch. The zero streams is ready for use.
type streams struct {
	mu      sync.Mutex
	named   int64
	folders *stream
	keys    [keyStreams]*stream
	next    int
}

// pick returns the stream for a watch of the prefix.
func (s *streams) pick(prefix string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := &s.folders
	if !strings.HasSuffix(prefix, "/") {
		s.next = (s.next + 1) % keyStreams
		place = &s.keys[s.next]
	}
	if *place == nil {
		s.named++
		*place = &stream{name: strconv.FormatInt(s.named, 10)}
	}
	return *place
}

// own returns a stream that nobody else gets.
func (s *streams) own() *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named++
	return &stream{name: strconv.FormatInt(s.named, 10)}
}

// streamFor returns the stream of a follow's watch. A watch of the embedded server has one
// to itself.
func (s *Store) streamFor(conn *connection, prefix string) *stream {
	if conn.changes != nil {
		return s.streams.own()
	}
	return s.streams.pick(prefix)
}

// drop keeps new watches off a stream.
func (s *streams) drop(dropped *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folders == dropped {
		s.folders = nil
	}
	for i, known := range s.keys {
		if known == dropped {
			s.keys[i] = nil
		}
	}
}
