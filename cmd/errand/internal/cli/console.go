package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// consoleEndTime is how long a console that is left waits for the answer to its cancel.
// Its run ends without one too, a little later.
const consoleEndTime = 5 * time.Second

func (a *app) consoleCommand() *cobra.Command {
	flags := newSpecFlags()
	var detachKeys string
	cmd := &cobra.Command{
		Use:   "console [flags] IMAGE [-- COMMAND [ARG...]]",
		Short: "Run a command with a terminal that ends with it",
		Long: `Run a command interactively and exit with its exit code: at a terminal it has one,
else it reads what comes from stdin. Without a command the image's own entry point
runs.

The run ends with its console: when errand is left or killed, or its connection is
cut and not there again within 15 seconds, the run is canceled. It is never tried
again. 'errand attach --take RUN' takes it over.`,
		Example: `  errand console busybox
  errand console -e DEBUG=1 -w /srv busybox -- sh -l
  errand console --driver process -- bash`,
		ValidArgsFunction: a.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(detachKeys)
			if err != nil {
				return err
			}
			request, err := a.createRequest(cmd, args, flags)
			if err != nil {
				return err
			}
			return a.console(cmd.Context(), request, keys)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&detachKeys, "detach-keys", detachKeysDefault, "the keys that leave the console, and so end it, or none")
	must(cmd.RegisterFlagCompletionFunc("detach-keys", cobra.NoFileCompletions))
	return cmd
}

func (a *app) console(ctx context.Context, request *errandv1.CreateRunRequest, keys []byte) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	request.Trigger = errandv1.Trigger_TRIGGER_CONSOLE
	t := &attendance{app: a, c: c, ends: true, typing: &typing{app: a, c: c, keys: keys, terminal: a.stdinTerminal()}}
	request.Spec.Stdin, request.Spec.Terminal = t.typing.terminal == nil, t.typing.terminal != nil
	return t.run(ctx, request)
}

// end cancels the run of a console that was left.
func (t *attendance) end(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), consoleEndTime)
	defer cancel()
	_, err := t.c.once.Cancel(ctx, &errandv1.CancelRunRequest{Id: id, By: t.app.caller()})
	_ = err // whatever it is, the node ends the run without being asked
}
