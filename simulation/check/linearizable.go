package check

import (
	"slices"
	"strings"

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
	open  map[uint64]opened
	spans map[string][]span
	runs  []string
	// called are the runs of which clients have spoken.
	called map[string]bool
}

// opened is where the operation of a call without an answer is.
type opened struct {
	run   string
	index int
}

func newLinearizable() *linearizable {
	return &linearizable{open: map[uint64]opened{}, spans: map[string][]span{}, called: map[string]bool{}}
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
	// verbRestore comes before the name of a state: an older copy holds the run so.
	verbRestore = "restore "
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
	case history.KindRestore:
		c.restored(l, e)
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

// restored forgets what clients were told before the store went back. What a run is now
// it is from here on, and a call without an answer may still be done, or was lost.
func (c *linearizable) restored(l *Ledger, e history.Event) {
	var open []span
	var of []string
	for _, run := range c.runs {
		for _, s := range c.spans[run] {
			if s.end == never {
				s.call = e.At
				open, of = append(open, s), append(of, run)
			}
		}
	}
	clear(c.open)
	clear(c.spans)
	c.runs = nil
	for _, r := range l.Runs() {
		if r.Record != nil || r.Gone {
			c.add(r.ID, moment(e, verbRestore+stateOf(r).String()))
		}
	}
	for i, s := range open {
		c.add(of[i], s)
	}
}

func moment(e history.Event, verb string) span {
	return span{in: operation{verb: verb}, out: outcome{known: true}, call: e.At, end: e.At}
}

func (c *linearizable) add(run string, s span) {
	if _, known := c.spans[run]; !known {
		c.runs = append(c.runs, run)
	}
	c.spans[run] = append(c.spans[run], s)
}

// call opens an operation that has no end yet and whose answer nobody knows.
func (c *linearizable) call(e history.Event, call history.Call) {
	switch call.Verb {
	case VerbSubmit, VerbCancel, VerbDelete, VerbGet:
	default:
		return
	}
	c.called[call.Run] = true
	c.open[call.ID] = opened{call.Run, len(c.spans[call.Run])}
	c.add(call.Run, span{in: operation{verb: call.Verb}, call: e.At, end: never})
}

func (c *linearizable) answer(e history.Event, call history.Call) {
	at, known := c.open[call.ID]
	if !known {
		return
	}
	delete(c.open, call.ID)
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
	s := &c.spans[at.run][at.index]
	s.out, s.end = out, e.At
}

func (c *linearizable) Finish(_ *Ledger, _ Facts, report func(Finding)) {
	for _, run := range c.runs {
		if c.called[run] && !ordered(c.spans[run]) {
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

var stateNames = [...]string{"absent", "present", "finished", "gone"}

func (s state) String() string { return stateNames[s] }

// stateOf is the state of a run in the store.
func stateOf(r *Run) state {
	switch {
	case r.Gone:
		return gone
	case r.Record == nil:
		return absent
	case r.Terminal():
		return finished
	default:
		return present
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
	if name, ok := strings.CutPrefix(in.verb, verbRestore); ok {
		return true, state(slices.Index(stateNames[:], name)) //nolint:gosec // one of four
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
