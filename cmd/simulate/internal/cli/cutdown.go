package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/errand-run/errand/simulation/minimize"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// toCutDown is the plan that --minimize names, by a seed or by a file, and where what
// is left of it goes if nobody says where.
func (a *app) toCutDown() (p plan.Plan, out string, err error) {
	if seed, err := strconv.ParseUint(a.minimize, 10, 64); err == nil {
		return plan.Draw(seed, a.wanted), "seed-" + a.minimize + ".json", nil
	}
	for _, flag := range []string{"nodes", "hours", "faults", "workload"} {
		if a.given(flag) {
			return plan.Plan{}, "", fmt.Errorf("--%s says nothing to a plan in a file", flag)
		}
	}
	if p, err = readPlan(a.minimize); err != nil {
		return plan.Plan{}, "", fmt.Errorf("--minimize %s, which is no seed: %w", a.minimize, err)
	}
	a.planFile = a.minimize
	return p, strings.TrimSuffix(a.minimize, ".json") + "-small.json", nil
}

// cutDown minimizes a plan and writes what is left of it; what an interrupted one has
// come to as well.
func (a *app) cutDown(ctx context.Context) error {
	p, out, err := a.toCutDown()
	if err != nil {
		return err
	}
	if a.out != "" {
		out = a.out
	}
	a.describe(p)
	setup := a.setup(ctx)
	fails := func(p plan.Plan) string {
		if ctx.Err() != nil {
			return ""
		}
		result := world.Execute(p, setup)
		if ctx.Err() != nil {
			return ""
		}
		return result.Checker()
	}
	show := func(what string, executions, faults, calls int) {
		if width := terminalWidth(a.stderr); width > 0 {
			line := fmt.Sprintf("%s, %s and %s left, cutting %s", counted(executions, "execution"), counted(faults, "fault"), counted(calls, "call"), what)
			fmt.Fprintf(a.stderr, "\r%.*s\x1b[K", width-1, line)
		}
	}
	small, checker := minimize.Minimize(world.Pin(p), fails, show)
	if terminalWidth(a.stderr) > 0 {
		fmt.Fprint(a.stderr, "\r\x1b[K")
	}
	switch {
	case checker == "" && ctx.Err() != nil:
		return ctx.Err()
	case checker == "":
		return errors.New("it does not fail: there is nothing to cut down to")
	}
	if small.Note == "" {
		small.Note = checker
	}
	data, err := plan.Encode(small)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, data, 0o644); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	a.planFile = out
	fmt.Fprintf(a.stdout, "%s: %d of %d faults, %d of %d calls, %d of %d nodes, %s of %s\nreplay: %s\n", checker,
		len(small.Faults), len(p.Faults), len(small.Workload), len(p.Workload), small.Options.Nodes, p.Options.Nodes,
		small.Options.Length, p.Options.Length, a.replay(p.Seed, ""))
	if ctx.Err() != nil {
		fmt.Fprintln(a.stdout, "not cut down to the end: what is in the file fails, but not all of it may matter")
		return ctx.Err()
	}
	for _, f := range small.Faults {
		fmt.Fprintf(a.stdout, "  %s\n", f)
	}
	for _, c := range small.Workload {
		fmt.Fprintf(a.stdout, "  %s, at %s\n", c, c.At)
	}
	return nil
}
