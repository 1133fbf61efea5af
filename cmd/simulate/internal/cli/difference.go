package cli

import (
	"fmt"
	"io"

	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/report"
	"github.com/errand-run/errand/simulation/world"
)

// comparedMax bounds how many events of two executions are compared, and kept for it.
const comparedMax = 500_000

// differ executes a plan twice more and writes where the two part: the last event that
// both had, and the first that they had not.
func (a *app) differ(p plan.Plan, out io.Writer) error {
	setup := a.base
	setup.Canary, setup.Until = a.canary, a.until
	record := func() (lines []string) {
		setup.Observe = func(e history.Event) {
			if len(lines) < comparedMax {
				lines = append(lines, report.Line(e))
			}
		}
		world.Execute(p, setup)
		return lines
	}
	one, two := record(), record()
	at := 0
	for at < len(one) && at < len(two) && one[at] == two[at] {
		at++
	}
	if at == len(one) && at == len(two) {
		_, err := fmt.Fprintf(out, "two more executions were alike in %d events\n", at)
		return err
	}
	for _, line := range []struct {
		who string
		of  []string
		at  int
	}{{"both  ", one, at - 1}, {"first ", one, at}, {"second", two, at}} {
		text := "nothing"
		if line.at >= 0 && line.at < len(line.of) {
			text = line.of[line.at]
		}
		if _, err := fmt.Fprintf(out, "%s %s\n", line.who, text); err != nil {
			return err
		}
	}
	return nil
}
