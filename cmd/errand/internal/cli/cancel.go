package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func (a *app) cancelCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "cancel RUN...",
		Short: "Cancel runs",
		Long: `Ask for the end of runs, whether they have started or not, and print their ids.
The command gets the stop signal and, when the stop grace has passed, is killed.
errand answers once the wish is recorded; errand wait waits for the end.`,
		Example: `  errand cancel RUN && errand wait RUN
  errand cancel --force RUN            kill at once`,
		Args:              a.someRuns,
		ValidArgsFunction: a.completeRun(activeRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.cancel(cmd.Context(), args, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "kill at once, without the stop grace")
	return cmd
}

// cancel goes on after a run that can not be canceled: the others are to end.
func (a *app) cancel(ctx context.Context, ids []string, force bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	by := a.caller()
	var runs []*errandv1.Run
	var failures []*failure
	for _, id := range ids {
		run, err := c.patient.Cancel(ctx, &errandv1.CancelRunRequest{Id: id, Force: force, By: by})
		if err == nil {
			runs = append(runs, run)
			continue
		}
		var f *failure
		if !errors.As(c.explain(err), &f) {
			return err
		}
		failures = append(failures, f)
		if f.code == string(codes.Unreachable) {
			break
		}
	}
	if len(runs) > 0 || len(failures) == 0 {
		err = a.print(viewRuns(runs), func() error { return a.printIDs(runs) })
	}
	if err != nil || len(failures) == 0 {
		return err
	}
	for _, f := range failures[:len(failures)-1] {
		f.write(a.stderr, a.output == formatJSON)
	}
	last := failures[len(failures)-1]
	if len(ids) > 1 {
		last.hint = strings.TrimPrefix(last.hint+"\n", "\n") + fmt.Sprintf("%d of %d runs were canceled.", len(runs), len(ids))
	}
	return last
}
