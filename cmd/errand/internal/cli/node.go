package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type nodeView struct {
	ID           string     `json:"id"`
	UUID         string     `json:"uuid"`
	Address      string     `json:"address"`
	Version      string     `json:"version"`
	Drivers      []string   `json:"drivers"`
	CPUMillis    int64      `json:"cpuMillis"`
	MemoryBytes  int64      `json:"memoryBytes"`
	Sandboxes    int64      `json:"sandboxes"`
	SandboxesMax int64      `json:"sandboxesMax"`
	Draining     bool       `json:"draining"`
	Away         bool       `json:"away"`
	BootID       string     `json:"bootId"`
	RegisteredAt *time.Time `json:"registeredAt,omitempty"`
	// LostScore are the drivers that could not start what runs have brought there.
	LostScore []lostScoreView `json:"lostScore,omitempty"`
	// Unready is why it takes no runs, as far as it says so itself.
	Unready []string `json:"unready,omitempty"`
}

type lostScoreView struct {
	Driver string     `json:"driver"`
	Runs   int32      `json:"runs"`
	Share  int32      `json:"share"`
	Cause  string     `json:"cause"`
	At     *time.Time `json:"at,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
}

func viewNode(node *errandv1.Node) nodeView {
	view := nodeView{
		ID: node.GetId(), UUID: node.GetUuid(), Address: node.GetAddress(), Version: node.GetVersion(),
		Drivers: append([]string{}, node.GetDrivers()...), CPUMillis: node.GetCpuMillis(), MemoryBytes: node.GetMemoryBytes(),
		Sandboxes: node.GetSandboxes(), SandboxesMax: node.GetSandboxesMax(), Draining: node.GetDraining(), Away: node.GetAway(),
		BootID: node.GetBootId(), RegisteredAt: instant(node.GetRegisteredAt()), Unready: node.GetUnready(),
	}
	for _, l := range node.GetLostScore() {
		view.LostScore = append(view.LostScore, lostScoreView{
			Driver: l.GetDriver(), Runs: l.GetRuns(), Share: l.GetShare(), Cause: l.GetCause(), At: instant(l.GetAt()), Until: instant(l.GetUntil()),
		})
	}
	return view
}

// stateText says in a word or two how the node is.
func (v nodeView) stateText() string {
	state := "ready"
	switch {
	case v.Away:
		return "away"
	case v.Draining:
		state = "draining"
	case len(v.Unready) > 0:
		state = "not ready"
	}
	if len(v.LostScore) > 0 {
		state += ", failed starts"
	}
	return state
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "node",
		Short:             "List, show, check and remove nodes",
		RunE:              group,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.AddCommand(a.listCommand("List the nodes", func(ctx context.Context, c *connection) error {
		nodes, err := c.once.Nodes(ctx)
		if err != nil {
			return c.explain(err)
		}
		return a.printNodes(nodes)
	}), a.nodeShowCommand(), a.nodeCheckCommand(), a.nodeRemoveCommand())
	return cmd
}

func (a *app) printNodes(nodes []*errandv1.Node) error {
	views := make([]nodeView, 0, len(nodes))
	rows := make([][]string, 0, len(nodes))
	for _, node := range nodes {
		view := viewNode(node)
		views = append(views, view)
		rows = append(rows, []string{
			view.ID, view.stateText(), view.Address, view.Version, strings.Join(view.Drivers, ","),
			strconv.FormatFloat(float64(view.CPUMillis)/1000, 'f', -1, 64), bytesText(view.MemoryBytes),
			strconv.FormatInt(view.Sandboxes, 10) + "/" + strconv.FormatInt(view.SandboxesMax, 10),
			ago(a.now(), view.RegisteredAt),
		})
	}
	header := []string{"NODE", "STATE", "ADDRESS", "VERSION", "DRIVERS", "CPU", "MEMORY", "SANDBOXES", "REGISTERED"}
	return a.print(views, func() error { return writeTable(a.stdout, a.style(), header, rows) })
}
