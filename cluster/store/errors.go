package store

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/cluster/records"
)

// outcome is what is known of a request beside its error.
type outcome struct {
	// sent says that it may have reached a server.
	sent bool
	// write says that repeating it could do harm.
	write bool
	// expired says that the caller's own context had ended.
	expired bool
}

// refusals are the answers of etcd that say for certain that nothing was done,
// and what each means to the caller. Every other failure of a write that was sent
// leaves its outcome unknown.
var refusals = []struct {
	err   error
	class records.Class
}{
	// The request is wrong and will be tomorrow.
	{rpctypes.ErrEmptyKey, records.ClassInvalid},
	{rpctypes.ErrTooManyOps, records.ClassInvalid},
	{rpctypes.ErrDuplicateKey, records.ClassInvalid},
	{rpctypes.ErrRequestTooLarge, records.ClassInvalid},
	{rpctypes.ErrPermissionDenied, records.ClassInvalid},
	{rpctypes.ErrAuthFailed, records.ClassInvalid},
	{rpctypes.ErrAuthNotEnabled, records.ClassInvalid},
	{rpctypes.ErrCompacted, records.ClassInvalid},
	{rpctypes.ErrFutureRev, records.ClassInvalid},
	// The lease under which the caller acted is gone.
	{rpctypes.ErrLeaseNotFound, records.ClassLostOwnership},
	// The server refused before it proposed anything.
	{rpctypes.ErrNoSpace, records.ClassUnavailable},
	{rpctypes.ErrTooManyRequests, records.ClassUnavailable},
	{rpctypes.ErrNoLeader, records.ClassUnavailable},
	{rpctypes.ErrCorrupt, records.ClassUnavailable},
	{rpctypes.ErrUserEmpty, records.ClassUnavailable},
	{rpctypes.ErrInvalidAuthToken, records.ClassUnavailable},
	{rpctypes.ErrAuthOldRevision, records.ClassUnavailable},
	{rpctypes.ErrGRPCNotSupportedForLearner, records.ClassUnavailable},
	{rpctypes.ErrGRPCNotCapable, records.ClassUnavailable},
}

// classify is the only place where an error of etcd, gRPC or a context becomes a
// class.
func classify(err error, o outcome) records.Class {
	if class, ok := refusalOf(err); ok {
		return class
	}
	if o.write && o.sent {
		return records.ClassOutcomeUnknown
	}
	if o.expired {
		return records.ClassDeadline
	}
	return records.ClassUnavailable
}

// refusalOf tells whether an error says for certain that nothing was done, and the
// class that it has then.
func refusalOf(err error) (records.Class, bool) {
	text := textOf(err)
	for _, refusal := range refusals {
		if text == textOf(refusal.err) {
			return refusal.class, true
		}
	}
	switch codeOf(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange,
		codes.NotFound, codes.AlreadyExists, codes.Unimplemented, codes.ResourceExhausted:
		// ResourceExhausted without one of the texts above is a message that is too
		// large for one side to take; answers have no limit.
		return records.ClassInvalid, true
	case codes.Unauthenticated:
		return records.ClassUnavailable, true
	}
	return records.ClassInternal, false
}

// wantsUser tells whether a server takes only users that it knows, and was not told of one.
func wantsUser(err error) bool { return textOf(err) == textOf(rpctypes.ErrUserEmpty) }

// textOf returns the text of the server's answer, without what was wrapped around
// it: etcd's errors come as one of two types, of which only one knows itself.
func textOf(err error) string {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Error()
	}
	var answered interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answered) {
		return answered.GRPCStatus().Message()
	}
	return ""
}

func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}
