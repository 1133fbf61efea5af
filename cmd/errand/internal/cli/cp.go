package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) copyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cp RUN:PATH DEST|-",
		Short: "Copy files out of a run",
		Long: `Copy a file or a directory out of a run that is running. DEST is a directory that
exists, or the new name. With - a tar archive is written to stdout. Sockets, pipes
and devices are left out; files belong to you.`,
		Example: `  errand cp RUN:/var/tmp/report.json .
  errand cp RUN:/etc - | tar -t`,
		ValidArgsFunction: a.completeRun(activeRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				f := usage("errand cp wants RUN:PATH and where to")
				f.hint = "As in: errand cp RUN:/var/tmp/report.json ."
				return f
			}
			id, from, ok := strings.Cut(args[0], ":")
			if !ok || id == "" || !strings.HasPrefix(from, "/") {
				f := usage("%q is not RUN:PATH with an absolute path", args[0])
				f.hint = "As in: errand cp RUN:/var/tmp/report.json ."
				return f
			}
			if args[1] == "" {
				return usage("the destination is empty")
			}
			return a.copyFrom(cmd.Context(), id, from, args[1])
		},
	}
}

func (a *app) copyFrom(ctx context.Context, id, from, to string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	if id, err = c.awaitStart(ctx, id); err != nil {
		return err
	}
	if to == "-" {
		if isTerminal(a.stdout) {
			return usage("stdout is a terminal: an archive is nothing to look at; give a directory, or | tar -t")
		}
		return c.explain(c.once.CopyFrom(ctx, id, from, &output{w: a.stdout}))
	}
	dir, name, err := destination(to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	received := make(chan error, 1)
	go func() {
		err := c.once.CopyFrom(ctx, id, from, writer)
		_ = writer.CloseWithError(err)
		received <- err
	}()
	unpackErr := unpack(reader, dir, name)
	_ = reader.CloseWithError(unpackErr)
	cancel()
	if err := <-received; err != nil && (unpackErr == nil || errors.Is(unpackErr, err)) {
		return c.explain(err)
	}
	if unpackErr != nil {
		return broken("COPY", "write to %s: %v", to, unpackErr)
	}
	return nil
}

// destination is the directory to unpack into, and the name to give what comes, "" for
// its own.
func destination(to string) (dir, name string, err error) {
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		return to, "", nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", usage("%s: %s", to, reasonOf(err))
	case strings.HasSuffix(to, "/"):
		return "", "", usage("%s: there is no such directory", to)
	}
	dir, name = filepath.Split(filepath.Clean(to))
	if dir == "" {
		dir = "."
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", "", usage("%s: there is no such directory", dir)
	}
	return dir, name, nil
}

// unpack writes what an archive holds below a directory and never outside of it,
// whatever the archive says: it comes out of a sandbox.
func unpack(from io.Reader, dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	archive := tar.NewReader(from)
	links := map[string]bool{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, from)
			return err
		}
		if err != nil {
			return err
		}
		entry := renamed(header.Name, name)
		if err := passesLink(links, entry); err != nil {
			return err
		}
		if err := unpackOne(root, entry, header, archive); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeSymlink {
			links[entry] = true
		}
	}
}

// passesLink refuses an entry that would be written through a link of the same archive:
// to another file of the directory than it says.
func passesLink(links map[string]bool, entry string) error {
	for at := entry; at != "." && at != "/"; at = path.Dir(at) {
		if links[at] {
			return fmt.Errorf("the archive has %s a second time, behind a link of its own", at)
		}
	}
	return nil
}

// renamed gives the first element of a path another name.
func renamed(entry, name string) string {
	entry = path.Clean("/" + entry)[1:]
	if name == "" {
		return entry
	}
	_, rest, _ := strings.Cut(entry, "/")
	return path.Join(name, rest)
}

func unpackOne(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	mode := fs.FileMode(header.Mode).Perm() //nolint:gosec // permissions only
	switch header.Typeflag {
	case tar.TypeDir:
		err := root.Mkdir(name, mode|0o700)
		if info, statErr := root.Lstat(name); errors.Is(err, fs.ErrExist) && statErr == nil && info.IsDir() {
			err = nil
		}
		return err
	case tar.TypeSymlink:
		err := root.Symlink(header.Linkname, name)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%s exists", name)
		}
		return err
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	default:
		return nil
	}
}
