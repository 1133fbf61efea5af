package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type nodeCheckView struct {
	ID string `json:"id"`
	// Clean: nothing is left, and all could be looked at.
	Clean     bool           `json:"clean"`
	Left      []leftoverView `json:"left"`
	LeftCount int64          `json:"leftCount"`
	Kept      []leftoverView `json:"kept"`
	KeptCount int64          `json:"keptCount"`
	Unseen    []string       `json:"unseen"`
	Sandboxes int64          `json:"sandboxes"`
	Things    int64          `json:"things"`
}

type leftoverView struct {
	Kind     string     `json:"kind"`
	Name     string     `json:"name"`
	Sandbox  string     `json:"sandbox,omitempty"`
	Run      string     `json:"run,omitempty"`
	Attempt  int32      `json:"attempt,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Removing bool       `json:"removing"`
	Reason   string     `json:"reason"`
	Outlook  string     `json:"outlook"`
}

func viewLeftovers(all []*errandv1.Leftover) []leftoverView {
	views := make([]leftoverView, 0, len(all))
	for _, one := range all {
		views = append(views, leftoverView{
			Kind: one.GetKind(), Name: one.GetName(), Sandbox: one.GetSandbox(), Run: one.GetRun(), Attempt: one.GetAttempt(),
			Since: instant(one.GetSince()), Removing: one.GetRemoving(), Reason: one.GetReason(), Outlook: one.GetOutlook(),
		})
	}
	return views
}

func (a *app) nodeCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [NODE]",
		Short: "List what is left on the node that no run accounts for",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return usage("%s wants one NODE at most", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: a.completeNode(anyNode),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := ""
			if len(args) == 1 {
				id = args[0]
			}
			return a.checkNode(cmd.Context(), id)
		},
	}
}

// checkNode shows what is left. The exit code says whether anything is.
func (a *app) checkNode(ctx context.Context, id string) error {
	if id != "" {
		if err := checkText("NODE", id); err != nil {
			return err
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	found, err := c.once.CheckNode(ctx, id)
	if err != nil {
		return c.explain(err)
	}
	view := nodeCheckView{
		ID: found.GetId(), Clean: found.GetLeftCount() == 0 && len(found.GetUnseen()) == 0,
		Left: viewLeftovers(found.GetLeft()), LeftCount: found.GetLeftCount(), Kept: viewLeftovers(found.GetKept()), KeptCount: found.GetKeptCount(),
		Unseen: append([]string{}, found.GetUnseen()...), Sandboxes: found.GetSandboxes(), Things: found.GetThings(),
	}
	if err := a.print(view, func() error { return a.writeNodeCheck(view) }); err != nil {
		return err
	}
	switch {
	case view.LeftCount > 0:
		return exitStatus(ExitLeft)
	case !view.Clean:
		return exitStatus(ExitErrand)
	default:
		return nil
	}
}

func (a *app) writeNodeCheck(view nodeCheckView) error {
	word := fmt.Sprintf("%d things are left", view.LeftCount)
	switch {
	case view.LeftCount == 1:
		word = "1 thing is left"
	case view.LeftCount == 0 && view.Clean:
		word = "nothing is left"
	case view.LeftCount == 0:
		word = "nothing is left of what could be looked at"
	}
	if _, err := fmt.Fprintf(a.stdout, "%s: %s; %d sandboxes of runs, %d things in all\n", view.ID, word, view.Sandboxes, view.Things); err != nil {
		return err
	}
	for _, what := range view.Unseen {
		if _, err := fmt.Fprintf(a.stdout, "not looked at: %s\n", what); err != nil {
			return err
		}
	}
	if err := a.writeLeftovers("Left", view.Left, view.LeftCount); err != nil {
		return err
	}
	return a.writeLeftovers("Kept for a while", view.Kept, view.KeptCount)
}

func (a *app) writeLeftovers(title string, all []leftoverView, count int64) error {
	if len(all) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(all))
	for _, one := range all {
		of := one.Sandbox
		if one.Run != "" {
			of = one.Run
		}
		rows = append(rows, []string{one.Kind, one.Name, of, ago(a.now(), one.Since), one.Reason, one.Outlook})
	}
	if err := a.writeTitled(title, []string{"KIND", "NAME", "OF", "SINCE", "WHY", "WHAT NEXT"}, rows); err != nil {
		return err
	}
	if more := count - int64(len(all)); more > 0 {
		a.note("%d more are there", more)
	}
	return nil
}
