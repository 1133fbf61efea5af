package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/report"
	"github.com/errand-run/errand/simulation/world"
)

// The bounds of what a failure shows and keeps.
const (
	lastEvents   = 20
	violationMax = 5
)

// explain says what failed, executes the plan once more with eyes open, and leaves a
// folder with all that there is to know.
func (a *app) explain(r world.Result, second *world.Result) {
	out := a.stdout
	if a.json {
		out = a.stderr // what tools read goes on
	}
	fmt.Fprintf(out, "\nFAILED %s\n", r)
	if second != nil {
		fmt.Fprintf(out, "  a second execution was another one: hash %016x, %d steps, %d events\n", second.Hash, second.Steps, second.Events)
	}
	if r.Panic != "" {
		reason, _, _ := strings.Cut(r.Panic, "\n")
		fmt.Fprintf(out, "  panic: %s (the stack is in result.txt)\n", reason)
	}
	shown := 0
	for _, v := range r.Violations {
		if v.Outside == "" && shown < violationMax {
			fmt.Fprintf(out, "  %s\n", v)
			shown++
		}
	}
	if left := len(r.Violations) - shown; left > 0 {
		fmt.Fprintf(out, "  %d more are in result.txt\n", left)
	}
	folder, last, err := a.evidence(r, second != nil)
	for _, e := range last {
		fmt.Fprintln(out, "    "+report.Line(e))
	}
	if err != nil {
		folder = strings.TrimPrefix(folder+", not whole: ", ", not whole: ") + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Fprintf(out, "  evidence: %s\n", folder)
	first, _ := r.First()
	fmt.Fprintf(out, "  replay: %s\n", a.replay(r.Plan.Seed, first.Run))
}

// evidence fills the folder of a failure, and returns the last events of the run
// that it is about.
func (a *app) evidence(r world.Result, differs bool) (folder string, last []history.Event, err error) {
	folder = filepath.Join(a.failures, "seed-"+strconv.FormatUint(r.Plan.Seed, 10))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", nil, fmt.Errorf("make folder: %w", err)
	}
	first, found := r.First()
	until := first.At
	if !found {
		until = r.At // a panic, or two executions that differ
	}
	about := subject(first)
	page := report.NewPage(report.Filter{Run: first.Run}, pageMarksMax)
	// What is small and matters most comes first: the disk may be full.
	data, err := plan.Encode(r.Plan)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "plan.json"), data, 0o644)
	}
	err = errors.Join(err, write(filepath.Join(folder, "result.txt"), func(out io.Writer) error { return a.writeResult(out, r, first.Run) }))
	var again *world.World
	written := write(filepath.Join(folder, "trace.txt"), func(text io.Writer) error {
		return write(filepath.Join(folder, "history.jsonl"), func(events io.Writer) error {
			lines, objects := report.NewText(text, report.Filter{}), report.NewJSON(events, report.Filter{})
			var err error
			again, err = a.rebuild(r.Plan, func(e history.Event) {
				lines.Observe(e)
				page.Observe(e)
				if e.Kind != history.KindTurn {
					objects.Observe(e)
				}
				if about(e) && e.At <= until {
					if last = append(last, e); len(last) > lastEvents {
						last = last[1:]
					}
				}
			})
			if err != nil {
				return err
			}
			again.Run()
			return errors.Join(lines.Err(), objects.Err())
		})
	})
	if differs {
		written = errors.Join(written, write(filepath.Join(folder, "difference.txt"), func(out io.Writer) error { return a.differ(r.Plan, out) }))
	}
	return folder, last, errors.Join(err, written,
		write(filepath.Join(folder, "store.txt"), func(out io.Writer) error { return dump(again, out) }),
		writePage(filepath.Join(folder, "page.html"), page, r))
}

// rebuild builds a world that may panic on the way, and that tells all.
func (a *app) rebuild(p plan.Plan, observe func(history.Event)) (w *world.World, err error) {
	setup := a.base
	setup.Canary, setup.Until, setup.Turns, setup.Logs, setup.Observe = a.canary, a.until, true, true, observe
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("build the world again: %v", r)
		}
	}()
	return world.New(p, setup), nil
}

// dump writes what the store of a world holds, if there is one.
func dump(w *world.World, out io.Writer) error {
	if w != nil {
		w.Dump(out)
	}
	return nil
}

// subject tells which events a violation is about.
func subject(v check.Violation) func(history.Event) bool {
	filter := report.Filter{Run: v.Run}
	return func(e history.Event) bool {
		switch {
		case e.Kind == history.KindTurn:
			return false
		case v.Run != "":
			return filter.Shows(e)
		case v.Node != "":
			return e.Node == v.Node
		}
		return e.Kind != history.KindPacket
	}
}

// writeResult writes what was found, and how the folder alone shows it again: who has
// no more than that has no workload's file.
func (a *app) writeResult(out io.Writer, r world.Result, run string) error {
	alone := app{options: options{planFile: "plan.json", canary: a.canary}}
	_, err := fmt.Fprintf(out, "%s\nversion %s\nreplay: %s\nreplay: %s\n", r, version(), a.replay(r.Plan.Seed, run), alone.replay(0, run))
	for _, v := range r.Violations {
		fmt.Fprintln(out, v)
	}
	for _, p := range r.Pending {
		fmt.Fprintf(out, "pending: %s\n", p)
	}
	if r.Panic != "" {
		fmt.Fprintf(out, "panic: %s\n", r.Panic)
	}
	return err
}

// write makes a file.
func write(name string, fill func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	err = fill(out)
	if flushed := out.Flush(); err == nil {
		err = flushed
	}
	return errors.Join(err, file.Close())
}
