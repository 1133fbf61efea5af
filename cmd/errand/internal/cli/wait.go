package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// lastLook is how long a node has to say how a run is whose wait was not answered in time.
const lastLook = 2 * time.Second

func (a *app) waitCommand() *cobra.Command {
	timeout := durationValue{zero: true}
	cmd := &cobra.Command{
		Use:   "wait RUN...",
		Short: "Wait until runs have ended",
		Long: `Wait until all of the runs have ended, and show how. The exit code is 0 only if
all succeeded; else it is the first one, in the order of the arguments, that is
not 0, by the same table as for errand run. When --timeout passes first it is
124, and the runs go on.`,
		Example: `  errand wait RUN1 RUN2
  errand wait --timeout 5m RUN || echo not in time, or failed`,
		Args:              a.someRuns,
		ValidArgsFunction: a.completeRun(activeRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.wait(cmd.Context(), args, timeout)
		},
	}
	cmd.Flags().Var(&timeout, "timeout", "give up after this time, as in 90s; 0 only looks (default never)")
	a.registerWhole(cmd.Flags())
	must(cmd.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions))
	return cmd
}

func (a *app) wait(ctx context.Context, ids []string, timeout durationValue) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var deadline time.Time
	if timeout.set {
		deadline = time.Now().Add(timeout.value)
	}
	asking := ctx
	if timeout.set && timeout.value > 0 {
		var cancel context.CancelFunc
		asking, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	// All of them first: an id that does not exist is told at once.
	runs := make([]*errandv1.Run, len(ids))
	for i, id := range ids {
		if runs[i], err = c.patient.Get(asking, id); err != nil {
			if asking.Err() != nil && ctx.Err() == nil {
				return notInTime("the timeout passed, and %s did not answer", c.patient.Address())
			}
			return c.explain(err)
		}
	}
	for i, run := range runs {
		if terminal(run.GetStatus()) {
			continue
		}
		left := time.Duration(0)
		if timeout.set {
			if left = time.Until(deadline); left <= 0 {
				continue
			}
		}
		if runs[i], err = c.wait(ctx, run.GetId(), left); err != nil {
			return err
		}
		if runs[i] == nil {
			return notInTime("the timeout passed, and %s does not answer any more: whether run %s has ended is not known", c.patient.Address(), run.GetId())
		}
	}
	if err := a.print(viewRuns(runs), func() error {
		return writeTable(a.stdout, a.style(), runsHeader, a.runRows(runs))
	}); err != nil {
		return err
	}
	return a.waited(runs)
}

// waited maps the outcome of several runs to one exit code.
func (a *app) waited(runs []*errandv1.Run) error {
	code := 0
	var going []string
	for _, run := range runs {
		if !terminal(run.GetStatus()) {
			going = append(going, run.GetId())
		} else if code == 0 {
			code = exitCodeOf(run)
		}
	}
	if len(going) > 0 {
		return notInTime("the timeout passed; still going: %s", strings.Join(going, ", "))
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// notInTime is that the timeout of errand wait has passed.
func notInTime(format string, arguments ...any) error {
	f := broken(codeTimeout, format, arguments...)
	f.exit = ExitTimedOut
	return f
}

// wait waits until the run has ended or the timeout passed, 0 for none, and
// returns the run as it is then; nil when the timeout passed and the node did not answer
// any more.
func (c *connection) wait(ctx context.Context, id string, timeout time.Duration) (*errandv1.Run, error) {
	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	run, err := c.patient.Wait(waiting, id)
	if waiting.Err() != nil && ctx.Err() == nil && err != nil {
		looking, cancel := context.WithTimeout(ctx, lastLook)
		defer cancel()
		last, err := c.once.Get(looking, id)
		if err != nil && (looking.Err() != nil || client.CodeOf(err) == codes.Unreachable) && ctx.Err() == nil {
			return nil, nil //nolint:nilnil // not known
		}
		return last, c.explain(err)
	}
	return run, c.explain(err)
}
