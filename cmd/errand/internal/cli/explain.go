package cli

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// codePermissionDenied is what a proxy in front of a node may say; the API has words of
// its own.
const codePermissionDenied codes.Code = "PERMISSION_DENIED"

// explain turns the error of a call into a failure that names the address, the
// cause and the way out. Other errors stay as they are.
func (c *connection) explain(err error) error {
	var failed *client.Error
	if !errors.As(err, &failed) {
		return err
	}
	f := broken(string(failed.Code), "%s", failed.Message)
	f.class, f.unsure = failed.Class, failed.Unsure
	if len(failed.Fields) > 0 {
		f.message = fieldsText(failed.Fields)
		f.hint = fieldsHint(failed.Fields)
	}
	if failed.Code == codes.RequestTooLarge || failed.Class == connect.CodeInvalidArgument {
		f.exit = ExitUsage
	}
	switch {
	case errors.Is(failed, client.ErrSilent):
		f.hint = "The daemon there may be frozen, or its machine overloaded: 'systemctl status errand-node' and 'journalctl -u errand-node' on it say more."
	case failed.Code == codes.Unreachable:
		f.hint = "Start one with errand-node, or set its address with --address or ERRAND_ADDRESS."
	case failed.Code == codes.NotANode:
		f.hint = "Set the node's address with --address or ERRAND_ADDRESS."
	case failed.Class == connect.CodeUnauthenticated, failed.Code == codePermissionDenied:
		c.explainToken(f)
	case failed.Class == connect.CodeAlreadyExists:
		f.message = strings.Replace(f.message, "idempotency_key:", flagOfField["idempotency_key"]+":", 1)
	case failed.Class == connect.CodeNotFound && strings.Contains(f.message, "run") && !strings.Contains(f.message, "attempt"):
		f.hint = "'errand runs' lists the runs; the beginning of an id is enough where it is unique."
	}
	return f
}

// explainCreate is explain for the creation of a run.
func (c *connection) explainCreate(err error) error {
	err = c.explain(err)
	var f *failure
	if errors.As(err, &f) && f.unsure {
		f.hint = strings.TrimPrefix(f.hint+"\nWhether the run was created is not known: 'errand runs' shows it if it was.", "\n")
	}
	return err
}

// flagOfField is what people typed for a field of a request.
var flagOfField = map[string]string{
	"app": "--app", "name": "--name", "labels": "--label", "idempotency_key": "--idempotency-key",
	"spec.driver": "--driver", "spec.image": "IMAGE", "spec.pull": "--pull", "spec.command": "COMMAND", "spec.env": "--env",
	"spec.working_dir": "--workdir", "spec.user": "--user", "spec.cpu_millis": "--cpu",
	"spec.memory_bytes": "--memory", "spec.pids_limit": "--pids-limit", "spec.read_only_root": "--read-only", "spec.stdin": "--interactive", "spec.terminal": "--tty",
	"spec.timeout": "--timeout", "spec.start_deadline": "--start-deadline", "spec.stop_grace": "--stop-grace",
	"spec.retry.retries": "--retries", "spec.retry.only": "--retry-only", "spec.retry.never": "--retry-never",
	"spec.retry.backoff": "--backoff", "spec.retry.backoff_max": "--backoff-max", "spec.retry.on_node_loss": "--on-node-loss",
	"start.command": "COMMAND", "start.env": "--env", "start.working_dir": "--workdir", "start.user": "--user", "path": "PATH",
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
		if key = strings.Trim(key, `]"`); key != "" && !strings.HasPrefix(path, "spec.retry.") { // the text has the word itself
			what += " " + key
		}
		// On a command line a limit that is not wanted is left out.
		texts = append(texts, what+": "+strings.Replace(field.GetText(), ", or 0 for no limit of its own", "", 1))
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

func (c *connection) explainToken(f *failure) {
	if c.tokenTrouble != "" {
		f.message = fmt.Sprintf("%s wants a token and none was found (%s)", c.patient.Address(), c.tokenTrouble)
	} else {
		f.message = fmt.Sprintf("%s refused the token of %s: %s", c.patient.Address(), c.tokenSource, f.message)
	}
	f.hint = "The token is in the file api.token of the node's data directory: name that directory with ERRAND_DATA or the file with --token-file, or set ERRAND_TOKEN."
}
