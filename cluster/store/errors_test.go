package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/cluster/records"
)

func TestClassifyErrors(t *testing.T) {
	const (
		invalid     = records.ClassInvalid
		unavailable = records.ClassUnavailable
		lost        = records.ClassLostOwnership
		unknown     = records.ClassOutcomeUnknown
	)
	cases := []struct {
		err error
		// write is the class after a write was sent, other that after a read, or
		// after a write that never left.
		write, other records.Class
	}{
		{rpctypes.ErrGRPCTooManyOps, invalid, invalid},
		{rpctypes.ErrGRPCDuplicateKey, invalid, invalid},
		{rpctypes.ErrGRPCRequestTooLarge, invalid, invalid},
		{rpctypes.ErrGRPCEmptyKey, invalid, invalid},
		{rpctypes.ErrGRPCPermissionDenied, invalid, invalid},
		{rpctypes.ErrGRPCPermissionNotGiven, invalid, invalid},
		{rpctypes.ErrGRPCAuthFailed, invalid, invalid},
		{rpctypes.ErrGRPCAuthNotEnabled, invalid, invalid},
		{rpctypes.ErrGRPCCompacted, invalid, invalid},
		{rpctypes.ErrGRPCFutureRev, invalid, invalid},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3 vs. 2)"), invalid, invalid},
		{status.Error(codes.Unimplemented, "unknown service"), invalid, invalid},

		{rpctypes.ErrGRPCLeaseNotFound, lost, lost},

		{rpctypes.ErrGRPCNoSpace, unavailable, unavailable},
		{rpctypes.ErrGRPCRequestTooManyRequests, unavailable, unavailable},
		{rpctypes.ErrGRPCNoLeader, unavailable, unavailable},
		{rpctypes.ErrGRPCCorrupt, unavailable, unavailable},
		{rpctypes.ErrGRPCUserEmpty, unavailable, unavailable},
		{rpctypes.ErrGRPCInvalidAuthToken, unavailable, unavailable},
		{rpctypes.ErrGRPCAuthOldRevision, unavailable, unavailable},
		{rpctypes.ErrGRPCNotSupportedForLearner, unavailable, unavailable},
		{rpctypes.ErrGRPCNotCapable, unavailable, unavailable},

		{rpctypes.ErrGRPCTimeout, unknown, unavailable},
		{rpctypes.ErrGRPCTimeoutDueToLeaderFail, unknown, unavailable},
		{rpctypes.ErrGRPCTimeoutDueToConnectionLost, unknown, unavailable},
		{rpctypes.ErrGRPCTimeoutWaitAppliedIndex, unknown, unavailable},
		{rpctypes.ErrGRPCLeaderChanged, unknown, unavailable},
		{rpctypes.ErrGRPCStopped, unknown, unavailable},
		{rpctypes.ErrGRPCUnhealthy, unknown, unavailable},
		{rpctypes.ErrGRPCCanceled, unknown, unavailable},
		{rpctypes.ErrGRPCDeadlineExceeded, unknown, unavailable},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), unknown, unavailable},
		{status.Error(codes.Unknown, "raft proposal dropped"), unknown, unavailable},
		{status.Error(codes.Internal, "stream terminated by RST_STREAM"), unknown, unavailable},
		{context.DeadlineExceeded, unknown, unavailable},
		{context.Canceled, unknown, unavailable},
		{errors.New("anything else"), unknown, unavailable},
	}
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.err.Error(), " ", "-"), func(t *testing.T) {
			// As the server sends them, as the client gives them, and wrapped.
			for _, err := range []error{c.err, rpctypes.Error(c.err), fmt.Errorf("commit: %w", rpctypes.Error(c.err))} {
				if got := classify(err, outcome{sent: true, write: true}); got != c.write {
					t.Errorf("a write that was sent: %v, want %v", got, c.write)
				}
				if got := classify(err, outcome{sent: true}); got != c.other {
					t.Errorf("a read: %v, want %v", got, c.other)
				}
				if got := classify(err, outcome{write: true}); got != c.other {
					t.Errorf("a write that was not sent: %v, want %v", got, c.other)
				}
			}
		})
	}
}

func TestClassifyWithoutACallerIsDeadline(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, rpctypes.ErrGRPCTimeout} {
		if got := classify(err, outcome{sent: true, expired: true}); got != records.ClassDeadline {
			t.Errorf("%v in a read: %v", err, got)
		}
		if got := classify(err, outcome{sent: true, write: true, expired: true}); got != records.ClassOutcomeUnknown {
			t.Errorf("%v in a write that was sent: %v", err, got)
		}
	}
}

// Whatever etcd may answer has been thought about.
func TestClassifyKnowsWhatTheServerRefuses(t *testing.T) {
	s := openEmbedded(t)
	many := make([]records.Op, 129)
	for i := range many {
		many[i] = records.Op{Kind: records.OpPut, Key: fmt.Sprint(i)}
	}
	put := records.Op{Kind: records.OpPut, Key: "k"}
	cases := []struct {
		name  string
		txn   records.Txn
		class records.Class
	}{
		{"more operations than the limit", records.Txn{Then: many}, records.ClassInvalid},
		{"a key put twice", records.Txn{Then: []records.Op{put, put}}, records.ClassInvalid},
		{"an empty key", records.Txn{Then: []records.Op{{Kind: records.OpPut}}}, records.ClassInvalid},
		{"a request above 1.5 MiB", putTxn("k", strings.Repeat("x", 1600<<10)), records.ClassInvalid},
		{"a lease that does not exist", records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "k", Lease: 77}}}, records.ClassLostOwnership},
		{"an operation of no kind", records.Txn{Then: []records.Op{{Key: "k"}}}, records.ClassInvalid},
		{"a compare of no target", records.Txn{If: []records.Compare{{Key: "k", Relation: records.Equal}}, Then: []records.Op{put}}, records.ClassInvalid},
		{"a compare of no relation", records.Txn{If: []records.Compare{{Key: "k", Target: records.TargetMod}}, Then: []records.Op{put}}, records.ClassInvalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := s.Do(ctx, c.txn)
			if got := records.ClassOf(err); err == nil || got != c.class {
				t.Errorf("%v (%v), want %v", err, got, c.class)
			}
			if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); ok {
				t.Error("it was carried out all the same")
			}
		})
	}
}
