package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/errand-run/errand/simulation/minimize"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// one executes one plan, with a trace if one is wanted.
func (a *app) one(p plan.Plan) error {
	a.describe(p)
	out := bufio.NewWriter(a.stdout)
	setup := world.Setup{Until: a.until, Canary: a.canary}
	watched := setup
	trace := a.newTracer(out)
	if len(trace.observers) > 0 {
		watched.Turns, watched.Logs, watched.Observe = true, true, trace.observe
	}
	result := world.Execute(p, watched)
	for _, failed := range trace.failures {
		if err := failed(); err != nil {
			return fmt.Errorf("write the trace: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	if trace.page != nil {
		if err := writePage(a.html, trace.page, result); err != nil {
			return err
		}
	}
	var second *world.Result
	code := codeOf(result)
	if a.twice {
		if again := world.Execute(p, setup); again.Hash != result.Hash {
			second, code = &again, ExitNondeterministic
		}
	}
	if !a.json {
		fmt.Fprintln(a.stdout, result)
	}
	if code == ExitPassed {
		return nil
	}
	a.explain(result, second)
	return exitError(code)
}

// describe says what is executed, and how it can be executed again.
func (a *app) describe(p plan.Plan) {
	if a.json {
		return
	}
	o := p.Options
	fmt.Fprintf(a.stdout, "seed %d version %s: %d nodes, %d store members, solo %v, %d shards, policy %s, %s of faults %v (%d), %d calls\n",
		p.Seed, version(), o.Nodes, o.Members, o.Solo, o.Shards, o.Policy.Kind, o.Length, o.Classes, len(p.Faults), len(p.Workload))
	fmt.Fprintf(a.stdout, "replay: %s\n", a.replay(p.Seed))
}

// replay is the command that does the same again.
func (a *app) replay(seed uint64) string {
	if a.planFile != "" {
		return "simulate --plan " + a.planFile + " --trace"
	}
	command := "simulate --seed " + strconv.FormatUint(seed, 10)
	if a.nodes != 0 {
		command += " --nodes " + strconv.Itoa(a.nodes)
	}
	if a.hours != 0 {
		command += " --hours " + strconv.FormatFloat(a.hours, 'g', -1, 64)
	}
	if a.faults != "all" {
		command += " --faults " + a.faults
	}
	if a.workload != "" {
		command += " --workload " + a.workload
	}
	if a.canary {
		command += " --canary"
	}
	return command + " --trace"
}

// cutDown minimizes a plan and writes what is left of it.
func (a *app) cutDown(ctx context.Context, p plan.Plan) error {
	a.describe(p)
	fails := func(p plan.Plan) string {
		if ctx.Err() != nil {
			return ""
		}
		return world.Execute(p, world.Setup{Canary: a.canary}).Checker()
	}
	progress := func(what string, executions, faults, calls int) {
		if isTerminal(a.stderr) {
			fmt.Fprintf(a.stderr, "\r%d executions, %d faults and %d calls left, cutting %s\x1b[K", executions, faults, calls, what)
		}
	}
	small, checker := minimize.Minimize(p, fails, progress)
	if isTerminal(a.stderr) {
		fmt.Fprint(a.stderr, "\r\x1b[K")
	}
	if checker == "" {
		fmt.Fprintf(a.stdout, "seed %d does not fail: there is nothing to cut down\n", p.Seed)
		return nil
	}
	small.Note = checker
	data, err := plan.Encode(small)
	if err != nil {
		return err
	}
	file := a.out
	if file == "" {
		file = "seed-" + strconv.FormatUint(p.Seed, 10) + ".json"
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	fmt.Fprintf(a.stdout, "%s: %d of %d faults, %d of %d calls, %d of %d nodes, %s of %s\nreplay: simulate --plan %s --trace\n", checker,
		len(small.Faults), len(p.Faults), len(small.Workload), len(p.Workload), small.Options.Nodes, p.Options.Nodes,
		small.Options.Length, p.Options.Length, file)
	for _, f := range small.Faults {
		fmt.Fprintf(a.stdout, "  %s\n", f)
	}
	return ctx.Err()
}
