package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
)

// failure is an error as people see it: what failed and why, what to do about
// it, and the exit code. It never holds a token or a value of an environment.
type failure struct {
	exit    int
	code    string       // a stable word for scripts: the API's, or one of below
	class   connect.Code // what the API answered; 0 if it did not
	message string
	hint    string // what to do now; may be empty
	unsure  bool   // the node may have done it all the same
}

// The words for what fails on errand's own side.
const (
	codeUsage       = "USAGE"
	codeInterrupted = "INTERRUPTED"
	codeTimeout     = "TIMEOUT"
	codeInput       = "INPUT"
	codeOutput      = "OUTPUT"
	codeInternal    = "INTERNAL"
)

func (f *failure) Error() string { return f.message }

// exitStatus ends the program with a code and without another word.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usage is a failure of the command line itself.
func usage(format string, arguments ...any) *failure {
	return &failure{exit: ExitUsage, code: codeUsage, message: fmt.Sprintf(format, arguments...)}
}

// broken is a failure of errand rather than of the command that it runs.
func broken(code, format string, arguments ...any) *failure {
	return &failure{exit: ExitErrand, code: code, message: fmt.Sprintf(format, arguments...)}
}

func (f *failure) write(w io.Writer, asJSON bool) {
	if asJSON {
		document := struct {
			Error failureView `json:"error"`
		}{failureView{Code: f.code, Message: f.message, Hint: f.hint}}
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(document) // stderr is the last place to complain at
		return
	}
	text := "errand: " + printable(f.message)
	if f.hint != "" {
		text += "\n" + printable(f.hint)
	}
	fmt.Fprintln(w, text)
}

// failureView is the JSON of a failure, on stderr.
type failureView struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// asksForJSON finds -o json in a command line that could not be parsed.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "--":
			return false
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			return i+1 < len(args) && args[i+1] == "json"
		}
	}
	return false
}

// printable replaces the control characters in a text that came over the
// network: a message must not be able to move the cursor or to colour a terminal.
// Line feeds and tabs stay.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '\ufffd'
		}
		return r
	}, text)
}
