package store

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/errand-run/errand/cluster/records"
)

const (
	// LeaseTimeout is how long a call about a lease may take.
	LeaseTimeout = 4 * time.Second
	// LeasesInFlightMax bounds how many calls about leases are under way at a time;
	// what comes beyond is answered as unavailable. A node has one or two leases.
	LeasesInFlightMax = 64
)

// Grant makes a lease of a TTL, rounded up to a second; the server has a least one
// of its own. Like all calls about leases it never blocks, is sent once and is
// answered exactly once, within LeaseTimeout. An unknown outcome may leave a lease
// behind that nobody knows; it ends by itself.
func (s *Store) Grant(ttl time.Duration, deliver func(records.LeaseResult)) {
	if ttl <= 0 {
		deliver(records.LeaseResult{Err: records.Errorf(records.ClassInvalid, "grant lease of %v", ttl)})
		return
	}
	seconds := int64((ttl + time.Second - 1) / time.Second)
	s.lease(leaseCall{what: "grant lease", write: true, deliver: deliver, do: func(ctx context.Context, client pb.LeaseClient) (records.LeaseResult, error) {
		response, err := client.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
		return leaseOf(response), err
	}})
}

// KeepAlive renews a lease once. An answer that does not come has class Unavailable:
// to ask again does no harm. etcd's own KeepAliveOnce is not used: it repeats what
// failed without a pause, and its caller could not tell when that was sent which was
// answered.
func (s *Store) KeepAlive(lease int64, deliver func(records.LeaseResult)) {
	s.lease(leaseCall{what: "keep lease alive", deliver: deliver, do: func(ctx context.Context, client pb.LeaseClient) (records.LeaseResult, error) {
		stream, err := client.LeaseKeepAlive(ctx)
		if err != nil {
			return records.LeaseResult{}, err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil {
			return records.LeaseResult{}, err
		}
		response, err := stream.Recv()
		if err == nil && response.GetTTL() <= 0 {
			return records.LeaseResult{}, records.Errorf(records.ClassNotFound, "lease %x is gone", lease)
		}
		return leaseOf(response), err
	}})
}

// Revoke ends a lease and deletes what it holds.
func (s *Store) Revoke(lease int64, deliver func(records.LeaseResult)) {
	s.lease(leaseCall{what: "revoke lease", write: true, deliver: deliver, do: func(ctx context.Context, client pb.LeaseClient) (records.LeaseResult, error) {
		response, err := client.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease})
		return records.LeaseResult{Lease: lease, Term: response.GetHeader().GetRaftTerm()}, err
	}})
}

// leaseResponse is what the answers of a grant and of a keepalive have in common.
type leaseResponse interface {
	GetID() int64
	GetTTL() int64
	GetHeader() *pb.ResponseHeader
}

func leaseOf(response leaseResponse) records.LeaseResult {
	return records.LeaseResult{
		Lease: response.GetID(), TTL: time.Duration(response.GetTTL()) * time.Second,
		Term: response.GetHeader().GetRaftTerm(),
	}
}

// leaseCall is one call about a lease.
type leaseCall struct {
	what string
	// write says that to repeat it could do harm.
	write   bool
	do      func(context.Context, pb.LeaseClient) (records.LeaseResult, error)
	deliver func(records.LeaseResult)
}

// lease starts a call, or answers it.
func (s *Store) lease(call leaseCall) {
	s.mu.Lock()
	var refusal error
	switch {
	case s.closed:
		refusal = errClosed
	case s.leasing >= LeasesInFlightMax:
		refusal = records.Errorf(records.ClassUnavailable, "%s: %d calls about leases are under way", call.what, LeasesInFlightMax)
	default:
		s.leasing++
		s.workers.Go(func() { s.carryLease(call) })
	}
	s.mu.Unlock()
	if refusal != nil {
		call.deliver(records.LeaseResult{Err: refusal})
	}
}

func (s *Store) carryLease(call leaseCall) {
	result, err := s.sendLease(call)
	s.mu.Lock()
	s.leasing--
	s.mu.Unlock()
	if err != nil {
		result = records.LeaseResult{Err: err}
	}
	call.deliver(result)
}

// sendLease makes the one attempt and gives its failure a class.
func (s *Store) sendLease(call leaseCall) (records.LeaseResult, error) {
	if call.write {
		if err := s.space.refusal(); err != nil {
			return records.LeaseResult{}, err
		}
	}
	conn := s.conn.Load()
	ctx, cancel := context.WithTimeout(s.base, LeaseTimeout)
	defer cancel()
	ctx, sent := conn.noteSent(ctx)
	result, err := call.do(ctx, pb.NewLeaseClient(conn.leases()))
	if err == nil {
		return result, nil
	}
	class := records.ClassOf(err)
	if class != records.ClassNotFound {
		class = classify(err, outcome{sent: sent.Load(), write: call.write})
	}
	if class == records.ClassLostOwnership {
		// What a transaction that puts under a lease has lost is here the very thing
		// that was asked for.
		class = records.ClassNotFound
	}
	if isNoSpace(err) {
		err = s.noteNoSpace(err)
	}
	return records.LeaseResult{}, records.Errorf(class, "%s (%s): %w", call.what, class, err)
}

// leases is the connection for calls about leases: with an embedded server that in
// memory, since a keepalive is a stream.
func (c *connection) leases() grpc.ClientConnInterface {
	if c.watching != nil {
		return c.watching.ActiveConnection()
	}
	return c.client.ActiveConnection()
}
