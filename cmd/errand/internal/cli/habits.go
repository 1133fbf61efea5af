package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What people type who come from docker, kubectl, systemd, Nomad or cron, and what to
// do here instead. Nothing of it works; whoever types it is told what does.

const (
	habitFiles   = "A container sees no file of its host: bring files in with the image or with -i and stdin, out with errand cp. What must work on the host's files is a command of the host: --driver process"
	habitNetwork = "A container has a network of its own with loopback only. What needs the host's network is a command of the host: --driver process"
	habitRights  = "A container has no capabilities and no devices. What needs them is a command of the host: --driver process"
	habitTime    = "There are no schedules: let cron or a timer start the run, and give --idempotency-key \"NAME-$(date +%F)\" so that a day has one run only"
	habitSecret  = "There is no place for secrets: what --env sets is in the run's record, for whoever has the token" //nolint:gosec // a sentence
)

// flagHabits are hints for flags that run and console do not have, by their name.
var flagHabits = map[string]string{
	"v": habitFiles, "volume": habitFiles, "mount": habitFiles, "tmpfs": habitFiles, "volumes-from": habitFiles,
	"p": habitNetwork, "publish": habitNetwork, "expose": habitNetwork, "network": habitNetwork, "net": habitNetwork,
	"add-host": habitNetwork, "dns": habitNetwork, "link": habitNetwork,
	"privileged": habitRights, "cap-add": habitRights, "cap-drop": habitRights, "security-opt": habitRights, "device": habitRights, "gpus": habitRights,
	"cron": habitTime, "schedule": habitTime, "every": habitTime, "at": habitTime,
	"secret": habitSecret, "secrets": habitSecret,
	"rm":         "Leave it out: a sandbox is removed as soon as its command has ended; the record and the log stay",
	"init":       "Leave it out: a process that reaps stands beside each command",
	"cpus":       "Did you mean --cpu?",
	"c":          "Did you mean --cpu, or a command, which goes behind --?",
	"m":          "Did you mean --memory?",
	"l":          "Did you mean --label?",
	"entrypoint": "Leave it out: a command behind -- stands in the place of the image's own",
	"restart":    "A command that failed is tried again with -d --retries N",
	"retry":      "Did you mean --retries?",
	"wait":       "Leave it out: errand run waits, unless it is told -d",
	"background": "Did you mean --detach, -d?",
	"dry-run":    "Every run is run; errand cancel ends it",
}

// commandHabits are the commands that do the job of one that does not exist.
var commandHabits = map[string][]string{
	"ps": {"runs"}, "list": {"runs"}, "jobs": {"runs"}, "top": {"runs --watch"},
	"status": {"show", "runs"}, "inspect": {"show"}, "get": {"show", "runs"}, "describe": {"show", "why"}, "info": {"node show"},
	"stop": {"cancel"}, "kill": {"cancel --force"}, "rm": {"cancel"}, "delete": {"cancel"}, "abort": {"cancel"},
	"start": {"run -d"}, "submit": {"run -d"}, "create": {"run -d"}, "restart": {"run"},
	"log": {"logs"}, "tail": {"logs -f"}, "output": {"logs"}, "history": {"events", "runs"},
	"images": {"image ls"}, "pull": {"image pull"}, "load": {"image import"}, "import": {"image import"}, "rmi": {"image rm"},
	"nodes": {"node ls"}, "explain": {"why"}, "sh": {"console"}, "shell": {"console"},
}

// nearMost is how many commands of a similar name are named.
const nearMost = 3

// flagHint is what to do about a flag that run or console was given and does not take.
// What stands before the flag tells whether it was meant for errand or for the command.
func flagHint(cmd *cobra.Command, err error) string {
	dash := "Flags of the command itself go behind --, as in: " + cmd.CommandPath() + " IMAGE -- ls -l"
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return dash
	}
	habit := flagHabits[missing.GetSpecifiedName()]
	switch before := cmd.Flags().NArg(); {
	case habit == "" || before > 1:
		return dash
	case before == 1:
		return habit + "\n" + dash
	default:
		return habit
	}
}

// unknownCommand says that a group has no such command, and which may have been meant.
func unknownCommand(cmd *cobra.Command, word string) *failure {
	f := usage("unknown command %q for %q", word, cmd.CommandPath())
	var near []string
	if !cmd.HasParent() {
		near = commandHabits[word]
	}
	if len(near) == 0 {
		cmd.SuggestionsMinimumDistance = 2
		near = cmd.SuggestionsFor(word)
		near = near[:min(len(near), nearMost)]
	}
	var meant []string
	for _, name := range near {
		meant = append(meant, fmt.Sprintf("'%s %s'", cmd.CommandPath(), name))
	}
	if len(meant) > 0 {
		f.hint = "Did you mean " + strings.Join(meant, " or ") + "?\n"
	}
	f.hint += fmt.Sprintf("See '%s --help'.", cmd.CommandPath())
	return f
}

// unknownWord is the word that cobra, before any command of ours began, did not take for
// one.
func unknownWord(err error) (word string, ok bool) {
	var ours *failure
	if err == nil || errors.As(err, &ours) {
		return "", false
	}
	_, scanErr := fmt.Sscanf(err.Error(), "unknown command %q for", &word)
	return word, scanErr == nil
}
