// Package privatetest gives the tests of a package one private containerd.
package privatetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
)

const (
	startMax = time.Minute
	stopMax  = 30 * time.Second
)

var (
	daemon  *private.Daemon
	dir     string
	missing error
)

// Main runs a package's tests beside a containerd and ends the process. Where none
// can be started the tests that ask for Address are skipped; with CI=true the
// package fails instead, so that nothing passes unnoticed without having run.
func Main(m *testing.M) {
	err := start()
	if err != nil {
		if os.Getenv("CI") == "true" || !excused(err) {
			fmt.Fprintln(os.Stderr, "start a containerd for the tests:", err)
			os.Exit(1)
		}
		missing = err
	}
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the tests' containerd:", err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// excused tells the two reasons for which a developer's machine may skip.
func excused(err error) bool {
	return os.Geteuid() != 0 || errors.Is(err, private.ErrMissing)
}

func start() error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	var err error
	if dir, err = os.MkdirTemp("", "errand-containerd-"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	daemon, err = private.Start(ctx, private.Config{Dir: dir})
	return err
}

func stop() error {
	if daemon == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopMax)
	defer cancel()
	if err := daemon.Stop(ctx); err != nil {
		return err
	}
	return Remove(dir)
}

// Remove removes a containerd's directory. What is still mounted below it is a leak
// of the tests: it is named, and unmounted so that the next run is not disturbed.
func Remove(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var leaked []string
	for _, line := range strings.Split(string(mounts), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			leaked = append(leaked, fields[1])
			_ = unix.Unmount(fields[1], unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if len(leaked) > 0 {
		return fmt.Errorf("%d mounts were left: %s", len(leaked), strings.Join(leaked, ", "))
	}
	return nil
}

// Daemon returns the containerd of this package's tests.
func Daemon(t testing.TB) *private.Daemon {
	t.Helper()
	if missing != nil {
		t.Skipf("no containerd: %v", missing)
	}
	return daemon
}

// Address returns its socket.
func Address(t testing.TB) string {
	t.Helper()
	return Daemon(t).Address()
}
