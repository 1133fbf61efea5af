package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// namedRunsMax bounds the runs that the refusal of a removal names.
const namedRunsMax = 10

type nodeRemovalView struct {
	ID        string     `json:"id"`
	RemovedAt *time.Time `json:"removedAt,omitempty"`
	RemovedBy string     `json:"removedBy"`
	// Waiting are the runs that end by it, up to a bound, and WaitingCount says how many
	// there are; OthersCount are those that the node's fence ends.
	Waiting      []string `json:"waiting"`
	WaitingCount int64    `json:"waitingCount"`
	OthersCount  int64    `json:"othersCount"`
}

func (a *app) nodeRemoveCommand() *cobra.Command {
	var dead bool
	cmd := &cobra.Command{
		Use:   "rm NODE --i-know-it-is-dead",
		Short: "Say that a node's machine is dead for good",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "" {
				return nil
			}
			return usage("%s wants one NODE", cmd.CommandPath())
		},
		ValidArgsFunction: a.completeNode((*errandv1.Node).GetAway),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.removeNode(cmd.Context(), args[0], dead)
		},
	}
	cmd.Flags().BoolVar(&dead, "i-know-it-is-dead", false, "no process of its machine runs, or ever will again")
	return cmd
}

// removeNode gives the caller's word that a machine is dead. Without that word it says what
// it would do.
func (a *app) removeNode(ctx context.Context, id string, dead bool) error {
	if err := checkText("NODE", id); err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	lost, err := c.patient.RemoveNode(ctx, id, dead, a.caller())
	if err != nil {
		return c.explain(err)
	}
	if !dead {
		return refusedRemoval(id, lost)
	}
	view := nodeRemovalView{
		ID: id, RemovedAt: instant(lost.GetRemovedAt()), RemovedBy: lost.GetRemovedBy(),
		Waiting: append([]string{}, lost.GetWaiting()...), WaitingCount: lost.GetWaitingCount(), OthersCount: lost.GetOthersCount(),
	}
	return a.print(view, func() error { return a.writeRemoval(view) })
}

// refusedRemoval says what a word would do that was not given.
func refusedRemoval(id string, lost *errandv1.RemoveNodeResponse) *failure {
	text := fmt.Sprintf("node rm %s: nothing was done. No run waits for the node", id)
	if n := lost.GetWaitingCount(); n > 0 {
		named := lost.GetWaiting()[:min(len(lost.GetWaiting()), namedRunsMax)]
		text = fmt.Sprintf("node rm %s: nothing was done. It ends %s for good: %s", id, waitingText(n), strings.Join(named, ", "))
		if more := n - int64(len(named)); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	if n := lost.GetOthersCount(); n > 0 {
		text += fmt.Sprintf("; %d more of its runs end by themselves, or have another attempt, once the node must have stopped them", n)
	}
	f := usage("%s", text)
	f.hint = fmt.Sprintf("If no process of its machine runs, or ever will again, say so: errand node rm %s --i-know-it-is-dead", id)
	return f
}

func waitingText(n int64) string {
	if n == 1 {
		return "1 run that waits for the node"
	}
	return fmt.Sprintf("%d runs that wait for the node", n)
}

func (a *app) writeRemoval(view nodeRemovalView) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s is taken for dead, since %s, by the word of %s\n", view.ID, view.RemovedAt.Format(time.RFC3339), printable(view.RemovedBy))
	if view.WaitingCount > 0 {
		fmt.Fprintf(&text, "%s, FAILED (NODE_LOST) by it:\n", waitingText(view.WaitingCount))
	}
	for _, run := range view.Waiting {
		text.WriteString(printable(run) + "\n")
	}
	if _, err := fmt.Fprint(a.stdout, text.String()); err != nil {
		return err
	}
	if more := view.WaitingCount - int64(len(view.Waiting)); more > 0 {
		a.note("%d more waited for it", more)
	}
	if view.OthersCount > 0 {
		a.note("%d more of its runs end, or have another attempt, once the node must have stopped them", view.OthersCount)
	}
	return nil
}
