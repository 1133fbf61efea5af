package cli

import (
	"context"
	"errors"
	"math"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// attachTailDefault is how much of what was written before is shown.
const attachTailDefault = 100

type attachFlags struct {
	noStdin    bool
	take       bool
	tail       int
	detachKeys string
}

func (a *app) attachCommand() *cobra.Command {
	var flags attachFlags
	cmd := &cobra.Command{
		Use:   "attach [flags] RUN",
		Short: "Give a run input and show what it writes",
		Long: `Show what a run wrote last and what it goes on to write, give its command what
comes from stdin, and exit with its exit code. The run must have been made with an
input (errand run -i or -t, errand console); of another one only the output is
shown. One that has not started yet is waited for.

Of a run with a terminal the keys go to the command as they are; ctrl-p ctrl-q
leaves the run to itself, and so does whatever ends errand. Of another one, signals
that errand gets are passed on to the command, and a second Ctrl-C leaves the run.
Only one gives a run input: a second one is refused, unless it takes it (--take).

After a restart of the node errand attaches again and says so.`,
		Example: `  errand attach RUN
  errand attach --no-stdin --tail 20 RUN   only look; Ctrl-C leaves the run
  errand attach --take RUN                 take the input from whoever has it`,
		Args:              a.oneRun,
		ValidArgsFunction: a.completeRun(activeRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.attach(cmd.Context(), args[0], flags)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&flags.noStdin, "no-stdin", false, "give no input, only show the output")
	f.BoolVar(&flags.take, "take", false, "take the input from whoever has it")
	f.IntVar(&flags.tail, "tail", attachTailDefault, "how many of the last lines to show first")
	f.StringVar(&flags.detachKeys, "detach-keys", detachKeysDefault, "the keys that leave the run to itself, or none")
	for _, name := range []string{"tail", "detach-keys"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

func (a *app) attach(ctx context.Context, id string, flags attachFlags) error {
	if flags.tail < 1 || flags.tail > math.MaxInt32 {
		return usage("--tail %d: must be 1 or more", flags.tail)
	}
	keys, err := parseKeys(flags.detachKeys)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	run, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	if terminal(run.GetStatus()) {
		f := broken("RUN_TERMINAL", "run %s has ended already: it is %s", run.GetId(), viewRun(run).Status)
		f.hint = "'errand logs " + run.GetId() + "' shows what it wrote, 'errand show " + run.GetId() + "' how it ended."
		return f
	}
	t := &attendance{app: a, c: c, tail: int32(flags.tail)}
	hasInput := run.GetSpec().GetStdin() || run.GetSpec().GetTerminal()
	switch {
	case flags.noStdin:
	case !hasInput:
		a.note("the command of run %s has no input: only its output is shown, Ctrl-C leaves it", run.GetId())
	default:
		t.typing = &typing{app: a, c: c, take: flags.take, keys: keys}
		if run.GetSpec().GetTerminal() {
			t.typing.terminal = a.stdinTerminal()
		}
	}
	return t.stay(ctx, run, t.passOrLeave)
}

// passOrLeave passes signals on to a command that has no terminal here; else the first
// one leaves the run.
func (t *attendance) passOrLeave(ctx context.Context, leave context.CancelCauseFunc, _ string) (stop func()) {
	if t.typing != nil && t.typing.terminal == nil {
		signals, stop := passSignals(ctx, func() { leave(errLeft) })
		t.typing.signals = signals
		return stop
	}
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-caught:
			leave(errLeft)
		case <-ctx.Done():
		}
	}()
	return func() {
		signal.Stop(caught)
		cancel()
		<-over
	}
}

// leftOf says how the user has left a run, and returns the exit code for it.
func (t *attendance) leftOf(err error, run *errandv1.Run) error {
	id := run.GetId()
	switch {
	case t.ends:
		t.app.note("run %s ends with its console", id)
	case run.GetTrigger() == errandv1.Trigger_TRIGGER_CONSOLE && t.typing != nil:
		t.app.note("no longer attached to run %s, a console: it ends in 15 seconds unless somebody attaches\nwith 'errand attach %s'", id, id)
	case errors.Is(err, errDetached):
		t.app.note("detached from run %s, which goes on\nattach again with 'errand attach %s', end it with 'errand cancel %s'", id, id, id)
		return nil
	default:
		t.app.note("no longer attending run %s, which may still be going\nsee it with 'errand show %s', follow it with 'errand logs -f %s'", id, id, id)
	}
	return exitStatus(ExitCanceled)
}
