package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// names unpacks an archive in memory.
func names(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = string(content) + header.Linkname
	}
}

func archiveOf(t *testing.T, root, path string) map[string]string {
	t.Helper()
	var archive bytes.Buffer
	if err := Archive(t.Context(), root, path, &archive); err != nil {
		t.Fatal(err)
	}
	return names(t, archive.Bytes())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchiveHoldsFilesAndDirectoriesAndNothingElse(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "srv/deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "srv/a"), []byte("A"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "srv/deep/b"), []byte("B"), 0o600))
	must(t, os.Symlink("a", filepath.Join(root, "srv/link")))
	must(t, syscall.Mkfifo(filepath.Join(root, "srv/fifo"), 0o600))
	listener, err := net.Listen("unix", filepath.Join(root, "srv/socket"))
	must(t, err)
	defer listener.Close()
	got := archiveOf(t, root, "/srv/")
	want := map[string]string{"srv/": "", "srv/a": "A", "srv/deep/": "", "srv/deep/b": "B", "srv/link": "a"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%s holds %q, want %q", name, got[name], content)
		}
	}
	if got := archiveOf(t, root, "/srv/a"); len(got) != 1 || got["a"] != "A" {
		t.Errorf("a single file: %v", got)
	}
}

// TestLinksEndWithinTheRoot: the host's file of the same name is another one.
func TestLinksEndWithinTheRoot(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte("the host's"), 0o600))
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(outside)), 0o755))
	must(t, os.Symlink(outside, filepath.Join(root, "absolute")))
	must(t, os.Symlink("../../../../../../../.."+outside, filepath.Join(root, "relative")))
	must(t, os.Symlink(filepath.Dir(outside), filepath.Join(root, "dir")))
	for _, path := range []string{"/absolute", "/relative", "/dir/secret", "/../../../../../.." + outside} {
		if err := Archive(t.Context(), root, path, io.Discard); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(root, outside), []byte("the sandbox's"), 0o600))
	for _, path := range []string{"/absolute", "/relative", "/dir/secret"} {
		if got := archiveOf(t, root, path); got[filepath.Base(path)] != "the sandbox's" {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// Somebody who waits for a reader of his pipe would take whoever copies for that one, and
// be killed by SIGPIPE; opening a device may do something.
func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	root := t.TempDir()
	fifo := filepath.Join(root, "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, fifo, unix.IN_OPEN)
	must(t, err)
	if err := Archive(t.Context(), root, "/fifo", io.Discard); !errors.Is(err, errSpecial) {
		t.Errorf("got %v", err)
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the pipe was opened: %d, %v", n, err)
	}
}

func TestArchiveRefusesInWords(t *testing.T) {
	root := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	must(t, os.MkdirAll(filepath.Join(root, strings.Repeat("d/", depthMax+1)), 0o755))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name, root, path, says string
		ctx                    context.Context
	}{
		{name: "absent", root: root, path: "/absent", says: "no such file"},
		{name: "pipe", root: root, path: "/fifo", says: "neither a file nor a directory"},
		{name: "too deep", root: root, path: "/d", says: "directories deep"},
		{name: "kernel's", root: "/", path: "/proc", says: "file system of the kernel"},
		{name: "no root", root: filepath.Join(root, "gone"), path: "/", says: "root"},
		{name: "given up", root: root, path: "/", says: "canceled", ctx: canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			if err := Archive(ctx, test.root, test.path, io.Discard); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v; want %q", err, test.says)
			}
		})
	}
}

// TestFileThatShrinksIsFilledUp: its length was told before.
func TestFileThatShrinksIsFilledUp(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "shrinks")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 100_000), 0o600))
	var archive bytes.Buffer
	first := true
	err := Archive(t.Context(), root, "/shrinks", writer(func(p []byte) (int, error) {
		if first {
			first = false
			must(t, os.Truncate(path, 10))
		}
		return archive.Write(p)
	}))
	must(t, err)
	if got := names(t, archive.Bytes())["shrinks"]; len(got) != 100_000 || !strings.HasSuffix(got, "\x00") {
		t.Errorf("%d bytes, ending in %q", len(got), got[max(0, len(got)-3):])
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
