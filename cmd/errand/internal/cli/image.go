package cli

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type imageView struct {
	Name       string     `json:"name"`
	Digest     string     `json:"digest"`
	SizeBytes  int64      `json:"sizeBytes"`
	ImportedAt *time.Time `json:"importedAt,omitempty"`
	// PulledAt and UsedAt are absent for an image that was imported.
	PulledAt *time.Time `json:"pulledAt,omitempty"`
	UsedAt   *time.Time `json:"usedAt,omitempty"`
}

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "image",
		Short:             "Pull, import, list and remove the images of a node",
		RunE:              group,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var name string
	add := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Import the images of a docker or OCI archive",
		Long: `Import the images of an archive as docker save writes it, or of an OCI archive,
and list them. With - the archive is read from stdin.`,
		Example: `  errand image import busybox.tar
  docker save busybox | errand image import -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				f := usage("%s wants one archive, or - for stdin", cmd.CommandPath())
				f.hint = "As in: errand image import busybox.tar"
				return f
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.importImage(cmd.Context(), args[0], name)
		},
	}
	add.Flags().StringVar(&name, "name", "", "the name for the archive's one image, in place of its own")
	must(add.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions))
	list := a.listCommand("List the images of the node", func(ctx context.Context, c *connection) error {
		images, err := c.once.Images(ctx)
		if err != nil {
			return c.explain(err)
		}
		return a.printImages(images)
	})
	cmd.AddCommand(a.pullCommand(), add, list, a.removeImageCommand())
	return cmd
}

func (a *app) importImage(ctx context.Context, path, name string) error {
	if err := checkText("--name", name); err != nil {
		return err
	}
	archive := a.stdin
	if path == "-" {
		if isTerminal(a.stdin) {
			return usage("stdin is a terminal: give an archive, as in: docker save busybox | errand image import -")
		}
	} else {
		file, err := os.Open(path)
		if err != nil {
			return usage("open %s: %s", path, reasonOf(err))
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return usage("%s is a directory; give an archive", path)
		}
		archive = file
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	images, err := c.patient.ImportImage(ctx, name, archive)
	if client.CodeOf(err) == codes.Archive {
		return broken(codeInput, "read %s: %s", path, reasonOf(err))
	}
	if err != nil {
		return c.explain(err)
	}
	return a.printImages(images)
}

func viewImage(image *errandv1.Image) imageView {
	return imageView{
		Name: image.GetName(), Digest: image.GetDigest(), SizeBytes: image.GetSizeBytes(),
		ImportedAt: instant(image.GetImportedAt()), PulledAt: instant(image.GetPulledAt()), UsedAt: instant(image.GetUsedAt()),
	}
}

func (a *app) printImages(images []*errandv1.Image) error {
	views := make([]imageView, 0, len(images))
	rows := make([][]string, 0, len(images))
	for _, image := range images {
		view := viewImage(image)
		views = append(views, view)
		rows = append(rows, []string{view.Name, bytesText(view.SizeBytes), ago(a.now(), view.ImportedAt), view.Digest})
	}
	return a.print(views, func() error {
		return writeTable(a.stdout, a.style(), []string{"NAME", "SIZE", "IMPORTED", "DIGEST"}, rows)
	})
}
