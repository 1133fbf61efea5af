package cli

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type historyView struct {
	Run    string      `json:"run"`
	Events []eventView `json:"events"`
	// LeftOut is how many events between the first ones and the last ones were not kept.
	LeftOut int32 `json:"leftOut"`
}

type eventView struct {
	At      *time.Time `json:"at,omitempty"`
	Kind    string     `json:"kind"`
	Attempt int32      `json:"attempt,omitempty"`
	Node    string     `json:"node,omitempty"`
	Message string     `json:"message"`
}

func viewEvent(event *errandv1.RunEvent) eventView {
	return eventView{
		At: instant(event.GetAt()), Kind: event.GetKind(), Attempt: event.GetAttempt(), Node: event.GetNode(), Message: event.GetMessage(),
	}
}

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events RUN",
		Short: "Show what became of a run",
		Long:  `Show what became of a run, oldest first. It is kept with the run, for as long as that is.`,
		Example: `  errand events RUN
  errand events -f RUN                 go on until the run has ended`,
		Args:              a.oneRun,
		ValidArgsFunction: a.completeRun(anyRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if follow {
				return a.followEvents(cmd.Context(), c, args[0])
			}
			return a.events(cmd.Context(), c, args[0])
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on and show each event until the run has ended")
	return cmd
}

var eventsHeader = []string{"AT", "EVENT", "ATTEMPT", "NODE", "WHAT"}

func eventRow(e eventView) []string {
	at, attempt := "", ""
	if e.At != nil {
		at = e.At.Format(time.RFC3339)
	}
	if e.Attempt > 0 {
		attempt = strconv.Itoa(int(e.Attempt))
	}
	return []string{at, e.Kind, attempt, e.Node, e.Message}
}

func (a *app) events(ctx context.Context, c *connection, id string) error {
	response, err := c.once.History(ctx, id)
	if err != nil {
		return c.explain(err)
	}
	view := historyView{Run: response.GetRun().GetId(), Events: []eventView{}, LeftOut: response.GetHistory().GetLeftOut()}
	rows := [][]string{}
	for _, event := range response.GetHistory().GetEvents() {
		e := viewEvent(event)
		view.Events = append(view.Events, e)
		rows = append(rows, eventRow(e))
	}
	return a.print(view, func() error {
		if view.LeftOut > 0 {
			a.note("%d events between the first ones and the last ones were not kept", view.LeftOut)
		}
		return writeTable(a.stdout, a.style(), eventsHeader, rows)
	})
}

// followEvents shows each event once, as it becomes known: what is known late comes late.
func (a *app) followEvents(ctx context.Context, c *connection, id string) error {
	shown := newTable(a.stdout, a.style(), eventsHeader)
	type identity struct {
		at                  int64
		kind, node, message string
		attempt             int32
	}
	told := map[identity]bool{}
	for state, err := range c.patient.WatchHistory(ctx, id) {
		if err != nil {
			return c.explain(err)
		}
		var news []eventView
		for _, event := range state.GetHistory().GetEvents() {
			this := identity{event.GetAt().AsTime().UnixMilli(), event.GetKind(), event.GetNode(), event.GetMessage(), event.GetAttempt()}
			if !told[this] {
				told[this] = true
				news = append(news, viewEvent(event))
			}
		}
		if err := a.showEvents(shown, news); err != nil {
			return err
		}
	}
	return nil
}

// showEvents writes one line, or one document, for each event.
func (a *app) showEvents(shown *table, news []eventView) error {
	if len(news) == 0 {
		return nil
	}
	if a.output == formatTable {
		rows := make([][]string, 0, len(news))
		for _, e := range news {
			rows = append(rows, eventRow(e))
		}
		return wrote(shown.write(rows))
	}
	for _, e := range news {
		document, err := json.Marshal(e)
		if err == nil && a.output == formatYAML {
			document, err = yaml.JSONToYAML(document)
			document = append([]byte("---\n"), document...)
		} else {
			document = append(document, '\n')
		}
		if err != nil {
			return broken(codeInternal, "write an event: %s", err)
		}
		if _, err := a.stdout.Write(document); err != nil {
			return wrote(err)
		}
	}
	return nil
}
