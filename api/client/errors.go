package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Code is the stable word for why a call failed. Words are never changed or reused.
type Code string

// The codes of the API. docs/api.md says what each means.
const (
	CodeInvalidField        Code = "INVALID_FIELD"
	CodeRequestTooLarge     Code = "REQUEST_TOO_LARGE"
	CodeInvalidPageToken    Code = "INVALID_PAGE_TOKEN"
	CodeIdempotencyConflict Code = "IDEMPOTENCY_CONFLICT"
	CodeRunDeleted          Code = "RUN_DELETED"
	CodeRunNotFound         Code = "RUN_NOT_FOUND"
	CodeRunAmbiguous        Code = "RUN_AMBIGUOUS"
	CodeRunTerminal         Code = "RUN_TERMINAL"
	CodeAttemptNotFound     Code = "ATTEMPT_NOT_FOUND"
	CodeRunNotRunning       Code = "RUN_NOT_RUNNING"
	CodeRunElsewhere        Code = "RUN_ELSEWHERE"
	CodeNotSupported        Code = "NOT_SUPPORTED"
	CodeFileNotFound        Code = "FILE_NOT_FOUND"
	CodeFileUnreadable      Code = "FILE_UNREADABLE"
	CodeLogElsewhere        Code = "LOG_ELSEWHERE"
	CodeLogUnreadable       Code = "LOG_UNREADABLE"
	CodeLogLost             Code = "LOG_LOST"
	CodeListAgain           Code = "LIST_AGAIN"
	CodeNodeNotFound        Code = "NODE_NOT_FOUND"
	CodeNodeStopping        Code = "NODE_STOPPING"
	CodeNoImages            Code = "NO_IMAGES"
	CodeImageInvalid        Code = "IMAGE_INVALID"
	CodeImageTooLarge       Code = "IMAGE_TOO_LARGE"
	CodeImageNotFound       Code = "IMAGE_NOT_FOUND"
	CodeImageInUse          Code = "IMAGE_IN_USE"
	CodeImagePull           Code = "IMAGE_PULL"
	CodeTooManyApps         Code = "TOO_MANY_APPS"
	CodeTooManyStreams      Code = "TOO_MANY_STREAMS"
	CodeOutcomeUnknown      Code = "OUTCOME_UNKNOWN"
	CodeStoreUnavailable    Code = "STORE_UNAVAILABLE"
	CodeStoreConflict       Code = "STORE_CONFLICT"
	CodeDeadline            Code = "DEADLINE"
	CodeUnauthenticated     Code = "UNAUTHENTICATED"
	CodeForeignOrigin       Code = "FOREIGN_ORIGIN"
	CodeInternal            Code = "INTERNAL"
)

// The codes of the client's own side.
const (
	// CodeUnreachable means that no node answered, or not to the end.
	CodeUnreachable Code = "UNREACHABLE"
	// CodeNotANode means that what answered is no node of Errand.
	CodeNotANode Code = "NOT_A_NODE"
	// CodeArchive means that the archive of an image could not be read.
	CodeArchive Code = "ARCHIVE"
)

// Error is why a call failed, unless its context ended. It never holds a token or the
// value of a variable.
type Error struct {
	// Op is what failed, as in "get run k.shop.4tq".
	Op string
	// Code is the stable word. An API that sends none has that of Class.
	Code Code
	// Class is the code that the error travelled under; 0 when none did.
	Class connect.Code
	// Message says it in a sentence for people.
	Message string
	// Fields are the faults of the request, with CodeInvalidField.
	Fields []*errandv1.FieldViolation

	cause error
}

// Error implements error.
func (e *Error) Error() string { return e.Op + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of an error of this package, "" for any other.
func CodeOf(err error) Code {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Code
	}
	return ""
}

// failure says what an error of a call means.
func (c *Client) failure(op string, err error) *Error {
	class := connect.CodeOf(err)
	failed := &Error{Op: op, Class: class, Code: Code(strings.ToUpper(class.String())), Message: messageOf(err), cause: err}
	if connect.IsWireError(err) {
		if info := infoOf(err); info != nil {
			failed.Code, failed.Fields = Code(info.GetCode()), info.GetFields()
		}
		return failed
	}
	switch class {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return failed
	case connect.CodeUnimplemented, connect.CodeUnknown:
		if errors.Is(err, errCut) {
			break
		}
		failed.Code = CodeNotANode
		failed.Message = fmt.Sprintf("%s answers, but not as an Errand node: %s", c.address, failed.Message)
		return failed
	}
	failed.Code, failed.Message = CodeUnreachable, fmt.Sprintf("no node answers at %s: %s", c.address, unreachable(err))
	return failed
}

// unreachable says what keeps a connection from being made, in a few words.
func unreachable(err error) string {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		var system *os.SyscallError
		if errors.As(err, &system) {
			return system.Err.Error()
		}
		return dial.Err.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return messageOf(err)
}

// messageOf is the text of an API's error without its code.
func messageOf(err error) string {
	var answer *connect.Error
	if errors.As(err, &answer) && answer.Message() != "" {
		return answer.Message()
	}
	return err.Error()
}

// infoOf is the detail that every error of the API carries; nil without one.
func infoOf(err error) *errandv1.ErrorInfo {
	var answer *connect.Error
	if !errors.As(err, &answer) {
		return nil
	}
	for _, detail := range answer.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		if info, ok := value.(*errandv1.ErrorInfo); ok && info.GetCode() != "" {
			return info
		}
	}
	return nil
}

// ended is the error of a call whose context is over: the context's, its cause if it
// has one of its own, and what the call had met before.
func ended(ctx context.Context, op string, before error) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case !errors.Is(cause, err):
		err = fmt.Errorf("%w: %w", err, cause)
	case cause != nil:
		err = cause
	}
	if before == nil || errors.Is(before, ctx.Err()) || connect.CodeOf(before) == connect.CodeCanceled {
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %w; before it: %s", op, err, messageOf(before))
}
