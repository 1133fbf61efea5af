// Package report shows the history of a simulated world to people: as lines of text
// (Text), as lines of JSON for tools (JSON), and as one page with a lane for each
// node that opens from the file system (Page). Each is an observer of a history and
// needs nothing but its events; none of them changes what it is shown.
package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/errand-run/errand/simulation/history"
)

// Filter says which events are shown. The zero value shows all.
type Filter struct {
	// Run shows only what is about one run, and what befalls machines and the world.
	Run string
	// Kinds shows only these, unless it is empty.
	Kinds []history.Kind
}

// Shows tells whether an event is shown.
func (f Filter) Shows(e history.Event) bool {
	if len(f.Kinds) > 0 && !oneOf(e.Kind, f.Kinds) {
		return false
	}
	if f.Run == "" || e.Run == f.Run {
		return true
	}
	switch e.Kind {
	case history.KindFault, history.KindDaemon, history.KindMachine:
		return true
	case history.KindCommit:
		commit, _ := e.Detail.(history.Commit)
		for _, change := range commit.Changes {
			if strings.HasSuffix(change.Key, "/"+f.Run) {
				return true
			}
		}
	default:
	}
	return false
}

func oneOf(kind history.Kind, kinds []history.Kind) bool {
	for _, k := range kinds {
		if k == kind {
			return true
		}
	}
	return false
}

// Text writes one line for each event: step, true time, node, kind, run with attempt
// and placement, and what happened. The columns are the same for the same history,
// so that two traces can be compared byte by byte.
type Text struct {
	w      io.Writer
	filter Filter
	err    error
}

// NewText returns a trace that is written to w, line by line.
func NewText(w io.Writer, filter Filter) *Text { return &Text{w: w, filter: filter} }

// Observe writes an event's line. After an error of the writer it does nothing.
func (t *Text) Observe(e history.Event) {
	if t.err != nil || !t.filter.Shows(e) {
		return
	}
	if _, err := io.WriteString(t.w, Line(e)+"\n"); err != nil {
		t.err = fmt.Errorf("write trace: %w", err)
	}
}

// Err is the first error of the writer.
func (t *Text) Err() error { return t.err }

// Line is the line of an event without its end.
func Line(e history.Event) string {
	node := e.Node
	if node == "" {
		node = "-"
	}
	line := fmt.Sprintf("%8d  %s  %-6s %-8s %-s", e.Step, Clock(e.At), node, e.Kind, about(e))
	return strings.TrimRight(line, " ")
}

// about joins whom an event is about with what happened.
func about(e history.Event) string {
	var who string
	switch {
	case e.Run != "" && e.Attempt > 0:
		who = fmt.Sprintf("%s/%d.%d  ", e.Run, e.Attempt, e.Placement)
	case e.Run != "":
		who = e.Run + "  "
	}
	return who + Describe(e)
}

// Clock writes a true time as hours, minutes, seconds and microseconds, in one width.
func Clock(at time.Duration) string {
	micros := at.Microseconds()
	return fmt.Sprintf("%02d:%02d:%02d.%06d", micros/3_600_000_000, micros/60_000_000%60, micros/1_000_000%60, micros%1_000_000)
}
