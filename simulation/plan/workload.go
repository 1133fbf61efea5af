package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/errand-run/errand/cluster/records"
)

// DecodeWorkload reads the list of calls of a workload's file and checks each. A
// field that does not exist is a mistake, and so is a list without a call.
func DecodeWorkload(data []byte) ([]Call, error) {
	var calls []Call
	if err := decodeStrictly(data, &calls); err != nil {
		return nil, fmt.Errorf("decode workload: %w", err)
	}
	if len(calls) == 0 {
		return nil, errors.New("check workload: there is no call")
	}
	if err := checkCalls(calls); err != nil {
		return nil, fmt.Errorf("check workload: %w", err)
	}
	return calls, nil
}

// decodeStrictly reads one JSON value that has no field of an unknown name.
func decodeStrictly(data []byte, into any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.New("it is empty")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends in the middle")
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: %w", 1+bytes.Count(data[:syntax.Offset], []byte("\n")), err)
	case err != nil:
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind its end")
	}
	return nil
}

// checkCalls finds what no client can call.
func checkCalls(calls []Call) error {
	var faults []error
	for i, c := range calls {
		if err := c.check(); err != nil {
			faults = append(faults, fmt.Errorf("call %d: %w", i, err))
		}
	}
	return errors.Join(faults...)
}

// check finds what no client can call.
func (c Call) check() error {
	if c.Label == "" || c.Node == "" {
		return errors.New("label and node must be given")
	}
	if c.At < 0 {
		return fmt.Errorf("at %s: is before the beginning", c.At)
	}
	if !slices.Contains([]string{VerbSubmit, VerbCancel, VerbGet, VerbDelete, VerbContend}, c.Verb) {
		return fmt.Errorf("there is no verb %q", c.Verb)
	}
	if c.Verb != VerbSubmit {
		return nil
	}
	if c.Command == nil {
		return errors.New("a submit has no command")
	}
	if app, err := records.AppOfRun(c.Run); c.Run != "" && (err != nil || app != cmp.Or(c.App, records.DefaultApp)) {
		return fmt.Errorf("run %q: is no id of a run of this app", c.Run)
	}
	if c.Command.Timeout <= 0 || c.Command.StartDeadline <= 0 || c.Command.StopGrace <= 0 {
		return errors.New("the command's timeout, start_deadline and stop_grace must be given and above 0")
	}
	if c.Command.Takes < 0 || c.Command.Orphan < 0 {
		return errors.New("the command's takes and orphan must not be below 0")
	}
	return nil
}

// String returns the call in one line.
func (c Call) String() string {
	words := []string{c.Verb, c.Label}
	if c.Key != "" {
		words = append(words, "key", c.Key)
	}
	words = append(words, "through", c.Node)
	if c.Force {
		words = append(words, "by force")
	}
	text := strings.Join(words, " ")
	if c.Command != nil {
		text += ": " + c.Command.String()
	}
	return text
}

// String says in words what the command does and how long it may.
func (c Command) String() string {
	text := fmt.Sprintf("takes %s, code %d", c.Takes, c.Code)
	if c.Image != "" {
		text += ", of image " + c.Image
	}
	if c.Deaf {
		text += ", deaf to signals"
	}
	if c.Orphan > 0 {
		text += fmt.Sprintf(", a child outlives it by %s", c.Orphan)
	}
	return fmt.Sprintf("%s, timeout %s, start deadline %s, grace %s", text, c.Timeout, c.StartDeadline, c.StopGrace)
}
