package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// whyView is an explanation. Its codes are stable, its messages are for people.
type whyView struct {
	Run    string      `json:"run"`
	Status string      `json:"status"`
	Causes []causeView `json:"causes"`
}

type causeView struct {
	Code    string     `json:"code"`
	Message string     `json:"message"`
	Node    string     `json:"node,omitempty"`
	Attempt int32      `json:"attempt,omitempty"`
	At      *time.Time `json:"at,omitempty"`
}

func viewWhy(response *errandv1.ExplainRunResponse) whyView {
	view := whyView{
		Run: response.GetRun().GetId(), Status: word(response.GetRun().GetStatus().String(), "STATUS_"), Causes: []causeView{},
	}
	for _, cause := range response.GetCauses() {
		view.Causes = append(view.Causes, causeView{
			Code: cause.GetCode(), Message: cause.GetMessage(), Node: cause.GetNode(), Attempt: cause.GetAttempt(), At: instant(cause.GetAt()),
		})
	}
	return view
}

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why RUN",
		Short: "Say why a run is where it is",
		Long: `Say why a run waits, what is done for it, or how it came to its end. The first line
says where it is, those below why.`,
		Example: `  errand why RUN
  errand why -o json RUN | jq -r '.causes[].code'`,
		Args:              a.oneRun,
		ValidArgsFunction: a.completeRun(anyRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.why(cmd.Context(), args[0])
		},
	}
}

func (a *app) why(ctx context.Context, id string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	response, err := c.once.Explain(ctx, id)
	if err != nil {
		return c.explain(err)
	}
	view := viewWhy(response)
	return a.print(view, func() error {
		var lines strings.Builder
		for i, cause := range view.Causes {
			if i > 0 {
				lines.WriteString("  ")
			}
			lines.WriteString(cellText(cause.Message) + "\n")
		}
		_, err := fmt.Fprint(a.stdout, lines.String())
		return err
	})
}
