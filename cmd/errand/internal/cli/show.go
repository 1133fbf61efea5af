package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run and its attempts",
		Example: `  errand show k.default.4tq            the beginning of an id is enough
  errand show -o json RUN | jq .status`,
		Args:              a.oneRun,
		ValidArgsFunction: a.completeRun(anyRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.show(cmd.Context(), args[0])
		},
	}
}

func (a *app) show(ctx context.Context, id string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	run, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	view := viewRun(run)
	return a.print(view, func() error {
		if err := writeFields(a.stdout, a.style(), a.fields(view)); err != nil {
			return err
		}
		if len(view.Attempts) == 0 {
			return nil
		}
		if _, err := fmt.Fprintln(a.stdout); err != nil {
			return err
		}
		if err := writeTable(a.stdout, a.style(), attemptsHeader, a.attemptRows(view)); err != nil {
			return err
		}
		return a.writeSignals(view)
	})
}

// writeSignals writes the stop signals of each attempt that was sent one.
func (a *app) writeSignals(view runView) error {
	var lines strings.Builder
	for _, attempt := range view.Attempts {
		if len(attempt.Signals) > 0 {
			fmt.Fprintf(&lines, "Signals of attempt %d: %s\n", attempt.Number, signalsText(attempt.Signals))
		}
	}
	if lines.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(a.stdout, "\n"+lines.String())
	return err
}

// signalsText says which signals were sent, when, and why where that differs from
// the one before. One that is known to have reached the process needs no word.
func signalsText(signals []sentSignalView) string {
	var texts []string
	reason := ""
	for _, sent := range signals {
		text := sent.Name
		if sent.At != nil {
			text += " at " + sent.At.Format(time.RFC3339)
		}
		var notes []string
		if sent.Reason != "" && sent.Reason != reason {
			notes = append(notes, sent.Reason)
		}
		reason = sent.Reason
		switch {
		case sent.Delivered == nil:
			notes = append(notes, "not known whether it reached the command")
		case !*sent.Delivered:
			notes = append(notes, "did not reach the command")
		}
		if len(notes) > 0 {
			text += " (" + strings.Join(notes, "; ") + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

var attemptsHeader = []string{"ATTEMPT", "NODE", "STATUS", "REASON", "EXIT", "SIGNAL", "STARTED", "RAN", "LOG"}

func (a *app) attemptRows(view runView) [][]string {
	rows := make([][]string, 0, len(view.Attempts))
	for _, attempt := range view.Attempts {
		reason := attempt.Reason
		if attempt.OOMKilled && reason != "OOM_KILLED" {
			reason = strings.TrimLeft(reason+" (out of memory)", " ")
		}
		log := "open"
		switch {
		case attempt.LogComplete:
			log = "complete"
		case attempt.EndedAt != nil:
			log = "incomplete"
		}
		signal := ""
		if attempt.Signal != 0 {
			signal = strconv.Itoa(int(attempt.Signal))
		}
		rows = append(rows, []string{
			strconv.Itoa(int(attempt.Number)), attempt.Node, attempt.Status, reason, exitText(attempt.ExitCode), signal,
			ago(a.now(), attempt.StartedAt), a.ran(attempt.StartedAt, attempt.EndedAt), log,
		})
	}
	return rows
}

type field struct{ name, value string }

func (a *app) fields(view runView) []field {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.Format(time.RFC3339) + " (" + ago(a.now(), t) + ")"
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(view.Labels)) {
		labels = append(labels, key+"="+view.Labels[key])
	}
	stopping := view.Stopping
	if view.EndedAt != nil {
		stopping = "" // the wish is fulfilled, or came too late
	}
	limits := []string{}
	if view.Spec.CPUMillis > 0 {
		limits = append(limits, "cpu "+strconv.FormatFloat(float64(view.Spec.CPUMillis)/1000, 'f', -1, 64))
	}
	if view.Spec.MemoryBytes > 0 {
		limits = append(limits, "memory "+bytesText(view.Spec.MemoryBytes))
	}
	if view.Spec.PidsLimit > 0 {
		limits = append(limits, "pids "+strconv.FormatInt(view.Spec.PidsLimit, 10))
	}
	return []field{
		{"Run", view.ID},
		{"Name", view.Name},
		{"App", view.App},
		{"Task", view.Task},
		{"Status", view.Status},
		{"Reason", view.Reason},
		{"Stopping", stopping},
		{"Message", view.Message},
		{"Exit code", exitText(view.ExitCode)},
		{"Trigger", view.Trigger},
		{"Labels", strings.Join(labels, ", ")},
		{"Command", commandText(view.Spec)},
		{"Driver", view.Spec.Driver},
		{"Environment", strings.Join(view.Spec.EnvNames, ", ")},
		{"Directory", view.Spec.WorkingDir},
		{"User", view.Spec.User},
		{"Limits", strings.Join(limits, ", ")},
		{"Timeout", view.Spec.Timeout},
		{"Retries", view.Spec.Retry.text()},
		{"Created", at(view.CreatedAt)},
		{"Queued", at(view.QueuedAt)},
		{"Not before", at(view.NotBefore)},
		{"Started", at(view.StartedAt)},
		{"Ended", at(view.EndedAt)},
		{"Ran", a.ran(view.StartedAt, ranUntil(view))},
		{"Writes", countText(view.Transactions)},
	}
}

// countText is empty for what is not known.
func countText(count int64) string {
	if count == 0 {
		return ""
	}
	return strconv.FormatInt(count, 10)
}

// writeFields writes the fields that have a value, one a line.
func writeFields(w io.Writer, s style, fields []field) error {
	for _, field := range fields {
		if field.value == "" {
			continue
		}
		value := cellText(field.value)
		if s.colour {
			value = coloured(value)
		}
		if _, err := fmt.Fprintf(w, "%-12s %s\n", field.name+":", value); err != nil {
			return err
		}
	}
	return nil
}
