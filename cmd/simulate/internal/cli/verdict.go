package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/errand-run/errand/simulation/world"
)

// verdict is the last line of a trace in JSON, of the kind "result". Names stay: tools
// read them.
type verdict struct {
	Kind    string `json:"kind"`
	Step    uint64 `json:"step"`
	AtNs    int64  `json:"at_ns"`
	Seed    uint64 `json:"seed"`
	Version string `json:"version"`
	Hash    string `json:"hash"`
	Events  uint64 `json:"events"`
	Verdict string `json:"verdict"`
	// Exit is the exit code.
	Exit int `json:"exit"`
	// Cut says that the world was ended by --until.
	Cut        bool        `json:"cut,omitempty"`
	Panic      string      `json:"panic,omitempty"`
	Violations []violation `json:"violations"`
	Pending    []string    `json:"pending"`
}

type violation struct {
	Guarantee string `json:"guarantee"`
	Step      uint64 `json:"step"`
	AtNs      int64  `json:"at_ns"`
	Run       string `json:"run,omitempty"`
	Node      string `json:"node,omitempty"`
	Text      string `json:"text"`
	// Outside says why it does not count.
	Outside string `json:"outside,omitempty"`
}

func writeVerdict(out io.Writer, r world.Result, code int) error {
	line := verdict{
		Kind: "result", Step: r.Steps, AtNs: r.At.Nanoseconds(), Seed: r.Plan.Seed, Version: version(), Hash: fmt.Sprintf("%016x", r.Hash), Events: r.Events,
		Verdict: r.Verdict().String(), Exit: code, Cut: r.Cut, Panic: r.Panic, Violations: []violation{}, Pending: []string{},
	}
	for _, v := range r.Violations {
		line.Violations = append(line.Violations, violation{string(v.Guarantee), v.Step, v.At.Nanoseconds(), v.Run, v.Node, v.Text, v.Outside})
	}
	for _, p := range r.Pending {
		line.Pending = append(line.Pending, p.String())
	}
	return json.NewEncoder(out).Encode(line)
}
