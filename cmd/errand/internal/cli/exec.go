package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type execFlags struct {
	interactive bool
	terminal    bool
	env         []string
	workdir     string
	user        string
}

func (a *app) execCommand() *cobra.Command {
	var flags execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] RUN -- COMMAND [ARG...]",
		Short: "Run a command beside that of a run",
		Long: `Run a command in the sandbox of a run that is running, beside the run's own, and
exit with its exit code. It has the run's limits and privileges, is no part of the
run's record or log, and ends with errand and with the run.

A run that has not started yet is waited for. Signals that errand gets are passed
on; a second Ctrl-C leaves at once. With -t the keys go to the command as they are.

Exit codes: the command's own; 125 when errand or the node failed; 126 when the
command can not be executed; 127 when it does not exist.`,
		Example: `  errand exec RUN -- ps
  errand exec -it RUN -- sh
  errand exec -i RUN -- sh -c 'cat > /tmp/in' < in`,
		ValidArgsFunction: a.completeRun(activeRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, command, err := splitExec(args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			start, err := a.execStart(id, command, flags)
			if err != nil {
				return err
			}
			return a.exec(cmd.Context(), start, flags)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&flags.interactive, "interactive", "i", false, "pass stdin on")
	f.BoolVarP(&flags.terminal, "tty", "t", false, "give the command a terminal")
	f.StringArrayVarP(&flags.env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass your own on")
	f.StringVarP(&flags.workdir, "workdir", "w", "", "working directory, an absolute path (default the run's)")
	f.StringVarP(&flags.user, "user", "u", "", "user or user:group, by name or number (default the run's)")
	for _, name := range []string{"env", "workdir", "user"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// splitExec takes RUN and COMMAND apart; -- may stand between them.
func splitExec(args []string, dash int) (id string, command []string, err error) {
	const see = "As in: errand exec RUN -- ps\nSee 'errand exec --help'."
	if len(args) == 0 || dash == 0 {
		f := usage("errand exec: which RUN?")
		f.hint = see
		return "", nil, f
	}
	id, command = args[0], args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 || command[0] == "" {
		f := usage("errand exec: which COMMAND?")
		f.hint = see
		return "", nil, f
	}
	return id, command, nil
}

func (a *app) execStart(id string, command []string, flags execFlags) (*errandv1.ExecStart, error) {
	if id == "" {
		return nil, usage("errand exec: the id of a RUN is empty")
	}
	env, err := a.environment(nil, flags.env)
	if err != nil {
		return nil, err
	}
	if flags.workdir != "" && !strings.HasPrefix(flags.workdir, "/") {
		return nil, usage("--workdir %q: must be an absolute path", flags.workdir)
	}
	if err := checkCommand(command); err != nil {
		return nil, err
	}
	for what, text := range map[string]string{"RUN": id, "--workdir": flags.workdir, "--user": flags.user} {
		if err := checkText(what, text); err != nil {
			return nil, err
		}
	}
	return &errandv1.ExecStart{Id: id, Command: command, Env: env, WorkingDir: flags.workdir, User: flags.user}, nil
}

func (a *app) exec(ctx context.Context, start *errandv1.ExecStart, flags execFlags) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if start.Id, err = c.awaitStart(ctx, start.GetId()); err != nil {
		return err
	}
	exec := client.Exec{Start: start, Stdout: &output{w: a.stdout}, Stderr: a.stderr}
	if flags.interactive {
		exec.Stdin = a.stdin
	}
	if flags.terminal {
		restore, err := a.rawTerminal(ctx, &exec)
		if err != nil {
			return err
		}
		defer restore()
	} else {
		signals, stop := passSignals(ctx, cancel)
		defer stop()
		exec.Signals = signals
	}
	exited, err := c.once.Exec(ctx, exec)
	var lost *client.InputLostError
	if errors.As(err, &lost) {
		return stdinFailed(lost.Err, lost.Unsure)
	}
	if err != nil {
		return c.explain(err)
	}
	if code := exited.GetCode(); code != 0 {
		return exitStatus(code)
	}
	return nil
}

// awaitStart waits for a run that has not started yet to run, or to have ended, and
// returns its whole id.
func (c *connection) awaitStart(ctx context.Context, id string) (string, error) {
	run, err := c.get(ctx, id)
	if err != nil || run.GetStatus() != errandv1.Status_STATUS_PENDING {
		return run.GetId(), err
	}
	for run, err := range c.patient.Watch(ctx, run.GetId()) {
		if err != nil {
			return "", c.explain(err)
		}
		if run.GetStatus() != errandv1.Status_STATUS_PENDING {
			break
		}
	}
	return run.GetId(), nil
}

// passSignals brings the signals that this process gets. The second interrupt ends the
// call instead.
func passSignals(ctx context.Context, leave context.CancelFunc) (signals <-chan int32, stop func()) {
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	passed := make(chan int32)
	ctx, cancel := context.WithCancel(ctx)
	var passing sync.WaitGroup
	passing.Go(func() {
		interrupted := false
		var waiting []int32 // for the command to run
		for {
			var next int32
			var to chan<- int32
			if len(waiting) > 0 {
				next, to = waiting[0], passed
			}
			select {
			case s := <-caught:
				if s == os.Interrupt && interrupted {
					leave()
					return
				}
				interrupted = interrupted || s == os.Interrupt
				if number, ok := s.(syscall.Signal); ok && len(waiting) < cap(caught) {
					waiting = append(waiting, int32(number)) //nolint:gosec // a signal's number
				}
			case to <- next:
				waiting = waiting[1:]
			case <-ctx.Done():
				return
			}
		}
	})
	return passed, func() {
		signal.Stop(caught)
		cancel()
		passing.Wait()
	}
}

// rawTerminal hands the terminal over to the command until restore is called.
func (a *app) rawTerminal(ctx context.Context, exec *client.Exec) (restore func(), err error) {
	input, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(input.Fd())) {
		f := usage("-t wants a terminal, and stdin is none")
		f.hint = "Leave -t out: errand exec -i RUN -- COMMAND"
		return nil, f
	}
	exec.Start.Terminal = sizeOf(input)
	before, err := term.MakeRaw(int(input.Fd()))
	if err != nil {
		return nil, broken(codeInterrupted, "the terminal can not be handed over: %v", err)
	}
	resizes, stop := terminalSizes(ctx, input)
	exec.Resizes = resizes
	return func() {
		stop()
		_ = term.Restore(int(input.Fd()), before) // it may be gone
	}, nil
}
