package store

import (
	"context"
	"errors"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/errand-run/errand/cluster/records"
)

// ScanMax is how many keys one scan returns at most.
const ScanMax = 10_000

// Scan returns the first keys of a range as a quorum has them, repeated until the
// context ends. The cost is in proportion to the scan's limit: an ordinary get walks
// the server's index to the end of its range, to tell how many keys there are, whatever
// its limit is. A server before etcd 3.7 has no other way.
func (s *Store) Scan(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	if scan.Limit <= 0 || scan.Limit > ScanMax || scan.From == "" || scan.End == "" {
		return nil, records.Errorf(records.ClassInvalid, "scan of [%q, %q) for %d keys", scan.From, scan.End, scan.Limit)
	}
	began := time.Now()
	kvs, err := s.scan(ctx, scan)
	s.metrics.observe(records.Result{Err: err, Succeeded: true}, time.Since(began))
	if err == nil {
		s.metrics.operations.WithLabelValues(operationScan).Inc()
	}
	return kvs, err
}

func (s *Store) scan(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	// A free place is taken whichever of the others is true too, so they come first.
	switch {
	case s.running.Err() != nil:
		return nil, errClosed
	case ctx.Err() != nil:
		return nil, records.Errorf(records.ClassDeadline, "scan was not sent: %w", ctx.Err())
	}
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return nil, records.Errorf(records.ClassDeadline, "scan was not sent: %w", ctx.Err())
	case <-s.running.Done():
		return nil, errClosed
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.running, cancel)()
	var backoff retries
	for {
		attempt, cancel := context.WithTimeout(reading, readAttemptTimeout)
		kvs, err := s.conn.Load().scan(attempt, scan)
		cancel()
		if err == nil {
			return kvs, nil
		}
		class := classify(err, outcome{sent: true, expired: ctx.Err() != nil})
		err = records.Errorf(class, "scan (%s): %w", class, err)
		if class != records.ClassUnavailable || !backoff.wait(reading) {
			return nil, err
		}
	}
}

// errEnough ends a stream of keys of which no more are wanted.
var errEnough = errors.New("enough keys")

// scan reads the server's stream of keys until it has enough. The request itself has no
// limit: a server that comes to one counts what is left.
func (c *connection) scan(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	if c.counting.Load() {
		return c.scanCounted(ctx, scan)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var kvs []records.KV
	take := func(answer *pb.RangeStreamResponse) error {
		for _, kv := range answer.GetRangeResponse().GetKvs() {
			kvs = append(kvs, kvOf(kv))
			if int64(len(kvs)) == scan.Limit {
				return errEnough
			}
		}
		return nil
	}
	request := &pb.RangeRequest{Key: []byte(scan.From), RangeEnd: []byte(scan.End), KeysOnly: scan.KeysOnly}
	switch err := c.rangeStream(ctx, request, take); {
	case err == nil, errors.Is(err, errEnough):
		return kvs, nil
	case codeOf(err) == codes.Unimplemented:
		c.counting.Store(true)
		return c.scanCounted(ctx, scan)
	default:
		return nil, err
	}
}

// rangeStream hands what the server streams to take until that returns an error.
func (c *connection) rangeStream(ctx context.Context, request *pb.RangeRequest, take func(*pb.RangeStreamResponse) error) error {
	if c.server != nil {
		return c.server.RangeStream(request, &rangeStream{ctx: ctx, take: take})
	}
	stream, err := pb.NewKVClient(c.client.ActiveConnection()).RangeStream(ctx, request)
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := take(answer); err != nil {
			return err
		}
	}
}

// scanCounted is scan for a server without streams of keys.
func (c *connection) scanCounted(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	get := compileGet(records.Op{Kind: records.OpGet, Key: scan.From, End: scan.End, Limit: scan.Limit, KeysOnly: scan.KeysOnly})
	response, err := c.client.Do(ctx, get)
	if err != nil {
		return nil, err
	}
	return kvsOf(response.Get().Kvs), nil
}

// rangeStreamer is the part of an embedded server that streams keys.
type rangeStreamer interface {
	RangeStream(*pb.RangeRequest, pb.KV_RangeStreamServer) error
}

// rangeStream is what an embedded server streams to. It implements
// pb.KV_RangeStreamServer as far as the server needs it.
type rangeStream struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // the interface asks for it
	take func(*pb.RangeStreamResponse) error
}

// Context implements grpc.ServerStream.
func (r *rangeStream) Context() context.Context { return r.ctx }

// Send implements pb.KV_RangeStreamServer.
func (r *rangeStream) Send(answer *pb.RangeStreamResponse) error { return r.take(answer) }

// SetHeader implements grpc.ServerStream.
func (r *rangeStream) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (r *rangeStream) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (r *rangeStream) SetTrailer(metadata.MD) {}
