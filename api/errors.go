package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Code is the stable word in an error's ErrorInfo. Words are never changed or
// reused.
type Code string

// The codes of the API.
const (
	CodeInvalidField        Code = "INVALID_FIELD"
	CodeRequestTooLarge     Code = "REQUEST_TOO_LARGE"
	CodeInvalidPageToken    Code = "INVALID_PAGE_TOKEN"
	CodeIdempotencyConflict Code = "IDEMPOTENCY_CONFLICT"
	CodeRunDeleted          Code = "RUN_DELETED"
	CodeRunNotFound         Code = "RUN_NOT_FOUND"
	CodeRunAmbiguous        Code = "RUN_AMBIGUOUS"
	CodeRunTerminal         Code = "RUN_TERMINAL"
	CodeRunNotRunning       Code = "RUN_NOT_RUNNING"
	CodeRunElsewhere        Code = "RUN_ELSEWHERE"
	CodeNotSupported        Code = "NOT_SUPPORTED"
	CodeFileNotFound        Code = "FILE_NOT_FOUND"
	CodeFileUnreadable      Code = "FILE_UNREADABLE"
	CodeAttemptNotFound     Code = "ATTEMPT_NOT_FOUND"
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

// CodeMeaning is one line of the table of codes.
type CodeMeaning struct {
	Code Code
	// Connect is the code of the protocol that the error travels under.
	Connect connect.Code
	// Meaning is one sentence for the documentation.
	Meaning string
	// Repeat tells whether the same call may succeed later.
	Repeat bool
}

// Codes returns the table of all codes, in the order of the documentation.
func Codes() []CodeMeaning { return codeTable[:] }

var codeTable = [...]CodeMeaning{
	{CodeInvalidField, connect.CodeInvalidArgument, "A field of the request is wrong; the detail lists which and why.", false},
	{CodeRequestTooLarge, connect.CodeResourceExhausted, "The request, or one message of an upload, is larger than the node reads.", false},
	{CodeInvalidPageToken, connect.CodeInvalidArgument, "The page token is not one, or belongs to a list with other filters.", false},
	{CodeIdempotencyConflict, connect.CodeAlreadyExists, "The idempotency key was used before with another request.", false},
	{CodeRunDeleted, connect.CodeFailedPrecondition, "The run was there and has been deleted.", false},
	{CodeRunNotFound, connect.CodeNotFound, "No run has this id or prefix.", false},
	{CodeRunAmbiguous, connect.CodeInvalidArgument, "Several runs begin with this prefix.", false},
	{CodeRunTerminal, connect.CodeFailedPrecondition, "The run has ended, so it can not be canceled.", false},
	{CodeRunNotRunning, connect.CodeFailedPrecondition, "The run does not run, so there is no sandbox to look into.", false},
	{CodeRunElsewhere, connect.CodeUnavailable, "The run runs on another node, which the text names.", true},
	{CodeNotSupported, connect.CodeUnimplemented, "The run's driver can not do this.", false},
	{CodeFileNotFound, connect.CodeNotFound, "The sandbox has no such file or directory.", false},
	{CodeFileUnreadable, connect.CodeInternal, "A file can not be read; the text says why.", false},
	{CodeAttemptNotFound, connect.CodeNotFound, "The run has no attempt of this number.", false},
	{CodeLogElsewhere, connect.CodeUnavailable, "The log lies on another node, which the text names.", true},
	{CodeLogUnreadable, connect.CodeInternal, "The log's files can not be read.", true},
	{CodeLogLost, connect.CodeDataLoss, "The command was started and there is no log of it: no output was recorded, or its files are gone. The text tells which.", false},
	{CodeListAgain, connect.CodeOutOfRange, "What changed since this position can not be told any more, or the position is another store's: list again and go on from that list's position.", false},
	{CodeNodeNotFound, connect.CodeNotFound, "No node of this name is registered.", false},
	{CodeNodeStopping, connect.CodeUnavailable, "The node is stopping; call again and it, or another, goes on.", true},
	{CodeNoImages, connect.CodeFailedPrecondition, "The node keeps no images: its containerd driver is not enabled.", false},
	{CodeImageInvalid, connect.CodeInvalidArgument, "The archive is cut short, holds no image, or unpacks to far more than it is.", false},
	{CodeImageTooLarge, connect.CodeResourceExhausted, "The archive is larger than the node accepts.", false},
	{CodeImageNotFound, connect.CodeNotFound, "The node has no such image, or its registry has none for this machine.", false},
	{CodeImageInUse, connect.CodeFailedPrecondition, "A sandbox is made of the image.", false},
	{CodeImagePull, connect.CodeUnavailable, "The registry refuses, fails or hangs; the text has its answer. Another pull goes on where this one stopped.", true},
	{CodeTooManyApps, connect.CodeResourceExhausted, "The answer would need every app to be searched and there are too many: name the app.", false},
	{CodeTooManyStreams, connect.CodeResourceExhausted, "The node serves as many streams as it may.", true},
	{CodeOutcomeUnknown, connect.CodeUnavailable, "The store did not say whether the change was made. Repeat it with the same idempotency key.", true},
	{CodeStoreUnavailable, connect.CodeUnavailable, "The store could not be asked; nothing was changed.", true},
	{CodeStoreConflict, connect.CodeAborted, "Another writer came first.", true},
	{CodeDeadline, connect.CodeDeadlineExceeded, "The call took longer than it may.", true},
	{CodeUnauthenticated, connect.CodeUnauthenticated, "The token is missing or wrong.", false},
	{CodeForeignOrigin, connect.CodePermissionDenied, "The request comes from a web page of another origin, or under another host's name.", false},
	{CodeInternal, connect.CodeInternal, "A fault of Errand.", false},
}

// connectCode is Internal for a code that is not in the table; a test keeps the
// table complete.
func connectCode(code Code) connect.Code {
	for _, line := range codeTable {
		if line.Code == code {
			return line.Connect
		}
	}
	return connect.CodeInternal
}

// Violation is one fault of a request.
type Violation struct {
	// Field is the path, as in spec.timeout.
	Field string
	// Text says what is wrong. It never holds an environment value.
	Text string
}

// fail makes the error of a code.
func fail(code Code, format string, args ...any) *connect.Error {
	return withInfo(code, fmt.Errorf(format, args...), nil)
}

func withInfo(code Code, err error, fields []*errandv1.FieldViolation) *connect.Error {
	made := connect.NewError(connectCode(code), err)
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
	return withInfo(CodeInvalidField, errors.New(strings.Join(texts, "; ")), fields)
}

// storeError translates what the store or a port answered.
func storeError(ctx context.Context, doing string, err error) error {
	var made *connect.Error
	if errors.As(err, &made) {
		return made
	}
	if ended := contextError(ctx); ended != nil {
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return fail(CodeDeadline, "%s: the store did not answer in time", doing)
		}
		return ended
	}
	switch records.ClassOf(err) {
	case records.ClassConflict:
		return fail(CodeStoreConflict, "%s: %w", doing, err)
	case records.ClassUnavailable, records.ClassLostOwnership:
		return fail(CodeStoreUnavailable, "%s: %w", doing, err)
	case records.ClassDeadline:
		return fail(CodeDeadline, "%s: %w", doing, err)
	case records.ClassOutcomeUnknown:
		return fail(CodeOutcomeUnknown, "%s: %w", doing, err)
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			return fail(CodeDeadline, "%s: %w", doing, err)
		}
		return fail(CodeInternal, "%s: %w", doing, err)
	}
}

// errStopping is the cause of the end of every call's context when the node stops.
var errStopping = errors.New("the node is stopping")

func stoppingError() *connect.Error {
	return fail(CodeNodeStopping, "the node is stopping: call again to go on")
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
		return fail(CodeDeadline, "the call took longer than it may")
	default:
		return connect.NewError(connect.CodeCanceled, errors.New("the caller has gone"))
	}
}
