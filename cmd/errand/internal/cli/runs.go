package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	runsLimit   = 50  // what `errand runs` shows unless told otherwise
	runsPageMax = 500 // what the node sends at a time
)

type runsFlags struct {
	app      string
	statuses []string
	name     string
	labels   []string
	limit    int
	quiet    bool
}

func (a *app) runsCommand() *cobra.Command {
	var flags runsFlags
	cmd := &cobra.Command{
		Use:     "runs",
		Aliases: []string{"ls"},
		Short:   "List runs, the newest first",
		Long:    `List runs: those that go on, the newest first, then those that have ended, the last one first.`,
		Example: `  errand runs --app shop --status FAILED --limit 10
  errand runs --label commit=4f1c2a9
  errand runs -q --status RUNNING | xargs errand cancel`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.listRuns(cmd.Context(), flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.app, "app", "", "only runs of this app")
	f.StringSliceVar(&flags.statuses, "status", nil, "only runs with this status, as in RUNNING or FAILED,TIMED_OUT")
	f.StringVar(&flags.name, "name", "", "only runs with this name")
	f.StringArrayVarP(&flags.labels, "label", "l", nil, "only runs with this label: KEY=VALUE")
	f.IntVar(&flags.limit, "limit", runsLimit, "at most this many; 0 means all")
	f.BoolVarP(&flags.quiet, "quiet", "q", false, "print only ids")
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statusWords(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (a *app) listRuns(ctx context.Context, flags runsFlags) error {
	if flags.limit < 0 {
		return usage("--limit %d: must not be negative", flags.limit)
	}
	labels, err := parseLabels("--label", flags.labels)
	if err != nil {
		return err
	}
	request := &errandv1.ListRunsRequest{App: flags.app, Name: flags.name, Labels: labels}
	for _, text := range flags.statuses {
		status, ok := errandv1.Status_value["STATUS_"+strings.ToUpper(strings.ReplaceAll(text, "-", "_"))]
		if !ok || status == 0 {
			return usage("--status %q: must be one of %s", text, strings.Join(statusWords(), ", "))
		}
		request.Statuses = append(request.Statuses, errandv1.Status(status))
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	runs, err := c.list(ctx, request, flags.limit)
	if err != nil {
		return err
	}
	if flags.quiet {
		return a.printIDs(runs)
	}
	return a.print(viewRuns(runs), func() error {
		return writeTable(a.stdout, a.style(), runsHeader, a.runRows(runs))
	})
}

// list reads pages until the limit, 0 for none.
func (c *connection) list(ctx context.Context, request *errandv1.ListRunsRequest, limit int) ([]*errandv1.Run, error) {
	if limit > 0 {
		request.PageSize = int32(min(limit, runsPageMax))
	}
	var runs []*errandv1.Run
	for run, err := range c.once.All(ctx, request) {
		if err != nil {
			return nil, c.explain(err)
		}
		if runs = append(runs, run); len(runs) == limit {
			break
		}
	}
	return runs, nil
}

func (a *app) printIDs(runs []*errandv1.Run) error {
	var text strings.Builder
	for _, run := range runs {
		text.WriteString(printable(run.GetId()) + "\n")
	}
	_, err := fmt.Fprint(a.stdout, text.String())
	return wrote(err)
}

var runsHeader = []string{"ID", "NAME", "STATUS", "REASON", "EXIT", "CREATED", "RAN", "COMMAND"}

func (a *app) runRows(runs []*errandv1.Run) [][]string {
	rows := make([][]string, 0, len(runs))
	for _, run := range runs {
		view := viewRun(run)
		rows = append(rows, []string{
			view.ID, view.Name, view.Status, listedReason(view), exitText(view.ExitCode),
			ago(a.now(), view.CreatedAt), a.ran(view.StartedAt, view.EndedAt), commandText(view.Spec),
		})
	}
	return rows
}

// listedReason is why a run ended as it did, and of one that goes on why it is being
// stopped.
func listedReason(view runView) string {
	if view.Stopping != "" && view.EndedAt == nil {
		return "stopping: " + view.Stopping
	}
	return view.Reason
}

func exitText(code *int32) string {
	if code == nil {
		return ""
	}
	return strconv.Itoa(int(*code))
}

// ran is how long an attempt or run has been running or ran.
func (a *app) ran(from, to *time.Time) string {
	if from == nil {
		return ""
	}
	end := a.now()
	if to != nil {
		end = *to
	}
	return span(max(end.Sub(*from), 0))
}

func commandText(spec specView) string {
	words := make([]string, 0, len(spec.Command)+1)
	if spec.Image != "" {
		words = append(words, spec.Image)
	}
	for _, argument := range spec.Command {
		if argument == "" || strings.ContainsAny(argument, " \t\n\"'$`\\|&;<>()*?#~") {
			argument = "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
		}
		words = append(words, argument)
	}
	return strings.Join(words, " ")
}

func statusWords() []string {
	words := make([]string, 0, len(errandv1.Status_name))
	for number := int32(1); number < int32(len(errandv1.Status_name)); number++ { //nolint:gosec // a handful
		words = append(words, word(errandv1.Status_name[number], "STATUS_"))
	}
	return words
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := usage("%s takes no arguments, and %q was given", cmd.CommandPath(), args[0])
	f.hint = fmt.Sprintf("See '%s --help'.", cmd.CommandPath())
	return f
}

// oneRun and someRuns check the arguments of commands that name runs.
func (a *app) oneRun(cmd *cobra.Command, args []string) error {
	if err := a.someRuns(cmd, args); err != nil {
		return err
	}
	if len(args) > 1 {
		f := usage("%s takes one RUN, and %d were given", cmd.CommandPath(), len(args))
		f.hint = fmt.Sprintf("See '%s --help'.", cmd.CommandPath())
		return f
	}
	return nil
}

func (a *app) someRuns(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		f := usage("%s: which RUN?", cmd.CommandPath())
		f.hint = "'errand runs' lists them; the beginning of an id is enough where it is unique."
		return f
	}
	for _, arg := range args {
		if arg == "" {
			return usage("%s: the id of a RUN is empty", cmd.CommandPath())
		}
		if err := checkText("RUN", arg); err != nil {
			return err
		}
	}
	return nil
}
