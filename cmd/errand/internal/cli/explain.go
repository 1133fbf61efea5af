package cli

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

// codeRequestTooLarge is the API's word for a request that is wrong by its size.
const codeRequestTooLarge = "REQUEST_TOO_LARGE"

// explain turns the error of a call into a failure that names the address, the
// cause and the way out.
func (c *connection) explain(err error) error {
	var f *failure
	var status exitStatus
	if err == nil || errors.As(err, &f) || errors.As(err, &status) {
		return err
	}
	if !connect.IsWireError(err) {
		return c.explainTransport(err)
	}
	class := connect.CodeOf(err)
	f = broken(strings.ToUpper(class.String()), "%s", messageOf(err))
	f.class = class
	if info := infoOf(err); info != nil {
		f.code = info.GetCode()
		if len(info.GetFields()) > 0 {
			f.message = fieldsText(info.GetFields())
			f.hint = fieldsHint(info.GetFields())
		}
	}
	if f.code == codeRequestTooLarge {
		f.exit = ExitUsage
	}
	switch class {
	case connect.CodeInvalidArgument:
		f.exit = ExitUsage
	case connect.CodeAlreadyExists:
		f.message = strings.Replace(f.message, "idempotency_key:", flagOfField["idempotency_key"]+":", 1)
	case connect.CodeUnauthenticated:
		c.explainToken(f)
	case connect.CodeNotFound:
		if strings.Contains(f.message, "run") && !strings.Contains(f.message, "attempt") {
			f.hint = "'errand runs' lists the runs; the beginning of an id is enough where it is unique."
		}
	}
	return f
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

// flagOfField is what people typed for a field of a request.
var flagOfField = map[string]string{
	"app": "--app", "name": "--name", "labels": "--label", "idempotency_key": "--idempotency-key",
	"spec.driver": "--driver", "spec.image": "IMAGE", "spec.command": "COMMAND", "spec.env": "--env",
	"spec.working_dir": "--workdir", "spec.user": "--user", "spec.cpu_millis": "--cpu",
	"spec.memory_bytes": "--memory", "spec.pids_limit": "--pids-limit", "spec.read_only_root": "--read-only",
	"spec.timeout": "--timeout", "spec.start_deadline": "--start-deadline", "spec.stop_grace": "--stop-grace",
	"tail_lines": "--tail", "attempt": "--attempt", "since": "--since",
}

// fieldsText names each fault by the flag that it came from.
func fieldsText(fields []*errandv1.FieldViolation) string {
	texts := make([]string, 0, len(fields))
	for _, field := range fields {
		path, key, _ := strings.Cut(field.GetField(), "[")
		what, known := flagOfField[path]
		if !known {
			what = path
		}
		if key = strings.Trim(key, `]"`); key != "" {
			what += " " + key
		}
		texts = append(texts, what+": "+field.GetText())
	}
	return strings.Join(texts, "\n")
}

// fieldsHint says what to type instead where a field's text can not know.
func fieldsHint(fields []*errandv1.FieldViolation) string {
	for _, field := range fields {
		if field.GetField() == "spec.image" && strings.Contains(field.GetText(), "takes no image") {
			return "Add --driver containerd to run it in that image, or leave the image out: errand run --driver process -- COMMAND"
		}
	}
	return ""
}

// explainTransport is for what is not the API's own answer.
func (c *connection) explainTransport(err error) error {
	cause := messageOf(err)
	class := connect.CodeOf(err)
	switch class {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		f := broken(strings.ToUpper(class.String()), "%s", cause)
		f.class = class
		c.explainToken(f)
		return f
	case connect.CodeUnimplemented, connect.CodeUnknown:
		f := broken(codeNoNode, "%s answers, but not as an Errand node: %s", c.address, cause)
		f.hint = "Set the node's address with --address or ERRAND_ADDRESS."
		return f
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		cause = dial.Err.Error()
		var system *os.SyscallError
		if errors.As(err, &system) {
			cause = system.Err.Error()
		}
	} else if errors.Is(err, context.DeadlineExceeded) {
		cause = "no answer in time"
	}
	f := broken(codeUnreachable, "no node answers at %s: %s", c.address, cause)
	f.hint = "Start one with errand-node, or set its address with --address or ERRAND_ADDRESS."
	return f
}

func (c *connection) explainToken(f *failure) {
	if c.tokenTrouble != "" {
		f.message = fmt.Sprintf("%s wants a token and none was found (%s)", c.address, c.tokenTrouble)
	} else {
		f.message = fmt.Sprintf("%s refused the token of %s: %s", c.address, c.tokenSource, f.message)
	}
	f.hint = "The token is in the file api.token of the node's data directory: name that directory with ERRAND_DATA or the file with --token-file, or set ERRAND_TOKEN."
}
