package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestFlagsOfOtherToolsAreAnsweredWithWhatDoesTheJobHere(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1") // nothing answers there
	dash := "Flags of the command itself go behind --"
	for name, c := range map[string]struct {
		args []string
		want string
		dash bool
	}{
		"a volume":                    {[]string{"run", "-v", "/data:/data", "x"}, "errand cp", false},
		"a volume in full":            {[]string{"run", "--volume=/data:/data", "x"}, "--driver process", false},
		"a port":                      {[]string{"run", "-p", "80:80", "x"}, "loopback only", false},
		"the host's network":          {[]string{"run", "--network", "host", "x"}, "loopback only", false},
		"cores":                       {[]string{"run", "--cpus", "2", "x"}, "Did you mean --cpu?", false},
		"memory in short":             {[]string{"run", "-m", "64m", "x"}, "Did you mean --memory?", false},
		"removal":                     {[]string{"run", "--rm", "x"}, "Leave it out", false},
		"an entry point":              {[]string{"run", "--entrypoint", "sh", "x"}, "behind --", false},
		"a restart policy":            {[]string{"run", "--restart", "on-failure:3", "x"}, "--retries", false},
		"a schedule":                  {[]string{"run", "--cron", "0 2 * * *", "x"}, "--idempotency-key", false},
		"a secret":                    {[]string{"run", "--secret", "x", "x"}, "no place for secrets", false},
		"privileges of a console":     {[]string{"console", "--privileged", "x"}, "capabilities", false},
		"a flag behind the image":     {[]string{"run", "x", "-v", "/data:/data"}, "errand cp", true},
		"a flag of the command":       {[]string{"run", "x", "ls", "-v"}, dash, true},
		"a flag that nobody has":      {[]string{"run", "--nope", "x"}, dash, true},
		"a shorthand that nobody has": {[]string{"run", "-Z", "x"}, dash, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := i.run(c.args...)
			got.wantError(t, ExitUsage, c.want, "--help'.")
			if strings.Contains(got.stderr, dash) != c.dash {
				t.Errorf("whether it was meant for the command: %s", got.stderr)
			}
		})
	}
	if got := i.run("run", "x", "ls", "-v"); strings.Contains(got.stderr, "errand cp") {
		t.Errorf("a flag of the command is taken for one of docker: %s", got.stderr)
	}
}

func TestCommandsOfOtherToolsAreAnsweredWithOursAndThoseExist(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1")
	for word, meant := range map[string]string{
		"ps": "errand runs", "stop": "errand cancel", "images": "errand image ls", "inspect": "errand show",
		"explain": "errand why", "nodes": "errand node ls", "rnus": "errand runs",
	} {
		i.run(word, "-a").wantError(t, ExitUsage, "unknown command", word, "'"+meant+"'", "errand --help")
	}
	root := newApp(strings.NewReader(""), io.Discard, io.Discard, nil).root()
	for word, names := range commandHabits {
		for _, name := range names {
			if cmd, rest, err := root.Find(strings.Fields(name)); err != nil || (cmd.HasSubCommands() && len(rest) > 0) {
				t.Errorf("%s: there is no errand %s", word, name)
			} else if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: errand %s: %v", word, name, err)
			}
		}
		if cmd, _, err := root.Find([]string{word}); err == nil && cmd != root {
			t.Errorf("errand %s exists and needs no hint", word)
		}
	}
	run, _, err := root.Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range flagHabits {
		if has(run, name) {
			t.Errorf("errand run has the flag %s, which needs no hint", name)
		}
	}
}

func has(cmd *cobra.Command, flag string) bool {
	return cmd.Flag(flag) != nil || len(flag) == 1 && cmd.Flags().ShorthandLookup(flag) != nil
}
