// Package cli is the simulate command line. Execute is the whole program without
// its process.
//
//   - execute.go has the flags, the exit codes and the choice of what to do;
//   - sweep.go executes many seeds on all cores, one.go a single plan;
//   - failure.go says what failed and leaves a folder of evidence;
//   - progress.go shows how far a sweep has come, bench.go measures.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/simulation/plan"
)

// Version is what is printed beside a seed; empty means what the build recorded.
var Version string

// The exit codes.
const (
	ExitPassed           = 0
	ExitViolated         = 1
	ExitUsage            = 2
	ExitNotLive          = 3
	ExitPanicked         = 4
	ExitNondeterministic = 5
	ExitInterrupted      = 130
)

// options are the flags.
type options struct {
	seeds    string
	seed     uint64
	planFile string
	minimize uint64
	out      string

	nodes    int
	hours    float64
	faults   string
	workload string

	trace, json, twice, bench, canary bool
	run, html                         string
	until                             uint64

	parallel int
	failures string
	stop     int
}

// app is one invocation.
type app struct {
	options
	stdout, stderr io.Writer
	given          func(flag string) bool
	wanted         plan.Wanted
}

// exitError ends the program with a code; what is to be said was said.
type exitError int

func (e exitError) Error() string { return "exit " + strconv.Itoa(int(e)) }

// usageError is a command line that makes no sense.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Execute runs one command line and returns the exit code of the process. It leaves
// no goroutine behind.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return ExitPassed
	case errors.As(err, &exit):
		return int(exit)
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "simulate: interrupted")
		return ExitInterrupted
	}
	fmt.Fprintf(stderr, "simulate: %v\n", err)
	return ExitUsage
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "simulate",
		Short: "Run simulated clusters and judge what happened",
		Long: `Simulate runs whole clusters in virtual time: production's actors on models of
the store, the network, the clocks, the disks and the sandboxes. Everything is
drawn from one seed, so what a seed has shown it shows again.

Exit codes: 0 all passed, 1 a guarantee was violated, 2 the command line is wrong,
3 a cluster did not come to rest, 4 a panic, 5 two executions of a seed differ.`,
		Example: `  simulate --seeds 1..500                      look for violations
  simulate --seeds 1..100 --nodes 5 --faults network,node
  simulate --seed 42 --trace --run k.shop.abc  see what became of a run
  simulate --seed 42 --html page.html          one lane per node, in a browser
  simulate --minimize 42 --out small.json      cut the plan down to what matters
  simulate --plan small.json --trace           carry a plan out`,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.given = cmd.Flags().Changed
			return a.run0(cmd.Context())
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.Flags()
	f.StringVar(&a.seeds, "seeds", "1..100", "seeds to execute, FROM..TO")
	f.Uint64Var(&a.seed, "seed", 0, "execute one seed")
	f.StringVar(&a.planFile, "plan", "", "execute the plan in a file")
	f.Uint64Var(&a.minimize, "minimize", 0, "cut down the plan of a seed that fails")
	f.StringVar(&a.out, "out", "", "where --minimize writes the plan (default seed-K.json)")
	f.IntVar(&a.nodes, "nodes", 0, "number of nodes (default: drawn)")
	f.Float64Var(&a.hours, "hours", 0, "hours of virtual time with faults (default: drawn, minutes mostly)")
	f.StringVar(&a.faults, "faults", "all", "classes of faults: all, none, or some of network,node,clock,store,sandbox")
	f.StringVar(&a.workload, "workload", "", "file with the calls to make, as in a plan (default: drawn)")
	f.BoolVar(&a.trace, "trace", false, "print what happens")
	f.BoolVar(&a.json, "json", false, "print the trace as one JSON object a line")
	f.StringVar(&a.run, "run", "", "trace only what concerns a run")
	f.Uint64Var(&a.until, "until", 0, "stop after so many steps")
	f.StringVar(&a.html, "html", "", "write a page with one lane per node")
	f.BoolVar(&a.twice, "twice", false, "execute each seed twice and compare")
	f.BoolVar(&a.bench, "bench", false, "measure simulated time per second for 1, 5 and 15 nodes")
	f.BoolVar(&a.canary, "canary", false, "switch on a checker that always fails, to see that failures are reported")
	f.IntVar(&a.parallel, "parallel", runtime.GOMAXPROCS(0), "worlds at a time")
	f.StringVar(&a.failures, "failures", "simulation-failures", "folder in which each failure leaves one of its own")
	f.IntVar(&a.stop, "stop", 5, "end a sweep after so many failures")
	return root
}

