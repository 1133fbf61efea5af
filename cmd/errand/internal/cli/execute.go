// Package cli is the errand command line: flags in, calls of the public API
// out, and an exit code that scripts can trust.
//
// Execute is the whole program without its process: it reads no global but the
// names of user and machine, and the signals that the process gets while
// `errand run` attends a run. Each command
// has a file; around them are the pieces that they share:
//
//   - connection.go finds the node and the token; which failures are worth another
//     try, and how a log is read across lost connections, is package client's;
//   - explain.go turns a client's error into what to do about it;
//   - view.go is the JSON and YAML shape of what the API says, table.go the one
//     for people;
//   - exitcode.go is the table of exit codes, failure.go what went wrong and
//     what to do about it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/api/client"
)

// Version is what `errand version` prints; empty means what the build recorded.
var Version string

// app is one invocation: its streams, its environment and its global flags.
type app struct {
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	environ map[string]string
	now     func() time.Time
	// hostname names this machine, account the user whose process this is.
	hostname func() (string, error)
	account  func() (*user.User, error)

	address   string
	tokenFile string
	output    outputFormat

	patience client.Patience
	// quiet is how long an outage lasts before it is worth a word.
	quiet time.Duration
	// holdPause is how often somebody at a terminal is told what keeps a run from its
	// start; 0 means never.
	holdPause time.Duration
	conn      *connection
	// whole: tables are not cut at a terminal.
	whole bool
	// help is stdout for cobra's own commands.
	help *output
	// raw: the terminal is in raw mode, where a line feed alone moves no column.
	raw atomic.Bool
}

// Execute runs one command line and returns the exit code of the process. The
// environment is in the form of os.Environ. It returns when the command is done
// or ctx ends; it leaves no goroutine behind.
func Execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	return newApp(stdin, stdout, stderr, environ).execute(ctx, args)
}

func newApp(stdin io.Reader, stdout, stderr io.Writer, environ []string) *app {
	a := &app{
		stdin:    stdin,
		stdout:   stdout,
		stderr:   &sharedWriter{w: stderr},
		environ:  make(map[string]string, len(environ)),
		now:      time.Now,
		hostname: os.Hostname,
		account:  user.Current,
		output:   formatTable,
		quiet:    quietDefault,
	}
	if file, ok := stderr.(*os.File); ok && terminalWidth(file) > 0 {
		a.holdPause = holdPauseDefault
	}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			a.environ[name] = value
		}
	}
	return a
}

func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.help.err // of a help text, which cobra writes and does not look back at
	}
	if a.conn != nil {
		a.conn.patient.Close()
	}
	if word, ok := unknownWord(err); ok {
		err = unknownCommand(root, word)
	}
	return a.finish(err, args)
}

// finish says what went wrong, if anything did, and maps it to the exit code.
func (a *app) finish(err error, args []string) int {
	var status exitStatus
	if err == nil {
		return 0
	}
	if errors.As(err, &status) {
		return int(status)
	}
	var f *failure
	switch {
	case errors.As(err, &f):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		f = broken(codeInterrupted, "interrupted")
		f.exit = ExitCanceled
	default:
		// Everything else comes from cobra before a command of ours began: an
		// unknown command, a flag or an argument that it does not take.
		f = usage("%s", strings.TrimRight(err.Error(), "\n"))
		f.hint = "See 'errand --help'."
	}
	f.write(a.stderr, a.output == formatJSON || asksForJSON(args))
	return f.exit
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "errand",
		Short: "Run commands in sandboxes and get their exit codes",
		Long: `Errand runs a command on a node: one sandbox, one command, one exit code,
then teardown. Each execution is a run, a record that outlives its sandbox.`,
		Example: `  errand run busybox -- echo hello        run a command in an image
  errand run -d busybox -- sleep 60       start it and print the id of its run
  errand logs -f RUN                      follow what it writes
  errand runs                             what runs and what ran`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.help = &output{w: a.stdout}
	root.SetIn(a.stdin)
	root.SetOut(a.help)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		f := usage("%s", flagErrorText(err))
		f.hint = fmt.Sprintf("See '%s --help'.", cmd.CommandPath())
		if (cmd.Name() == "run" || cmd.Name() == "console") && !strings.HasPrefix(err.Error(), "invalid") {
			f.hint = flagHint(cmd, err) + "\n" + f.hint
		}
		return f
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", "", "where the node answers (default $ERRAND_ADDRESS, else "+DefaultAddress+")")
	flags.StringVar(&a.tokenFile, "token-file", "", "file with the API token (default $ERRAND_DATA/api.token; $ERRAND_TOKEN has precedence)")
	flags.VarP(&a.output, "output", "o", "table, json or yaml")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	must(root.MarkPersistentFlagFilename("token-file"))
	var version bool
	root.Flags().BoolVar(&version, "version", false, "print the version of errand")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if version && len(args) == 0 {
			return a.printVersion()
		}
		return group(cmd, args)
	}
	root.AddCommand(
		a.runCommand(), a.runsCommand(), a.showCommand(), a.whyCommand(), a.eventsCommand(), a.logsCommand(), a.waitCommand(),
		a.cancelCommand(), a.attachCommand(), a.consoleCommand(), a.execCommand(), a.copyCommand(), a.imageCommand(), a.nodeCommand(), a.versionCommand(),
	)
	refuseUnknownTopics(root)
	return root
}

// refuseUnknownTopics makes an error of what cobra's own commands answer with a
// help text and success: a shell that is not supported would source that text.
func refuseUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, group
		case "help":
			cmd.Run = nil
			cmd.RunE = func(_ *cobra.Command, args []string) error {
				topic, rest, err := root.Find(args)
				if err != nil {
					return group(root, args)
				}
				if len(rest) > 0 && topic.HasSubCommands() {
					return group(topic, rest)
				}
				topic.InitDefaultHelpFlag()
				return topic.Help()
			}
		}
	}
}

// flagErrorText says what is wrong with a number or a truth value in plain words.
func flagErrorText(err error) string {
	var number *strconv.NumError
	if !errors.As(err, &number) {
		return err.Error()
	}
	why := "must be a whole number"
	switch {
	case number.Func == "ParseBool":
		why = "must be true or false"
	case errors.Is(number, strconv.ErrRange):
		why = "is out of range"
	}
	return strings.TrimSuffix(err.Error(), number.Error()) + why
}

// group is what a command that only holds others does: it shows its help, or
// says that the one asked for does not exist.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

// listCommand is the "ls" of a group.
func (a *app) listCommand(short string, list func(context.Context, *connection) error) *cobra.Command {
	return &cobra.Command{
		Use:               "ls",
		Aliases:           []string{"list"},
		Short:             short,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			return list(cmd.Context(), c)
		},
	}
}

// must panics on what only a mistake in this package can cause: a completion
// registered for a flag that does not exist.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// sharedWriter lets the goroutine that obeys interrupts write beside the one that
// shows a command's stderr.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// note writes one line for people to stderr, beside the output of a command.
func (a *app) note(format string, arguments ...any) {
	text := fmt.Sprintf("errand: "+format+"\n", arguments...)
	if a.raw.Load() {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	fmt.Fprint(a.stderr, text)
}

// isTerminal tells whether what is written to w is read by a person.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && terminalWidth(file) > 0
}
