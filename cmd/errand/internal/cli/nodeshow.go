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

type nodeDetailView struct {
	nodeView
	// Silent: the node itself did not answer, so what it keeps is not known.
	Silent           bool              `json:"silent"`
	Quarantined      []quarantinedView `json:"quarantined"`
	QuarantinedCount int64             `json:"quarantinedCount"`
	Pulls            []pullView        `json:"pulls"`
}

type quarantinedView struct {
	Sandbox string     `json:"sandbox,omitempty"`
	Driver  string     `json:"driver"`
	Run     string     `json:"run"`
	Attempt int32      `json:"attempt"`
	Since   *time.Time `json:"since,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
	Reason  string     `json:"reason"`
	Running bool       `json:"running"`
}

type pullView struct {
	Reference      string   `json:"reference"`
	Phase          string   `json:"phase"`
	Bytes          int64    `json:"bytes"`
	TotalBytes     int64    `json:"totalBytes"`
	BytesPerSecond int64    `json:"bytesPerSecond"`
	Runs           []string `json:"runs"`
}

func viewNodeDetail(response *errandv1.GetNodeResponse) nodeDetailView {
	node := response.GetNode()
	view := nodeDetailView{
		nodeView: viewNode(node), Silent: node.GetSilent(), Quarantined: []quarantinedView{}, QuarantinedCount: node.GetQuarantinedCount(),
		Pulls: []pullView{},
	}
	for _, q := range node.GetQuarantined() {
		view.Quarantined = append(view.Quarantined, quarantinedView{
			Sandbox: q.GetSandbox(), Driver: q.GetDriver(), Run: q.GetRun(), Attempt: q.GetAttempt(),
			Since: instant(q.GetSince()), Until: instant(q.GetUntil()), Reason: q.GetReason(), Running: q.GetRunning(),
		})
	}
	for _, p := range response.GetPulls() {
		view.Pulls = append(view.Pulls, pullView{
			Reference: p.GetReference(), Phase: word(p.GetPhase().String(), "PULL_PHASE_"), Bytes: p.GetBytes(), TotalBytes: p.GetTotalBytes(),
			BytesPerSecond: p.GetBytesPerSecond(), Runs: append([]string{}, p.GetRuns()...),
		})
	}
	return view
}

func (a *app) nodeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NODE",
		Short: "Show a node, what it keeps in quarantine and what it pulls",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "" {
				return nil
			}
			return usage("%s wants one NODE", cmd.CommandPath())
		},
		ValidArgsFunction: a.completeNode(anyNode),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showNode(cmd.Context(), args[0])
		},
	}
}

func (a *app) showNode(ctx context.Context, id string) error {
	if err := checkText("NODE", id); err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	response, err := c.once.Node(ctx, id)
	if err != nil {
		return c.explain(err)
	}
	view := viewNodeDetail(response)
	return a.print(view, func() error { return a.writeNode(view, response.GetPulls()) })
}

func (a *app) writeNode(view nodeDetailView, pulls []*errandv1.ImagePull) error {
	if err := writeFields(a.stdout, a.style(), a.nodeFields(view)); err != nil {
		return err
	}
	if err := a.writeLostScore(view.LostScore); err != nil {
		return err
	}
	if len(view.Quarantined) > 0 {
		rows := make([][]string, 0, len(view.Quarantined))
		for _, q := range view.Quarantined {
			state := "stopped"
			if q.Running {
				state = "being killed"
			}
			rows = append(rows, []string{q.Sandbox, q.Driver, q.Run, strconv.Itoa(int(q.Attempt)), state, ago(a.now(), q.Since), q.Reason})
		}
		if err := a.writeTitled("In quarantine", []string{"SANDBOX", "DRIVER", "CLAIMS RUN", "ATTEMPT", "STATE", "FOUND", "REASON"}, rows); err != nil {
			return err
		}
		if more := view.QuarantinedCount - int64(len(view.Quarantined)); more > 0 {
			a.note("%d more are in quarantine", more)
		}
	}
	if len(pulls) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(pulls))
	for _, p := range pulls {
		rows = append(rows, []string{p.GetReference(), pullText(p), strconv.Itoa(len(p.GetRuns())), ago(a.now(), instant(p.GetSince()))})
	}
	return a.writeTitled("Pulls", []string{"IMAGE", "PROGRESS", "RUNS", "BEGUN"}, rows)
}

// writeLostScore says for which drivers other nodes are rather asked than this one, and why.
func (a *app) writeLostScore(lost []lostScoreView) error {
	if len(lost) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(lost))
	for _, l := range lost {
		until := ""
		if l.Until != nil {
			until = "in " + span(max(l.Until.Sub(a.now()), 0))
		}
		share := fmt.Sprintf("by 1 of %d", l.Share)
		rows = append(rows, []string{l.Driver, strconv.Itoa(int(l.Runs)), share, ago(a.now(), l.At), until, l.Cause})
	}
	return a.writeTitled("Failed starts", []string{"DRIVER", "RUNS", "ASKED IN TURN", "LAST", "FORGOTTEN", "CAUSE"}, rows)
}

func (a *app) writeTitled(title string, header []string, rows [][]string) error {
	if _, err := fmt.Fprintf(a.stdout, "\n%s:\n", title); err != nil {
		return err
	}
	return writeTable(a.stdout, a.style(), header, rows)
}

func (a *app) nodeFields(view nodeDetailView) []field {
	state, quarantine := view.stateText(), strconv.FormatInt(view.QuarantinedCount, 10)+" sandboxes and outcomes"
	switch {
	case view.Away:
		state, quarantine = state+": it has no session, so its daemon does not run or can not reach the store", ""
	case view.Silent:
		state, quarantine = state+"; the node did not answer, this is what the store knows", ""
	}
	if len(view.Unready) > 0 {
		state += ": " + strings.Join(view.Unready, "; ")
	}
	registered := ""
	if view.RegisteredAt != nil {
		registered = view.RegisteredAt.Format(time.RFC3339) + " (" + ago(a.now(), view.RegisteredAt) + ")"
	}
	return []field{
		{"Node", view.ID},
		{"State", state},
		{"Address", view.Address},
		{"Version", view.Version},
		{"Drivers", strings.Join(view.Drivers, ", ")},
		{"CPU", strconv.FormatFloat(float64(view.CPUMillis)/1000, 'f', -1, 64)},
		{"Memory", bytesText(view.MemoryBytes)},
		{"Sandboxes", strconv.FormatInt(view.Sandboxes, 10) + " of " + strconv.FormatInt(view.SandboxesMax, 10)},
		{"Quarantine", quarantine},
		{"Registered", registered},
		{"UUID", view.UUID},
		{"Boot", view.BootID},
	}
}
