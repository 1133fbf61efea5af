package lockfile_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/lockfile"
)

// heldBy makes a file that is locked and names a process, until it is let go.
func heldBy(t *testing.T, pid int) (path string, letGo func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

// ended is the number of a process that has.
func ended(t *testing.T) int {
	t.Helper()
	command := exec.Command("true")
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	return command.Process.Pid
}

func TestLockOfALivingProcessIsRefusedAtOnceAndNamesIt(t *testing.T) {
	for name, pid := range map[string]int{"of this process": os.Getpid(), "of another": os.Getppid()} {
		t.Run(name, func(t *testing.T) {
			path, letGo := heldBy(t, pid)
			defer letGo()
			begun := time.Now()
			_, err := lockfile.Take(path)
			var taken *lockfile.TakenError
			if !errors.As(err, &taken) || taken.Holder != pid || !strings.Contains(err.Error(), path+" is locked, process "+strconv.Itoa(pid)) {
				t.Errorf("error %v, want one that names process %d", err, pid)
			}
			if took := time.Since(begun); took > 9*time.Second { // one that is waited for has 10
				t.Errorf("it took %s", took)
			}
		})
	}
}

// A child that was being made when its parent was killed has the parent's files until it
// executes its program.
func TestLockThatOutlivesItsHolderIsWaitedFor(t *testing.T) {
	path, letGo := heldBy(t, ended(t))
	time.AfterFunc(200*time.Millisecond, letGo)
	lock, err := lockfile.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if text, err := os.ReadFile(path); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("it names %q, %v", text, err)
	}
}

func TestLockThatNamesNobodyIsRefused(t *testing.T) {
	path, letGo := heldBy(t, 0)
	defer letGo()
	_, err := lockfile.Take(path)
	var taken *lockfile.TakenError
	if !errors.As(err, &taken) || taken.Holder != 0 || err.Error() != path+" is locked" {
		t.Errorf("error %v", err)
	}
}

func TestLockGoesWithItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 {
		lock, err := lockfile.Take(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lockfile.Take(path); err == nil {
			t.Error("two have it")
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
