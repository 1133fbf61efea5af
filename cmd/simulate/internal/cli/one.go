package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// one executes one plan, with a trace if one is wanted.
func (a *app) one(ctx context.Context, p plan.Plan) error {
	a.describe(p)
	out := bufio.NewWriter(a.stdout)
	setup := a.setup(ctx)
	watched := setup
	trace := a.newTracer(out)
	if len(trace.observers) > 0 {
		watched.Turns, watched.Logs, watched.Observe = true, true, trace.observe
	}
	result := world.Execute(p, watched)
	if err := errors.Join(trace.err(), out.Flush()); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	var written error
	if trace.page != nil {
		written = writePage(a.html, trace.page, result)
	}
	if ctx.Err() != nil && result.Cut {
		return errors.Join(written, ctx.Err())
	}
	var second *world.Result
	code := codeOf(result)
	if a.twice {
		if again := world.Execute(p, setup); again.Hash != result.Hash {
			second, code = &again, ExitNondeterministic
		}
	}
	if a.json {
		if err := writeVerdict(a.stdout, result, code); err != nil {
			return fmt.Errorf("write the trace: %w", err)
		}
	}
	switch {
	case code != ExitPassed:
		a.explain(result, second)
		if written != nil {
			fmt.Fprintf(a.stderr, "simulate: %v\n", written)
		}
		return exitError(code)
	case !a.json:
		fmt.Fprintln(a.stdout, result)
	}
	return errors.Join(written, trace.checkRun(a.run))
}

// describe says what is executed, and how it can be executed again.
func (a *app) describe(p plan.Plan) {
	if a.json {
		return
	}
	o := p.Options
	var solo string
	if o.Solo {
		solo = " in solo"
	}
	var classes []string
	for _, class := range plan.Classes() {
		if slices.ContainsFunc(p.Faults, func(f plan.Fault) bool { return f.What.Class() == class }) {
			classes = append(classes, string(class))
		}
	}
	faults := "no faults"
	if len(p.Faults) > 0 {
		faults = fmt.Sprintf("%s (%s)", counted(len(p.Faults), "fault"), strings.Join(classes, ", "))
	}
	fmt.Fprintf(a.stdout, "seed %d, version %s: %s%s, %s, %s, policy %s; %s in %s, %s\n", p.Seed, version(),
		counted(o.Nodes, "node"), solo, counted(o.Members, "store member"), counted(int(o.Shards), "shard"), o.Policy.Kind, faults, o.Length, counted(len(p.Workload), "call"))
	if p.Note != "" {
		fmt.Fprintf(a.stdout, "note: %s\n", p.Note)
	}
	fmt.Fprintf(a.stdout, "replay: %s\n", a.replay(p.Seed, ""))
}

// counted is a number of things in words.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// replay is the command that does the same again, and shows what became of a run if
// one is named.
func (a *app) replay(seed uint64, run string) string {
	words := []string{"simulate"}
	switch {
	case a.planFile != "":
		words = append(words, "--plan", a.planFile)
	default:
		words = append(words, "--seed", strconv.FormatUint(seed, 10))
		if a.nodes != 0 {
			words = append(words, "--nodes", strconv.Itoa(a.nodes))
		}
		if a.hours != 0 {
			words = append(words, "--hours", strconv.FormatFloat(a.hours, 'g', -1, 64))
		}
		if a.faults != "all" {
			words = append(words, "--faults", a.faults)
		}
		if a.workload != "" {
			words = append(words, "--workload", a.workload)
		}
	}
	if a.canary {
		words = append(words, "--canary")
	}
	words = append(words, "--trace")
	if run != "" {
		words = append(words, "--run", run)
	}
	return shellLine(words)
}

// shellLine is a command as a shell reads it.
func shellLine(words []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:+="
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = word
		if word == "" || strings.Trim(word, plain) != "" || strings.ContainsAny(word, " \t\n'\"\\$&;|<>()*?[]{}!#`~") {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
