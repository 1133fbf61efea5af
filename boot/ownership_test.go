package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/fx"
	"golang.org/x/sys/unix"
)

// readOnly lets a directory be mounted read-only until the test ends.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root may mount")
		}
		t.Skip("only root may mount")
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}

// A data directory that can not be written is refused with what to do, at the first
// start and at a later one.
func TestReadOnlyDataDirectoryIsRefusedAndSaysWhatToDo(t *testing.T) {
	for name, before := range map[string]bool{"first start": false, "later start": true} {
		t.Run(name, func(t *testing.T) {
			config := Config{Dev: true, DataDir: t.TempDir(), RuntimeDir: t.TempDir(), Listen: "127.0.0.1:0", Drivers: []string{DriverNull}}
			if before {
				app := fx.New(Node(config), fx.NopLogger)
				if err := errors.Join(app.Start(t.Context()), app.Stop(context.Background())); err != nil {
					t.Fatal(err)
				}
			}
			readOnly(t, config.DataDir)
			err := fx.New(Node(config), fx.NopLogger).Start(t.Context())
			if err == nil || !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), config.DataDir+" is mounted read-only") || !strings.Contains(err.Error(), "--data") {
				t.Errorf("the start says %v", err)
			}
		})
	}
}

func TestErrorOfTheDataDirectorySaysWhatToDo(t *testing.T) {
	path := &os.PathError{Op: "open", Path: "/d/journal.db", Err: syscall.EACCES}
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"not allowed": {fmt.Errorf("open journal: %w", path), fmt.Sprintf("open journal: open /d/journal.db: permission denied: this daemon runs as the user %d: start it as the one that all in /d belongs to, or give that to the user: chown -R %d /d", os.Geteuid(), os.Geteuid())},
		"not owned":   {syscall.EPERM, "chown -R"},
		"read-only":   {syscall.EROFS, "is mounted read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := ownership("/d", c.err); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := ownership("/d", syscall.EIO); err == nil || err.Error() != syscall.EIO.Error() || ownership("/d", nil) != nil {
		t.Error("another error, or none, is not left as it is")
	}
}

// Root may write everywhere, so the folder of logs of somebody else is one that is not there.
func TestFolderThatCanNotBeWrittenIsSaid(t *testing.T) {
	dir := t.TempDir()
	if err := writable(dir); err != nil {
		t.Error(err)
	}
	if err := writable(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "absent") {
		t.Errorf("%v", err)
	}
}
