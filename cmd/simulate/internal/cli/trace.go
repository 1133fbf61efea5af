package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/report"
	"github.com/errand-run/errand/simulation/world"
)

// pageMarksMax bounds what a page shows besides sandboxes and faults: a browser has
// to draw it.
const pageMarksMax = 60_000

// tracer shows a world to whoever asked for it.
type tracer struct {
	observers []func(history.Event)
	failures  []func() error
	page      *report.Page
	// runs are those that were seen, in order, if one of them is asked for.
	runs  []string
	known map[string]bool
}

// runsMax bounds how many runs are named to who asks for one that is not there.
const runsMax = 10

// newTracer makes what the flags ask for, writing to out.
func (a *app) newTracer(out io.Writer) *tracer {
	t := &tracer{}
	filter := report.Filter{Run: a.run}
	switch {
	case a.json:
		lines := report.NewJSON(out, filter)
		t.observers, t.failures = append(t.observers, lines.Observe), append(t.failures, lines.Err)
	case a.trace:
		lines := report.NewText(out, filter)
		t.observers, t.failures = append(t.observers, lines.Observe), append(t.failures, lines.Err)
	}
	if a.run != "" {
		t.known = map[string]bool{}
		t.observers = append(t.observers, func(e history.Event) {
			if e.Run != "" && !t.known[e.Run] {
				t.known[e.Run] = true
				t.runs = append(t.runs, e.Run)
			}
		})
	}
	if a.html != "" {
		t.page = report.NewPage(filter, pageMarksMax)
		t.observers = append(t.observers, t.page.Observe)
	}
	return t
}

// err is the first error of writing.
func (t *tracer) err() error {
	for _, failed := range t.failures {
		if err := failed(); err != nil {
			return err
		}
	}
	return nil
}

// checkRun finds that the run which was asked for was never there.
func (t *tracer) checkRun(run string) error {
	if run == "" || t.known[run] {
		return nil
	}
	names := strings.Join(t.runs[:min(len(t.runs), runsMax)], ", ")
	switch {
	case len(t.runs) == 0:
		names = "none"
	case len(t.runs) > runsMax:
		names += fmt.Sprintf(" and %d more", len(t.runs)-runsMax)
	}
	return fmt.Errorf("--run: there is no run %s in this world; there are: %s", run, names)
}

// observe passes an event on.
func (t *tracer) observe(e history.Event) {
	for _, each := range t.observers {
		each(e)
	}
}

// writePage writes the page with one lane per node.
func writePage(file string, page *report.Page, r world.Result) error {
	var findings []report.Finding
	for _, v := range r.Violations {
		findings = append(findings, report.Finding{At: v.At, Text: v.String()})
	}
	return write(file, func(out io.Writer) error { return page.Write(out, r.String(), findings) })
}
