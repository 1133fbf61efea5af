package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	runsLimit   = 50  // what `errand runs` shows unless told otherwise
	runsPageMax = 500 // what the node sends at a time
	// examinedMax is how many runs and lines of history are looked at for those that
	// pass the filters, unless all are asked for.
	examinedMax = 20_000
)

type runsFlags struct {
	app      string
	statuses []string
	name     string
	labels   []string
	since    string
	limit    int
	quiet    bool
	watch    bool
}

func (a *app) runsCommand() *cobra.Command {
	var flags runsFlags
	cmd := &cobra.Command{
		Use:     "runs",
		Aliases: []string{"ls"},
		Short:   "List runs, the newest first",
		Long: `List runs: those that go on, the newest first, then those that have ended, the last one first.

With --watch, go on and show each change of a run as it happens, until interrupted. A
node that restarts meanwhile costs no change; where the changes of a longer absence can
not be told any more, the runs that have changed are listed.`,
		Example: `  errand runs --app shop --status FAILED --limit 10
  errand runs --label commit=4f1c2a9
  errand runs --since 24h --status FAILED,TIMED_OUT
  errand runs -q --status RUNNING | xargs errand cancel
  errand runs --watch --app shop -o json | jq -c '[.id, .status]'`,
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
	f.StringVar(&flags.since, "since", "", "only runs that go on or have ended since: 24h (ago) or a time in RFC 3339")
	f.IntVar(&flags.limit, "limit", runsLimit, "at most this many; 0 means all")
	f.BoolVarP(&flags.quiet, "quiet", "q", false, "print only ids")
	f.BoolVarP(&flags.watch, "watch", "w", false, "go on and show each change")
	a.registerWhole(f)
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
	var since time.Time
	switch {
	case flags.since == "":
	case flags.watch:
		return usage("--since and --watch do not go together: --watch begins with what is there and shows what changes from now on")
	default:
		if since, err = parseSince(a.now(), flags.since); err != nil {
			return err
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	if flags.watch {
		return a.watchRuns(ctx, c, request, flags)
	}
	runs, err := a.list(ctx, c, request, flags.limit, since)
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

// list reads pages until the limit, 0 for none, or until runs that have ended before
// since, the zero time for none. With a limit it does not go through all of a long
// history for a few runs that pass the filters.
func (a *app) list(ctx context.Context, c *connection, request *errandv1.ListRunsRequest, limit int, since time.Time) ([]*errandv1.Run, error) {
	request = proto.CloneOf(request)
	var runs []*errandv1.Run
	for examined := int64(0); ; {
		request.PageSize = runsPageMax
		if limit > 0 {
			request.PageSize = int32(min(limit-len(runs), runsPageMax)) //nolint:gosec // at most runsPageMax
		}
		page, err := c.once.List(ctx, request)
		if err != nil {
			return nil, c.explain(err)
		}
		found, past := endedSince(page, since)
		runs = append(runs, found...)
		examined += page.GetExamined()
		request.PageToken = page.GetNextPageToken()
		switch {
		case past, request.GetPageToken() == "", limit > 0 && len(runs) >= limit:
			return runs, nil
		case limit > 0 && examined >= examinedMax:
			a.note("looked at the newest %d runs%s for those asked for; '--limit 0' looks at all", examined, backTo(page))
			return runs, nil
		}
	}
}

// endedSince are the runs of a page that go on, or have ended since then. past tells that
// all that follow have ended before.
func endedSince(page *errandv1.ListRunsResponse, since time.Time) (runs []*errandv1.Run, past bool) {
	if since.IsZero() {
		return page.GetRuns(), false
	}
	past = page.GetExaminedBackTo() != nil && page.GetExaminedBackTo().AsTime().Before(since)
	for _, run := range page.GetRuns() {
		if run.GetEndedAt() != nil && run.GetEndedAt().AsTime().Before(since) {
			return runs, true // the last one that ended comes first
		}
		runs = append(runs, run)
	}
	return runs, past
}

// backTo says how far a list has come.
func backTo(page *errandv1.ListRunsResponse) string {
	if page.GetExaminedBackTo() == nil {
		return ""
	}
	return ", back to " + page.GetExaminedBackTo().AsTime().Format(time.RFC3339) + ","
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
	rows, style := make([][]string, 0, len(runs)), a.style()
	for _, run := range runs {
		view := viewRun(run)
		rows = append(rows, []string{
			style.runID(view.ID), view.Name, view.Status, listedReason(view), exitText(view.ExitCode),
			ago(a.now(), view.CreatedAt), a.ran(view.StartedAt, ranUntil(view)), commandText(view.Spec),
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

// ranUntil is when the command of a run ended. The run itself ends when its end is
// recorded, which is later by as long as its node was away; nil while it goes on.
func ranUntil(view runView) *time.Time {
	if n := len(view.Attempts); view.EndedAt != nil && n > 0 && view.Attempts[n-1].EndedAt != nil {
		return view.Attempts[n-1].EndedAt
	}
	return view.EndedAt
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
	words := spec.Command
	if spec.Image != "" {
		words = append([]string{spec.Image}, words...)
	}
	return commandLine(words)
}

// commandLine is how a command is typed at a shell.
func commandLine(words []string) string {
	quoted := make([]string, 0, len(words))
	for _, word := range words {
		if word == "" || strings.IndexFunc(word, special) >= 0 {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted = append(quoted, word)
	}
	return strings.Join(quoted, " ")
}

// special tells which characters some shell may look at.
func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_@%+=:,./-", r)
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
