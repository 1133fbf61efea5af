package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/simulation/plan"
)

// hoursMax is the longest time that may be asked for, a leap year.
const hoursMax = 24 * 366

// fileBytesMax bounds a plan and a workload: some 100,000 calls.
const fileBytesMax = 32 << 20

// options are the flags.
type options struct {
	seeds    string
	seed     uint64
	planFile string
	minimize string
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

// modes are the flags that say what to do, of which one is given; seeds is what is
// done without.
var modes = []string{"seeds", "seed", "plan", "minimize", "bench"}

// meant says with which of the modes a flag makes sense. What is not listed here does
// with all.
var meant = map[string][]string{
	"nodes":    {"seeds", "seed", "minimize", "bench"},
	"hours":    {"seeds", "seed", "minimize", "bench"},
	"faults":   {"seeds", "seed", "minimize", "bench"},
	"workload": {"seeds", "seed", "minimize"},
	"trace":    {"seed", "plan"},
	"json":     {"seed", "plan"},
	"run":      {"seed", "plan"},
	"until":    {"seed", "plan"},
	"html":     {"seed", "plan"},
	"twice":    {"seeds", "seed", "plan"},
	"canary":   {"seeds", "seed", "plan", "minimize"},
	"out":      {"minimize"},
	"parallel": {"seeds"},
	"stop":     {"seeds"},
	"failures": {"seeds", "seed", "plan"},
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "simulate",
		Short: "Run simulated clusters and judge what happened",
		Long: `Simulate runs whole clusters in virtual time: production's actors on models of
the store, the network, the clocks, the disks and the sandboxes. Everything is
drawn from one seed, so what a seed has shown it shows again.

Exit codes: 0 all passed, 1 a guarantee was violated, 2 it can not be done (the
command line, a file), 3 a cluster did not come to rest, 4 a panic, 5 two executions
of a seed differ, 130 interrupted.`,
		Example: `  simulate --seeds 1..500                      look for violations
  simulate --seeds 1..100 --nodes 5 --faults network,node
  simulate --seed 42 --trace --run k.shop.abc  see what became of a run
  simulate --seed 42 --html page.html          one lane per node, in a browser
  simulate --minimize 42 --out small.json      cut the plan down to what matters
  simulate --plan small.json --trace           carry a plan out`,
		Version:       version(),
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.given = cmd.Flags().Changed
			return a.do(cmd.Context())
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("simulate {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.Flags()
	f.SortFlags = false
	f.StringVar(&a.seeds, "seeds", "1..100", "seeds to execute, `FROM..TO`")
	f.Uint64Var(&a.seed, "seed", 0, "execute one seed, `K`")
	f.StringVar(&a.planFile, "plan", "", "execute the plan in a `FILE`")
	f.StringVar(&a.minimize, "minimize", "", "cut down what fails, the plan of a seed or in a file: `K|FILE`")
	f.BoolVar(&a.bench, "bench", false, "measure simulated time per second for 1, 5 and 15 nodes")
	f.IntVar(&a.nodes, "nodes", 0, "number of nodes (default: drawn)")
	f.Float64Var(&a.hours, "hours", 0, "hours of virtual time with faults (default: drawn, minutes mostly)")
	f.StringVar(&a.faults, "faults", "all", "classes of faults that may happen: all, none, or some of network,node,clock,store,sandbox")
	f.StringVar(&a.workload, "workload", "", "`FILE` with the calls to make, as in a plan (default: drawn)")
	f.BoolVar(&a.trace, "trace", false, "print what happens")
	f.BoolVar(&a.json, "json", false, "print what happens as one JSON object a line")
	f.StringVar(&a.html, "html", "", "write a page with one lane per node to a `FILE`")
	f.StringVar(&a.run, "run", "", "show only what concerns the run of this `ID`")
	f.Uint64Var(&a.until, "until", 0, "stop after so many steps")
	f.StringVar(&a.out, "out", "", "`FILE` to which --minimize writes the plan (default seed-K.json, or FILE-small.json)")
	f.BoolVar(&a.twice, "twice", false, "execute each seed twice and compare")
	f.BoolVar(&a.canary, "canary", false, "switch on a checker that always fails, to see that failures are reported")
	f.IntVar(&a.parallel, "parallel", runtime.GOMAXPROCS(0), "worlds at a time")
	f.StringVar(&a.failures, "failures", "simulation-failures", "`FOLDER` in which each failure leaves one of its own")
	f.IntVar(&a.stop, "stop", 5, "end a sweep after so many failures")
	return root
}

// mode is what is to be done. It refuses flags that say nothing to that: who gives one
// believes that it does something.
func (a *app) mode() (string, error) {
	mode := ""
	for _, name := range modes {
		if !a.given(name) || name == "bench" && !a.bench {
			continue
		}
		if mode != "" {
			return "", errors.New("only one of --seeds, --seed, --plan, --minimize and --bench can be given")
		}
		mode = name
	}
	if mode == "" {
		mode = "seeds"
	}
	for _, flag := range slices.Sorted(maps.Keys(meant)) {
		if a.given(flag) && !slices.Contains(meant[flag], mode) {
			return "", fmt.Errorf("--%s says nothing to --%s: it needs --%s", flag, mode, strings.Join(meant[flag], " or --"))
		}
	}
	switch {
	case a.trace && a.json:
		return "", errors.New("only one of --trace and --json can be given")
	case a.run != "" && !a.trace && !a.json && a.html == "":
		return "", errors.New("--run needs --trace, --json or --html")
	}
	return mode, nil
}

// want reads what is fixed of the plans, and finds what could not be written at the
// end.
func (a *app) want() error {
	if a.given("nodes") && (a.nodes < 1 || a.nodes > plan.NodesMax) {
		return fmt.Errorf("--nodes: %d is not between 1 and %d", a.nodes, plan.NodesMax)
	}
	// Written so that what is no number is refused too.
	if length := a.hours * float64(time.Hour); a.given("hours") && !(length >= float64(time.Second) && a.hours <= hoursMax) {
		return fmt.Errorf("--hours: %v is not between a second and a year", a.hours)
	}
	if a.parallel < 1 || a.stop < 1 {
		return errors.New("--parallel and --stop must be at least 1")
	}
	for _, flag := range []struct{ name, file string }{{"html", a.html}, {"out", a.out}} {
		if flag.file == "" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(flag.file)); err != nil || !info.IsDir() {
			return fmt.Errorf("--%s %s: there is no folder %s", flag.name, flag.file, filepath.Dir(flag.file))
		}
		if info, err := os.Stat(flag.file); err == nil && info.IsDir() {
			return fmt.Errorf("--%s %s: it is a folder", flag.name, flag.file)
		}
	}
	a.wanted = plan.Wanted{Nodes: a.nodes, Length: time.Duration(a.hours * float64(time.Hour))}
	if err := a.wantFaults(); err != nil {
		return err
	}
	if !a.given("workload") {
		return nil
	}
	return a.wantWorkload()
}

func (a *app) wantFaults() error {
	switch a.faults {
	case "all":
	case "none":
		a.wanted.Classes = []plan.Class{}
	default:
		for _, word := range strings.Split(a.faults, ",") {
			class, err := plan.ParseClass(strings.TrimSpace(word))
			if err != nil {
				return fmt.Errorf("--faults: %w; it is all, none, or some of %v", err, plan.Classes())
			}
			if !slices.Contains(a.wanted.Classes, class) {
				a.wanted.Classes = append(a.wanted.Classes, class)
			}
		}
	}
	return nil
}

// wantWorkload reads a workload that every world which is drawn can carry out whole.
func (a *app) wantWorkload() error {
	data, err := readFile(a.workload)
	if err != nil {
		return fmt.Errorf("--workload: %w", err)
	}
	calls, err := plan.DecodeWorkload(data)
	if err != nil {
		return fmt.Errorf("--workload %s: %w", a.workload, err)
	}
	nodes := a.nodes
	if nodes == 0 {
		nodes = 1 // as few as may be drawn
	}
	names := plan.Options{Nodes: nodes}.NodeNames()
	for i, c := range calls {
		if !slices.Contains(names, c.Node) {
			return fmt.Errorf("--workload %s: call %d is made through %s: say with --nodes how many there are", a.workload, i, c.Node)
		}
		if a.wanted.Length > 0 && c.At.D() >= a.wanted.Length {
			return fmt.Errorf("--workload %s: call %d, at %s, is made after the %s of --hours", a.workload, i, c.At, a.wanted.Length)
		}
	}
	a.wanted.Workload = calls
	return nil
}

// readFile reads a file that is not larger than any that makes sense.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, fileBytesMax+1))
	if err == nil && len(data) > fileBytesMax {
		err = fmt.Errorf("%s: it has more than %d bytes", name, fileBytesMax)
	}
	return data, err
}

func readPlan(file string) (plan.Plan, error) {
	data, err := readFile(file)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("read plan: %w", err)
	}
	p, err := plan.Decode(data)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("%s: %w", file, err)
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
		return 0, 0, fmt.Errorf("--seeds: %q is not FROM..TO", text)
	}
	return from, to, nil
}
