package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Error is why a call failed, unless its context ended. It never holds a token or the
// value of a variable.
type Error struct {
	// Op is what failed, as in "get run k.shop.4tq".
	Op string
	// Code is the stable word. An API that sends none has that of Class.
	Code codes.Code
	// Class is the code that the error travelled under; 0 when none did.
	Class connect.Code
	// Message says it in a sentence for people.
	Message string
	// Fields are the faults of the request, with codes.InvalidField.
	Fields []*errandv1.FieldViolation
	// Unsure: no answer came, and the node may have done what it was asked all the same.
	Unsure bool

	cause error
}

// Error implements error.
func (e *Error) Error() string { return e.Op + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of an error of this package, "" for any other.
func CodeOf(err error) codes.Code {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Code
	}
	return ""
}

// failure says what an error of a call means.
func (c *Client) failure(op string, err error) *Error {
	class := connect.CodeOf(err)
	failed := &Error{Op: op, Class: class, Code: codes.Code(strings.ToUpper(class.String())), Message: messageOf(err), cause: err}
	if connect.IsWireError(err) {
		if info := infoOf(err); info != nil {
			failed.Code, failed.Fields = codes.Code(info.GetCode()), info.GetFields()
		}
		return failed
	}
	if unsendable(err) {
		failed.Class, failed.Code, failed.Message = 0, codes.InvalidField, "the request can not be sent: "+failed.Message
		return failed
	}
	if silent(err) {
		failed.Code, failed.Message = codes.Unreachable, c.address+" does not answer: "+ErrSilent.Error()
		failed.cause = fmt.Errorf("%w: %w", ErrSilent, err)
		return failed
	}
	switch class {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return failed
	case connect.CodeUnimplemented, connect.CodeUnknown:
		if errors.Is(err, errCut) {
			break
		}
		failed.Code = codes.NotANode
		failed.Message = fmt.Sprintf("%s answers, but not as an Errand node: %s", c.address, failed.Message)
		return failed
	}
	failed.Code, failed.Message = codes.Unreachable, fmt.Sprintf("no node answers at %s: %s", c.address, unreachable(err))
	return failed
}

// unsendable tells whether a request could not be encoded: a text in it is none.
func unsendable(err error) bool {
	return !connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeInternal && errors.Is(err, proto.Error)
}

// unreachable says what keeps a connection from being made, in a few words.
func unreachable(err error) string {
	var dial *net.OpError
	if dialing(err) && errors.As(err, &dial) {
		var system *os.SyscallError
		if errors.As(err, &system) {
			return system.Err.Error()
		}
		return dial.Err.Error()
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
