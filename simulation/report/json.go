package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/errand-run/errand/simulation/history"
)

// JSON writes one JSON object a line for each event.
type JSON struct {
	encoder *json.Encoder
	filter  Filter
	err     error
}

// entry is an event in JSON. Names stay: tools read them.
type entry struct {
	Step      uint64 `json:"step"`
	AtNs      int64  `json:"at_ns"`
	Kind      string `json:"kind"`
	Node      string `json:"node,omitempty"`
	Run       string `json:"run,omitempty"`
	Attempt   int32  `json:"attempt,omitempty"`
	Placement int32  `json:"placement,omitempty"`
	Text      string `json:"text,omitempty"`
	// Exactly the one that the kind has.
	Command *history.Command `json:"command,omitempty"`
	Commit  *commit          `json:"commit,omitempty"`
	Fault   *history.Fault   `json:"fault,omitempty"`
	Call    *call            `json:"call,omitempty"`
	Packet  any              `json:"packet,omitempty"`
}

type commit struct {
	Revision int64    `json:"revision"`
	Changes  []string `json:"changes"`
}

type call struct {
	ID      uint64 `json:"id"`
	Verb    string `json:"verb"`
	Key     string `json:"key,omitempty"`
	Outcome string `json:"outcome,omitempty"`
}

// NewJSON returns a trace that is written to w, line by line.
func NewJSON(w io.Writer, filter Filter) *JSON {
	return &JSON{encoder: json.NewEncoder(w), filter: filter}
}

// Observe writes an event's line. After an error of the writer it does nothing.
func (j *JSON) Observe(e history.Event) {
	if j.err != nil || !j.filter.Shows(e) {
		return
	}
	out := entry{
		Step: e.Step, AtNs: e.At.Nanoseconds(), Kind: e.Kind.String(), Node: e.Node, Run: e.Run, Attempt: e.Attempt, Placement: e.Placement, Text: e.Text,
	}
	switch detail := e.Detail.(type) {
	case history.Command:
		out.Command = &detail
	case history.Commit:
		out.Commit = &commit{Revision: detail.Revision}
		for _, change := range detail.Changes {
			out.Commit.Changes = append(out.Commit.Changes, describeChange(change))
		}
	case history.Fault:
		out.Fault = &detail
	case history.Call:
		out.Call = &call{ID: detail.ID, Verb: detail.Verb, Key: detail.Key, Outcome: detail.Outcome}
	default:
		if e.Kind == history.KindPacket {
			out.Packet = detail
		}
	}
	if err := j.encoder.Encode(out); err != nil {
		j.err = fmt.Errorf("write trace: %w", err)
	}
}

// Err is the first error of the writer.
func (j *JSON) Err() error { return j.err }
