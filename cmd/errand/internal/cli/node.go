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
	BootID       string     `json:"bootId"`
	RegisteredAt *time.Time `json:"registeredAt,omitempty"`
}

func viewNode(node *errandv1.Node) nodeView {
	return nodeView{
		ID: node.GetId(), UUID: node.GetUuid(), Address: node.GetAddress(), Version: node.GetVersion(),
		Drivers: append([]string{}, node.GetDrivers()...), CPUMillis: node.GetCpuMillis(), MemoryBytes: node.GetMemoryBytes(),
		Sandboxes: node.GetSandboxes(), SandboxesMax: node.GetSandboxesMax(), Draining: node.GetDraining(),
		BootID: node.GetBootId(), RegisteredAt: instant(node.GetRegisteredAt()),
	}
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "node",
		Short:             "List, show and check the nodes",
		RunE:              group,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.AddCommand(a.listCommand("List the nodes", func(ctx context.Context, c *connection) error {
		nodes, err := c.once.Nodes(ctx)
		if err != nil {
			return c.explain(err)
		}
		return a.printNodes(nodes)
	}), a.nodeShowCommand(), a.nodeCheckCommand())
	return cmd
}

func (a *app) printNodes(nodes []*errandv1.Node) error {
	views := make([]nodeView, 0, len(nodes))
	rows := make([][]string, 0, len(nodes))
	for _, node := range nodes {
		view := viewNode(node)
		views = append(views, view)
		state := "ready"
		if view.Draining {
			state = "draining"
		}
		rows = append(rows, []string{
			view.ID, state, view.Address, view.Version, strings.Join(view.Drivers, ","),
			strconv.FormatFloat(float64(view.CPUMillis)/1000, 'f', -1, 64), bytesText(view.MemoryBytes),
			strconv.FormatInt(view.Sandboxes, 10) + "/" + strconv.FormatInt(view.SandboxesMax, 10),
			ago(a.now(), view.RegisteredAt),
		})
	}
	header := []string{"NODE", "STATE", "ADDRESS", "VERSION", "DRIVERS", "CPU", "MEMORY", "SANDBOXES", "REGISTERED"}
	return a.print(views, func() error { return writeTable(a.stdout, a.style(), header, rows) })
}
