package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// driverProcess runs a command of the host, without an image.
const driverProcess = "process"

// specFlags say what to run and within which bounds.
type specFlags struct {
	name           string
	app            string
	env            []string
	envFiles       []string
	workdir        string
	user           string
	cpu            cpuValue
	memory         sizeValue
	pids           int64
	readOnly       bool
	timeout        durationValue
	startDeadline  durationValue
	stopGrace      durationValue
	labels         []string
	driver         string
	pull           string
	onNodeLoss     string
	idempotencyKey string
}

func newSpecFlags() *specFlags {
	return &specFlags{
		timeout: durationValue{most: timeoutMost}, startDeadline: durationValue{most: timeoutMost},
		stopGrace: durationValue{zero: true, most: stopGraceMost},
	}
}

type runFlags struct {
	*specFlags
	retry                         retryFlags
	detach, interactive, terminal bool
	detachKeys                    string
}

func (a *app) runCommand() *cobra.Command {
	flags := runFlags{specFlags: newSpecFlags()}
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE -- COMMAND [ARG...]",
		Short: "Run a command and exit with its exit code",
		Long: `Run a command in a sandbox, show what it writes and exit with its exit code.

The command's stdout goes to stdout and its stderr to stderr, unchanged. What is
behind -- is the command with its arguments; no shell looks at it. Without a
command the image's own entry point runs. With --driver process the command is
one of the node's machine, and there is no image.

Ctrl-C cancels the run and shows its output until it has ended; a second Ctrl-C
leaves the run to itself. With -d errand only starts the run and prints its id.
With -i the command is given stdin; with -it it has a terminal, the keys go to it
as they are, and ctrl-p ctrl-q leaves the run to itself. errand attach comes back.

Exit codes: the command's own; 124 when --timeout passed; 125 when errand, the
node or the sandbox failed; 126 when the command can not be executed; 127 when it
does not exist; 130 when the run was canceled; 2 for a wrong command line.`,
		Example: `  errand run busybox -- echo hello
  errand run --env GREETING=hi busybox -- sh -c 'echo $GREETING; exit 3'
  errand run --cpu 0.5 --memory 64MiB --timeout 10m busybox -- ./work
  errand run --driver process -- /usr/bin/uptime
  errand run -it busybox -- sh
  id=$(errand run -d busybox -- sleep 60); errand wait $id
  errand run -d --retries 3 --timeout 2h --name backup busybox -- ./backup`,
		ValidArgsFunction: a.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := a.createRequest(cmd, args, flags.specFlags)
			if err != nil {
				return err
			}
			if err := flags.retry.apply(cmd, request, &flags); err != nil {
				return err
			}
			return a.run(cmd.Context(), request, flags)
		},
	}
	flags.register(cmd)
	flags.retry.register(cmd)
	f := cmd.Flags()
	f.BoolVarP(&flags.detach, "detach", "d", false, "print the id of the run and leave it")
	f.BoolVarP(&flags.interactive, "interactive", "i", false, "give the command stdin")
	f.BoolVarP(&flags.terminal, "tty", "t", false, "give the command a terminal")
	f.StringVar(&flags.detachKeys, "detach-keys", detachKeysDefault, "with -it, the keys that leave the run to itself, or none")
	f.StringVar(&flags.idempotencyKey, "idempotency-key", "", "the same key and request give the same run, however often sent")
	for _, name := range []string{"detach-keys", "idempotency-key"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// register declares the flags of a command that makes a run.
func (flags *specFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&flags.name, "name", "", "a label for people; need not be unique")
	f.StringVar(&flags.app, "app", "", "the app that the run belongs to (default \"default\")")
	f.StringArrayVarP(&flags.env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass your own on")
	f.StringArrayVar(&flags.envFiles, "env-file", nil, "read variables from a file of NAME=VALUE lines")
	f.StringVarP(&flags.workdir, "workdir", "w", "", "working directory, an absolute path (default the image's, else /)")
	f.StringVarP(&flags.user, "user", "u", "", "user or user:group, by name or number (default the image's)")
	f.Var(&flags.cpu, "cpu", "limit of cores, as in 0.5 or 500m (default none)")
	f.Var(&flags.memory, "memory", "limit of memory, as in 64MiB or 512M (default none)")
	f.Int64Var(&flags.pids, "pids-limit", 0, "limit of processes and threads (default the node's)")
	f.BoolVar(&flags.readOnly, "read-only", false, "make the root file system read-only")
	f.Var(&flags.timeout, "timeout", "how long the command may run, as in 90s or 1h30m (default 8h)")
	f.Var(&flags.startDeadline, "start-deadline", "how long it may take until the command starts (default 5m)")
	f.Var(&flags.stopGrace, "stop-grace", "time between the stop signal and the kill (default 10s)")
	f.StringArrayVar(&flags.labels, "label", nil, "set a label: KEY=VALUE")
	f.StringVar(&flags.driver, "driver", "", "containerd, process or null (default the node's)")
	f.StringVar(&flags.pull, "pull", "missing", "when to ask the registry for the image: missing, always or never")
	f.StringVar(&flags.onNodeLoss, "on-node-loss", "", "when its node is lost: fail, or wait for the node and let what runs there go on (default fail; with --retries another attempt)")
	must(cmd.RegisterFlagCompletionFunc("on-node-loss", cobra.FixedCompletions([]string{"fail", "wait"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions([]string{"containerd", "process", "null"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]string{"missing", "always", "never"}, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"name", "app", "env", "workdir", "user", "cpu", "memory", "pids-limit", "timeout", "start-deadline", "stop-grace", "label"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// createRequest turns the command line into the request. It refuses what can not
// be meant; what is allowed is for the node to say.
func (a *app) createRequest(cmd *cobra.Command, args []string, flags *specFlags) (*errandv1.CreateRunRequest, error) {
	image, command, err := splitAtDash(cmd.CommandPath(), args, cmd.ArgsLenAtDash(), flags.driver)
	if err != nil {
		return nil, err
	}
	env, err := a.environment(flags.envFiles, flags.env)
	if err != nil {
		return nil, err
	}
	labels, err := parseLabels("--label", flags.labels)
	if err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("pids-limit") && flags.pids < 1 {
		return nil, usage("--pids-limit %d: must be 1 or more", flags.pids)
	}
	if cmd.Flags().Changed("idempotency-key") && flags.idempotencyKey == "" {
		return nil, usage("--idempotency-key is empty: without a key of your own leave the flag out")
	}
	if flags.workdir != "" && !strings.HasPrefix(flags.workdir, "/") {
		return nil, usage("--workdir %q: must be an absolute path", flags.workdir)
	}
	if err := checkCommand(command); err != nil {
		return nil, err
	}
	for what, text := range map[string]string{
		"IMAGE": image, "--name": flags.name, "--app": flags.app, "--workdir": flags.workdir,
		"--user": flags.user, "--driver": flags.driver, "--idempotency-key": flags.idempotencyKey,
	} {
		if err := checkText(what, text); err != nil {
			return nil, err
		}
	}
	pull, err := parsePull(flags.pull)
	if err != nil {
		return nil, err
	}
	retry, err := parseOnNodeLoss(flags.onNodeLoss)
	if err != nil {
		return nil, err
	}
	key := flags.idempotencyKey
	if key == "" {
		// Sent again after a lost answer, the request must not make a second run.
		key = "errand-" + rand.Text()
	}
	return &errandv1.CreateRunRequest{
		App:            flags.app,
		Name:           flags.name,
		Labels:         labels,
		Trigger:        errandv1.Trigger_TRIGGER_MANUAL,
		IdempotencyKey: key,
		Spec: &errandv1.RunSpec{
			Driver: flags.driver, Image: image, Command: command, Env: env,
			WorkingDir: flags.workdir, User: flags.user,
			CpuMillis: int64(flags.cpu), MemoryBytes: int64(flags.memory),
			PidsLimit: flags.pids, ReadOnlyRoot: flags.readOnly, Pull: pull,
			Timeout: flags.timeout.proto(), StartDeadline: flags.startDeadline.proto(), StopGrace: flags.stopGrace.proto(),
			Retry: retry,
		},
	}, nil
}

// parsePull leaves the default out: a request without it is the same.
func parsePull(text string) (errandv1.PullPolicy, error) {
	switch text {
	case "missing":
		return errandv1.PullPolicy_PULL_POLICY_UNSPECIFIED, nil
	case "always":
		return errandv1.PullPolicy_PULL_POLICY_ALWAYS, nil
	case "never":
		return errandv1.PullPolicy_PULL_POLICY_NEVER, nil
	}
	return 0, usage("--pull %q: must be missing, always or never", text)
}

// parseOnNodeLoss leaves the default out, like parsePull.
func parseOnNodeLoss(text string) (*errandv1.Retry, error) {
	switch text {
	case "":
		return nil, nil
	case "fail":
		return &errandv1.Retry{OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_FAIL}, nil
	case "wait":
		return &errandv1.Retry{OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT}, nil
	}
	return nil, usage("--on-node-loss %q: must be fail or wait", text)
}

func (d *durationValue) proto() *durationpb.Duration {
	if !d.set {
		return nil
	}
	return durationpb.New(d.value)
}

// splitAtDash parts the arguments into image and command. dash is the number of
// arguments before --, or -1 without one.
func splitAtDash(path string, args []string, dash int, driver string) (image string, command []string, err error) {
	before := args
	if dash >= 0 {
		before, command = args[:dash], args[dash:]
	}
	see := "See '" + path + " --help'."
	switch {
	case driver == driverProcess && len(before) > 0:
		f := usage("--driver process takes no image, and %q stands before --", before[0])
		f.hint = fmt.Sprintf("Put -- before the command: %s --driver process -- %s\n%s", path, commandLine(args), see)
		return "", nil, f
	case len(before) > 1:
		f := usage("one IMAGE is wanted, and %q follows it", before[1])
		f.hint = fmt.Sprintf("Put -- before the command: %s %s -- %s\n%s", path, before[0], commandLine(args[1:]), see)
		return "", nil, f
	case driver == driverProcess && len(command) == 0:
		f := usage("--driver process wants a command")
		f.hint = "As in: " + path + " --driver process -- /usr/bin/uptime\n" + see
		return "", nil, f
	case len(before) == 0 && len(command) == 0:
		f := usage("an IMAGE is wanted")
		f.hint = "As in: " + path + " busybox -- echo hello\n" + see
		return "", nil, f
	case len(before) == 1 && before[0] == "":
		return "", nil, usage("IMAGE is empty")
	case len(command) > 0 && command[0] == "":
		return "", nil, usage("the command is empty")
	}
	if len(before) == 1 {
		image = before[0]
	}
	return image, command, nil
}

func (a *app) run(ctx context.Context, request *errandv1.CreateRunRequest, flags runFlags) error {
	keys, err := parseKeys(flags.detachKeys)
	if err != nil {
		return err
	}
	request.Spec.Stdin, request.Spec.Terminal = flags.interactive, flags.terminal
	terminal := a.stdinTerminal()
	if flags.terminal && !flags.detach && terminal == nil {
		f := usage("-t wants a terminal, and stdin is none")
		f.hint = "Leave -t out, or add -d and attach later: errand attach RUN"
		return f
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	if !flags.detach {
		t := &attendance{app: a, c: c}
		if flags.interactive {
			t.typing = &typing{app: a, c: c, keys: keys}
			if flags.terminal {
				t.typing.terminal = terminal
			}
		}
		return t.run(ctx, request)
	}
	run, err := c.patient.Submit(ctx, request)
	if err != nil {
		return c.explainCreate(err)
	}
	err = a.print(viewRun(run), func() error {
		_, err := fmt.Fprintln(a.stdout, run.GetId())
		return err
	})
	var f *failure
	if errors.As(err, &f) {
		f.hint = "Run " + run.GetId() + " was created, and goes on."
	}
	return err
}
