// Package imagetest builds small images for tests, benchmarks and demonstrations,
// in process and from what is installed: a static busybox, and no registry.
package imagetest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sort"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// BusyboxPath is where Debian's package busybox-static puts its binary.
const BusyboxPath = "/bin/busybox"

// BusyboxName is the name of the image that Busybox describes.
const BusyboxName = "docker.io/library/busybox:latest"

// ErrMissing is returned when no static busybox is installed.
var ErrMissing = errors.New(BusyboxPath + " is missing; on Debian: apt-get install busybox-static")

// applets are the names that busybox gets in the image.
var applets = []string{
	"[", "awk", "base64", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "dirname", "du", "echo", "egrep", "env", "expr", "false",
	"find", "free", "grep", "groups", "gunzip", "gzip", "head", "hostname", "id", "ip", "kill", "killall", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mknod",
	"mktemp", "mount", "mv", "nice", "nohup", "nproc", "od", "pgrep", "ping", "printf", "ps", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq",
	"setsid", "sh", "sha256sum", "sleep", "sort", "stat", "stty", "sync", "tail", "tar", "tee", "test", "time", "timeout", "top", "touch", "tr", "true",
	"truncate", "tty", "umount", "uname", "uniq", "unshare", "usleep", "vi", "watch", "wc", "wget", "which", "whoami", "xargs", "yes",
}

// File is one file of an image.
type File struct {
	// Path is absolute, without the leading slash.
	Path    string
	Content []byte
	Mode    int64
	// LinkTo makes it a hard link to that path, of no content.
	LinkTo string
}

// Image describes an image to build.
type Image struct {
	// Name is its full name, tag included.
	Name  string
	Files []File
	// Bare leaves out busybox, /etc/passwd and /tmp.
	Bare   bool
	Config v1.Config
}

// Busybox describes the image that the demonstration and most tests run: a static
// busybox with a shell, the users root and nobody, and a few variables.
func Busybox() Image {
	return Image{Name: BusyboxName, Config: v1.Config{
		Cmd: []string{"sh"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}}
}

// WriteBusybox writes the busybox image to a file, as docker save would.
func WriteBusybox(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("write the busybox image: %w", err)
	}
	err = Write(file, Busybox())
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("write the busybox image: %w", closeErr)
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

// Write writes an image as docker save would.
func Write(w io.Writer, image Image) error {
	tag, err := name.NewTag(image.Name)
	if err != nil {
		return fmt.Errorf("build image %s: %w", image.Name, err)
	}
	built, err := Build(image)
	if err != nil {
		return err
	}
	if err := tarball.Write(tag, built, w); err != nil {
		return fmt.Errorf("write image %s: %w", image.Name, err)
	}
	return nil
}

// Build makes an image, for a registry to serve.
func Build(image Image) (v1.Image, error) {
	built, err := build(image)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", image.Name, err)
	}
	return built, nil
}

// build makes the image: one layer, and its configuration.
func build(image Image) (v1.Image, error) {
	content, err := layerContent(image)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		return nil, err
	}
	built, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS = runtime.GOARCH, "linux"
	file.Config = image.Config
	return mutate.ConfigFile(built, file)
}

func layerContent(image Image) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	files := image.Files
	if !image.Bare {
		busybox, err := os.ReadFile(BusyboxPath)
		if err != nil {
			return nil, ErrMissing
		}
		files = append([]File{
			{Path: "bin/busybox", Content: busybox, Mode: 0o755},
			{Path: "etc/passwd", Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"), Mode: 0o644},
			{Path: "etc/group", Content: []byte("root:x:0:\nnogroup:x:65534:\nstaff:x:50:nobody\n"), Mode: 0o644},
		}, files...)
		for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "root/", "run/", "sys/"} {
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
			return nil, err
		}
		for _, applet := range applets {
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}); err != nil {
				return nil, err
			}
		}
	}
	sort.SliceStable(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	for _, file := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Path, Mode: file.Mode, Size: int64(len(file.Content))}
		if file.LinkTo != "" {
			header.Typeflag, header.Linkname = tar.TypeLink, file.LinkTo
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(file.Content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
