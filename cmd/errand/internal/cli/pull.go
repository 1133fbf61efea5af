package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
)

// pullLineEvery is how often a pull says how far it is where no terminal shows it.
const pullLineEvery = 10 * time.Second

func (a *app) pullCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Have the node fetch an image from its registry",
		Long: `Have the node fetch an image from its registry, or what it lacks of it, and show it.

A pull that was broken off goes on where it stopped when it is asked for again
within a day. Credentials are those that the node has for the registry, or, with
--auth-file, the one for this registry out of a docker config file of yours: it is
sent to the node for this one pull and not kept there.`,
		Example: `  errand image pull registry.example/team/tool:1.2
  errand image pull --auth-file ~/.docker/config.json registry.example/team/tool:1.2`,
		Args:              oneImage,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.pullImage(cmd.Context(), args[0], file)
		},
	}
	cmd.Flags().StringVar(&file, "auth-file", "", "a docker config file with the credential for the registry")
	return cmd
}

func (a *app) removeImageCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm IMAGE",
		Short:             "Remove an image of the node",
		Args:              oneImage,
		ValidArgsFunction: a.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkText("IMAGE", args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			name, err := c.once.RemoveImage(cmd.Context(), args[0])
			if err != nil {
				return c.explainImage(err)
			}
			return a.print(struct {
				Name string `json:"name"`
			}{name}, func() error {
				_, err := fmt.Fprintln(a.stdout, name)
				return err
			})
		},
	}
}

// explainImage is explain for a call about one image, whose name is an argument.
func (c *connection) explainImage(err error) error {
	err = c.explain(err)
	var f *failure
	if errors.As(err, &f) {
		f.message = strings.Replace(f.message, flagOfField["name"]+": ", "IMAGE: ", 1)
	}
	return err
}

func oneImage(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] != "" {
		return nil
	}
	return usage("%s wants one image", cmd.CommandPath())
}

func (a *app) pullImage(ctx context.Context, name, file string) error {
	if err := checkText("IMAGE", name); err != nil {
		return err
	}
	credential, err := credentialOf(name, file)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	shown := &pullProgress{to: a.stderr, terminal: isTerminal(a.stderr), silent: a.output != formatTable, now: a.now}
	image, err := c.once.PullImage(ctx, name, credential, shown.show)
	shown.end()
	if err != nil {
		return c.explainImage(err)
	}
	return a.print(viewImage(image), func() error {
		_, err := fmt.Fprintf(a.stdout, "%s %s\n", image.GetName(), image.GetDigest())
		return err
	})
}

// credentialOf reads the credential of one registry: no other leaves this machine.
func credentialOf(name, file string) (*errandv1.RegistryCredential, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // none is none
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, usage("IMAGE %q is not an image name", name)
	}
	opened, err := os.Open(file)
	if err != nil {
		return nil, usage("--auth-file %s: %s", file, reasonOf(err))
	}
	defer opened.Close()
	data, err := io.ReadAll(io.LimitReader(opened, authfile.BytesMax+1))
	if err != nil {
		return nil, usage("--auth-file %s: %s", file, reasonOf(err))
	}
	host := reference.Domain(named)
	found, ok, err := authfile.Find(data, host)
	switch {
	case err != nil:
		return nil, usage("--auth-file %s: %s", file, err)
	case !ok:
		return nil, usage("--auth-file %s: it has no credential for registry %s", file, host)
	}
	return &errandv1.RegistryCredential{Username: found.Username, Password: found.Password, IdentityToken: found.IdentityToken}, nil
}

// pullProgress shows how far a pull is: on a terminal in one line that is written anew,
// else in a line now and then.
type pullProgress struct {
	to       io.Writer
	terminal bool
	silent   bool
	now      func() time.Time
	width    int
	last     time.Time
	phase    errandv1.PullPhase
}

func (p *pullProgress) show(pull *errandv1.ImagePull) {
	if p.silent {
		return
	}
	text := pullText(pull)
	if p.terminal {
		_, _ = fmt.Fprintf(p.to, "\r%s%s", text, strings.Repeat(" ", max(p.width-len(text), 0))) // for eyes only
		p.width = len(text)
		return
	}
	if pull.GetPhase() == p.phase && p.now().Sub(p.last) < pullLineEvery {
		return
	}
	p.phase, p.last = pull.GetPhase(), p.now()
	_, _ = fmt.Fprintln(p.to, text) // for eyes only
}

// end clears the line.
func (p *pullProgress) end() {
	if p.width > 0 {
		_, _ = fmt.Fprintf(p.to, "\r%s\r", strings.Repeat(" ", p.width)) // for eyes only
	}
}

// pullText is how far a pull is, in one line.
func pullText(pull *errandv1.ImagePull) string {
	switch pull.GetPhase() {
	case errandv1.PullPhase_PULL_PHASE_WAITING:
		return "waiting for other pulls"
	case errandv1.PullPhase_PULL_PHASE_RESOLVING:
		return "asking the registry"
	case errandv1.PullPhase_PULL_PHASE_UNPACKING:
		return "unpacking " + bytesText(pull.GetTotalBytes())
	default:
		return fmt.Sprintf("fetched %s of %s, %s/s, %d of %d layers", bytesText(pull.GetBytes()), bytesText(pull.GetTotalBytes()),
			bytesText(pull.GetBytesPerSecond()), pull.GetLayersDone(), pull.GetLayers())
	}
}
