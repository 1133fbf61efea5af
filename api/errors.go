package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Violation is one fault of a request.
type Violation struct {
	// Field is the path, as in spec.timeout.
	Field string
	// Text says what is wrong. It never holds an environment value.
	Text string
}

// fail makes the error of a code.
func fail(code codes.Code, format string, args ...any) *connect.Error {
	return withInfo(code, fmt.Errorf(format, args...), nil)
}

func withInfo(code codes.Code, err error, fields []*errandv1.FieldViolation) *connect.Error {
	line, known := codes.Of(code)
	if !known { // a test sees to it that all are
		line.Class = connect.CodeInternal
	}
	made := connect.NewError(line.Class, err)
	// An ErrorInfo can only fail to encode if a text is not UTF-8; the error then
	// goes without its detail.
	if detail, err := connect.NewErrorDetail(&errandv1.ErrorInfo{Code: string(code), Fields: fields}); err == nil {
		made.AddDetail(detail)
	}
	return made
}

// violationsShownMax bounds an error's text and detail.
const violationsShownMax = 16

// invalid makes the error of a request with faults.
func invalid(violations []Violation) *connect.Error {
	shown := violations[:min(len(violations), violationsShownMax)]
	texts := make([]string, 0, len(shown)+1)
	fields := make([]*errandv1.FieldViolation, 0, len(shown))
	for _, violation := range shown {
		texts = append(texts, violation.Field+": "+violation.Text)
		fields = append(fields, &errandv1.FieldViolation{Field: violation.Field, Text: violation.Text})
	}
	if more := len(violations) - len(shown); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return withInfo(codes.InvalidField, errors.New(strings.Join(texts, "; ")), fields)
}

// storeError translates what the store or a port answered.
func storeError(ctx context.Context, doing string, err error) error {
	var made *connect.Error
	if errors.As(err, &made) {
		return made
	}
	if ended := contextError(ctx); ended != nil {
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return fail(codes.Deadline, "%s: the store did not answer in time", doing)
		}
		return ended
	}
	switch records.ClassOf(err) {
	case records.ClassConflict:
		return fail(codes.StoreConflict, "%s: %w", doing, err)
	case records.ClassUnavailable, records.ClassLostOwnership:
		return fail(codes.StoreUnavailable, "%s: %w", doing, err)
	case records.ClassDeadline:
		return fail(codes.Deadline, "%s: %w", doing, err)
	case records.ClassOutcomeUnknown:
		return fail(codes.OutcomeUnknown, "%s: %w", doing, err)
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			return fail(codes.Deadline, "%s: %w", doing, err)
		}
		return fail(codes.Internal, "%s: %w", doing, err)
	}
}

// errStopping is the cause of the end of every call's context when the node stops.
var errStopping = errors.New("the node is stopping")

func stoppingError() *connect.Error {
	return fail(codes.NodeStopping, "the node is stopping: call again to go on")
}

// contextError returns why a call ends whose context is over, nil while it is not.
func contextError(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopping):
		return stoppingError()
	case errors.Is(cause, context.DeadlineExceeded):
		return fail(codes.Deadline, "the call took longer than it may")
	default:
		return connect.NewError(connect.CodeCanceled, errors.New("the caller has gone"))
	}
}
