package cli

import (
	"io"

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
}

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
	if a.html != "" {
		t.page = report.NewPage(filter, pageMarksMax)
		t.observers = append(t.observers, t.page.Observe)
	}
	return t
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
