// Package cli is the simulate command line. Execute is the whole program without
// its process.
//
//   - execute.go has the exit codes and the choice of what to do, flags.go the flags
//     and what makes sense of them;
//   - sweep.go executes many seeds on all cores, one.go a single plan, cutdown.go
//     cuts one down;
//   - failure.go says what failed and leaves a folder of evidence, difference.go finds
//     where two executions part;
//   - progress.go shows how far a sweep has come, bench.go measures.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"

	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/world"
)

// Version is what is printed beside a seed; empty means what the build recorded.
var Version string

// The exit codes.
const (
	ExitPassed = 0
	// ExitViolated is a guarantee that did not hold.
	ExitViolated = 1
	// ExitUsage is what can not be done: a command line without a sense, a file that can
	// not be read or written, a plan without a failure to cut down to.
	ExitUsage = 2
	// ExitNotLive is a cluster that did not come to rest.
	ExitNotLive  = 3
	ExitPanicked = 4
	// ExitNondeterministic is a plan of which two executions were not the same.
	ExitNondeterministic = 5
	ExitInterrupted      = 130
)

// app is one invocation.
type app struct {
	options
	stdout, stderr io.Writer
	given          func(flag string) bool
	wanted         plan.Wanted
	// base is what every world is set up with besides what the flags say.
	base world.Setup
}

// exitError ends the program with a code; what is to be said was said.
type exitError int

func (e exitError) Error() string { return "exit " + strconv.Itoa(int(e)) }

// output remembers that it could not be written.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(data []byte) (int, error) {
	n, err := o.Writer.Write(data)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// Execute runs one command line and returns the exit code of the process. It leaves
// no goroutine behind.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return (&app{}).execute(ctx, args, stdout, stderr)
}

func (a *app) execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &output{Writer: stdout}
	a.stdout, a.stderr = out, stderr
	root := a.command()
	root.SetArgs(args)
	code := a.codeOf(ctx, root.ExecuteContext(ctx))
	if out.err != nil {
		fmt.Fprintf(stderr, "simulate: write output: %v\n", out.err)
		if code == ExitPassed {
			return ExitUsage
		}
	}
	return code
}

// codeOf is the exit code for what became of a command, which it says unless that was
// done.
func (a *app) codeOf(ctx context.Context, err error) int {
	var exit exitError
	switch {
	case err == nil:
		return ExitPassed
	case errors.As(err, &exit):
		return int(exit)
	case ctx.Err() != nil:
		fmt.Fprintln(a.stderr, "simulate: interrupted")
		return ExitInterrupted
	}
	fmt.Fprintf(a.stderr, "simulate: %v\n", err)
	return ExitUsage
}

// do does what the flags say.
func (a *app) do(ctx context.Context) error {
	mode, err := a.mode()
	if err != nil {
		return err
	}
	if err := a.want(); err != nil {
		return err
	}
	switch mode {
	case "bench":
		return a.measure(ctx)
	case "minimize":
		return a.cutDown(ctx)
	case "seed":
		return a.one(ctx, plan.Draw(a.seed, a.wanted))
	case "plan":
		p, err := readPlan(a.planFile)
		if err != nil {
			return err
		}
		return a.one(ctx, p)
	default:
		from, to, err := parseSeeds(a.seeds)
		if err != nil {
			return err
		}
		return a.sweep(ctx, from, to)
	}
}

// setup is how a world is executed that nobody watches. It ends with the context.
func (a *app) setup(ctx context.Context) world.Setup {
	setup := a.base
	setup.Canary, setup.Until = a.canary, a.until
	setup.Stop = func() bool { return ctx.Err() != nil }
	return setup
}

// version names the code that is executed.
func version() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return "unknown"
	}
	return revision + dirty
}
