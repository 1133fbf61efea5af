package check

import (
	"math"

	"github.com/anishathalye/porcupine"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// linearizable judges the clients' calls about each run: there must be an order of
// them that agrees with every answer and with real time, of two calls that did not
// overlap the earlier being first. A call without a definite answer may have been
// done at any later time, or never. That a run ends is no client's doing: the commit
// that ended it is an operation of that very moment.
type linearizable struct {
	open       map[uint64]int
	operations map[string][]porcupine.Operation
	runs       []string
	// called are the runs of which clients have spoken.
	called map[string]bool
}

func newLinearizable() *linearizable {
	return &linearizable{open: map[uint64]int{}, operations: map[string][]porcupine.Operation{}, called: map[string]bool{}}
}

func (*linearizable) Guarantee() Guarantee { return Linearizable }

// operation is the input of one; its output is an outcome.
type operation struct{ verb string }

// outcome is what a client was told, or unknown.
type outcome struct {
	known, refused bool
	class          records.Class
	exists, ended  bool
}

// What happens to a run without a client: it ends, and its tombstone goes.
const (
	verbEnd    = "end"
	verbForget = "forget"
)

func (c *linearizable) Observe(l *Ledger, e history.Event, _ func(Finding)) {
	switch e.Kind {
	case history.KindCall:
		if call, ok := e.Detail.(history.Call); ok && call.Run != "" {
			c.call(e, call)
		}
	case history.KindAnswer:
		if call, ok := e.Detail.(history.Call); ok {
			c.answer(e, call)
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if r.Terminal() && (r.Before == nil || !records.Terminal(r.Before.GetStatus())) {
				c.add(r.ID, moment(e, verbEnd))
			}
			if r.Forgotten {
				c.add(r.ID, moment(e, verbForget))
			}
		}
	default:
	}
}

func moment(e history.Event, verb string) porcupine.Operation {
	at := e.At.Nanoseconds()
	return porcupine.Operation{Input: operation{verb: verb}, Output: outcome{known: true}, Call: at, Return: at}
}

func (c *linearizable) add(run string, op porcupine.Operation) {
	if _, known := c.operations[run]; !known {
		c.runs = append(c.runs, run)
	}
	op.ClientId = len(c.operations[run])
	c.operations[run] = append(c.operations[run], op)
}

// call opens an operation that has no end yet and whose answer nobody knows.
func (c *linearizable) call(e history.Event, call history.Call) {
	switch call.Verb {
	case VerbSubmit, VerbCancel, VerbDelete, VerbGet:
	default:
		return
	}
	c.called[call.Run] = true
	c.open[call.ID] = len(c.operations[call.Run])
	c.add(call.Run, porcupine.Operation{
		Input: operation{verb: call.Verb}, Output: outcome{}, Call: e.At.Nanoseconds(), Return: math.MaxInt64,
	})
}

func (c *linearizable) answer(e history.Event, call history.Call) {
	i, known := c.open[call.ID]
	if !known || i >= len(c.operations[call.Run]) {
		return
	}
	delete(c.open, call.ID)
	op := &c.operations[call.Run][i]
	out := outcome{known: call.Outcome == "ok" || call.Outcome == "refused", refused: call.Outcome == "refused"}
	if !out.known {
		return
	}
	switch detail := call.Detail.(type) {
	case records.Class:
		out.class = detail
	case *recordv1.Run:
		out.exists = detail != nil
		out.ended = records.Terminal(detail.GetStatus())
	}
	op.Output, op.Return = out, e.At.Nanoseconds()
}

func (c *linearizable) Finish(_ *Ledger, _ Facts, report func(Finding)) {
	model := model()
	for _, run := range c.runs {
		operations := c.operations[run]
		if !c.called[run] {
			continue
		}
		if !porcupine.CheckOperations(model, operations) {
			report(Finding{Run: run, Text: "no order of the clients' calls agrees with all that they were told"})
		}
	}
}

// state is what clients can know of a run.
type state uint8

const (
	absent state = iota
	present
	finished
	gone
)

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return absent },
		Step: func(s, in, out any) (bool, any) {
			return step(s.(state), in.(operation), out.(outcome))
		},
	}
}

// step tells whether an answer is possible in a state, and what comes of it.
func step(s state, in operation, out outcome) (bool, state) {
	switch in.verb {
	case verbEnd:
		return s == present, finished
	case verbForget:
		return s == gone, absent
	}
	if in.verb == VerbGet {
		return !out.known || out.refused || out.exists == (s == present || s == finished) && out.ended == (s == finished), s
	}
	if out.refused {
		if in.verb == VerbSubmit && out.class == records.ClassInvalid && s == absent {
			// It created the run itself and learned so only when it asked again, after the
			// run had ended and was deleted.
			return true, present
		}
		return refusable(s, in, out), s
	}
	switch in.verb {
	case VerbSubmit:
		switch s {
		case absent:
			return true, present
		case gone:
			return !out.known, s
		default:
		}
		return true, s
	case VerbCancel:
		return !out.known || s == present || s == finished, s
	default: // a delete
		switch s {
		case finished:
			return true, gone
		case gone:
			return true, s
		default:
		}
		return !out.known, s
	}
}

// refusable tells whether a refusal is true: not found, a conflict with the run of
// another request, a run that was deleted (of a submit) or has ended (of a cancel),
// both invalid. Any other class says nothing of the run.
func refusable(s state, in operation, out outcome) bool {
	switch {
	case out.class == records.ClassNotFound && in.verb != VerbSubmit:
		return s == absent || s == gone
	case out.class == records.ClassConflict && in.verb == VerbSubmit:
		return s == present || s == finished
	case out.class == records.ClassInvalid && in.verb == VerbSubmit:
		return s == gone
	case out.class == records.ClassInvalid && in.verb == VerbCancel:
		return s == finished
	}
	return true
}
