package guest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

func TestInstallSaysWhatIsMissingOrInstalls(t *testing.T) {
	dir := t.TempDir()
	path, err := Install(dir)
	if _, built := bin.ReadFile("bin/" + Name); built != nil {
		if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "make build") || !strings.Contains(err.Error(), "--sandbox-init") {
			t.Fatalf("got %q, %v", path, err)
		}
		return
	}
	if err != nil || filepath.Dir(path) != dir {
		t.Fatalf("got %q, %v", path, err)
	}
}

func TestInstalledFileIsNamedByItsContent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	source := filepath.Join(t.TempDir(), "source")
	install := func(content string) string {
		t.Helper()
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := InstallFile(dir, source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o555 {
			t.Fatalf("%v, %v", info.Mode(), err)
		}
		return path
	}
	one, again, two := install("one"), install("one"), install("two")
	if one != again || one == two {
		t.Fatalf("%s, %s, %s", one, again, two)
	}
	// What was damaged is put right.
	if err := os.Chmod(one, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(one, []byte("damaged"), 0o755); err != nil {
		t.Fatal(err)
	}
	install("one")
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Fatalf("left over: %v", entries)
	}
	if _, err := InstallFile(dir, filepath.Join(dir, "none")); err == nil {
		t.Fatal("an absent file was installed")
	}
}

func TestStartErrorNamesTheReason(t *testing.T) {
	missing, denied, other := recordv1.Reason_REASON_NOT_FOUND, recordv1.Reason_REASON_NOT_EXECUTABLE, recordv1.Reason_REASON_START_ERROR
	for _, c := range []struct {
		stage     status.Stage
		errno     syscall.Errno
		reason    recordv1.Reason
		permanent bool
	}{
		{status.StageLookup, syscall.ENOENT, missing, true},
		{status.StageLookup, syscall.EACCES, denied, true},
		{status.StageExec, syscall.ENOENT, missing, true},
		{status.StageExec, syscall.ENOEXEC, denied, true},
		{status.StageExec, syscall.E2BIG, other, true},
		{status.StageExec, syscall.EAGAIN, other, false},
		{status.StageExec, syscall.ENOMEM, other, false},
		{status.StageChdir, syscall.ENOENT, other, true},
		{status.StageMount, syscall.EPERM, other, false},
	} {
		e := StartError(status.Status{State: status.ExecFailed, Stage: c.stage, Value: int(c.errno)}, Command{Name: "cmd", WorkingDir: "/dir"})
		if e.Reason != c.reason || e.Permanent != c.permanent || e.Message == "" {
			t.Errorf("%s %v: %+v", c.stage, c.errno, e)
		}
	}
}

func TestStartErrorOfTheRunsOwnPidsLimitIsForGoodAndNamesIt(t *testing.T) {
	e := StartError(status.Status{State: status.ExecFailed, Stage: status.StageExec, Value: int(syscall.EAGAIN)}, Command{Name: "cmd", PidsLimit: 3})
	if !e.Permanent || e.Reason != recordv1.Reason_REASON_START_ERROR || !strings.Contains(e.Message, "--pids-limit") {
		t.Errorf("%+v", e)
	}
}