// run0 does what the flags say.
func (a *app) run0(ctx context.Context) error {
	if err := a.want(); err != nil {
		return err
	}
	modes := 0
	for _, mode := range []string{"seeds", "seed", "plan", "minimize", "bench"} {
		if a.given(mode) {
			modes++
		}
	}
	if modes > 1 {
		return usage("only one of --seeds, --seed, --plan, --minimize and --bench can be given")
	}
	switch {
	case a.given("bench"):
		return a.measure(ctx)
	case a.given("minimize"):
		return a.cutDown(ctx, plan.Draw(a.minimize, a.wanted))
	case a.given("seed"):
		return a.one(plan.Draw(a.seed, a.wanted))
	case a.given("plan"):
		p, err := readPlan(a.planFile)
		if err != nil {
			return err
		}
		return a.one(p)
	}
	for _, flag := range []string{"trace", "json", "run", "until", "html"} {
		if a.given(flag) {
			return usage("--%s needs --seed or --plan", flag)
		}
	}
	from, to, err := parseSeeds(a.seeds)
	if err != nil {
		return err
	}
	return a.sweep(ctx, from, to)
}

// want reads what is fixed of the plans.
func (a *app) want() error {
	if a.nodes < 0 || a.nodes > plan.NodesMax {
		return usage("--nodes: %d is not between 1 and %d", a.nodes, plan.NodesMax)
	}
	if a.hours < 0 || a.hours > 24*366 {
		return usage("--hours: %v is not between 0 and a year", a.hours)
	}
	if a.parallel < 1 || a.stop < 1 {
		return usage("--parallel and --stop must be at least 1")
	}
	a.wanted = plan.Wanted{Nodes: a.nodes, Length: time.Duration(a.hours * float64(time.Hour))}
	switch a.faults {
	case "all":
	case "none":
		a.wanted.Classes = []plan.Class{}
	default:
		for _, word := range strings.Split(a.faults, ",") {
			class, err := plan.ParseClass(word)
			if err != nil {
				return usage("--faults: %w", err)
			}
			a.wanted.Classes = append(a.wanted.Classes, class)
		}
	}
	if a.workload == "" {
		return nil
	}
	data, err := os.ReadFile(a.workload)
	if err != nil {
		return usage("--workload: %w", err)
	}
	if err := json.Unmarshal(data, &a.wanted.Workload); err != nil {
		return usage("--workload %s: %w", a.workload, err)
	}
	return nil
}

func readPlan(file string) (plan.Plan, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return plan.Plan{}, usage("--plan: %w", err)
	}
	p, err := plan.Decode(data)
	if err != nil {
		return plan.Plan{}, usage("--plan %s: %w", file, err)
	}
	return p, nil
}

// parseSeeds reads FROM..TO, or one number.
func parseSeeds(text string) (from, to uint64, err error) {
	first, last, ranged := strings.Cut(text, "..")
	if !ranged {
		last = first
	}
	if from, err = strconv.ParseUint(first, 10, 64); err == nil {
		to, err = strconv.ParseUint(last, 10, 64)
	}
	if err != nil || from > to {
		return 0, 0, usage("--seeds: %q is not FROM..TO", text)
	}
	return from, to, nil
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
