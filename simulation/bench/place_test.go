package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func placeOf(t *testing.T) *place {
	t.Helper()
	at, err := newPlace()
	if err != nil {
		t.Fatal(err)
	}
	at.grace = 100 * time.Millisecond
	t.Cleanup(func() { os.RemoveAll(at.folder) })
	return at
}

// runShell has the place's program be a shell, and returns what is in the files that it
// writes.
func runShell(t *testing.T, at *place, script string, files ...string) (texts []string) {
	t.Helper()
	if err := at.run("/bin/sh", "-c", script); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		texts = append(texts, awaitLine(t, filepath.Join(at.folder, file)))
	}
	return texts
}

// awaitLine waits until a file has a whole line.
func awaitLine(t *testing.T, path string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(path)
		if line, _, whole := strings.Cut(string(text), "\n"); err == nil && whole {
			return line
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %q, %v", path, text, err)
		}
	}
}

func wantEnded(t *testing.T, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if p, ok := processOf(string(text)); err == nil && ok && !p.ended {
			t.Errorf("%s is still there", p)
		}
	}
}

func wantNoFolder(t *testing.T, folder string) {
	t.Helper()
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", folder, err)
	}
}

func TestWhatAPeerLeavesBehindIsToldAndEnded(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	// Of a session of its own, and nobody's child when the peer ends.
	pids := runShell(t, at, "setsid sh -c 'echo $$ > id; exec sleep 3600' & wait", "id")
	err := at.close()
	if err == nil || !strings.Contains(err.Error(), "it left 1 processes behind: ") || !strings.Contains(err.Error(), "(pid "+pids[0]+")") {
		t.Errorf("%v", err)
	}
	wantEnded(t, pids...)
	wantNoFolder(t, at.folder)
}

func TestAPeerThatEndsLeavesNothingToTell(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	at.grace = time.Minute
	pids := runShell(t, at, "trap 'exit 0' TERM; echo $$ > id; while :; do sleep 0.1; done", "id")
	wantError(t, at.close(), "")
	wantEnded(t, pids...)
	wantNoFolder(t, at.folder)
}

func TestAPeerThatDoesNotEndIsKilledAndTold(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	pids := runShell(t, at, "trap '' TERM; echo $$ > id; while :; do sleep 0.1; done", "id")
	wantError(t, at.close(), "it did not end within 100ms of SIGTERM")
	wantEnded(t, pids...)
	wantNoFolder(t, at.folder)
}

func TestAPeerThatEndsByItselfIsTold(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	runShell(t, at, "echo a flag that is unknown >&2; exit 3")
	never := func(context.Context) error { return errors.New("refused") }
	wantError(t, at.up(t.Context(), time.Minute, never), "it ended before it took commands")
	if log := at.tail(); log != "a flag that is unknown" {
		t.Errorf("its log ends with %q", log)
	}
	wantError(t, at.close(), "it ended by itself: exit status 3")
	wantNoFolder(t, at.folder)
}

func TestAPeerThatIsNoProgramIsTold(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	if err := at.run("/nowhere/peer"); err != nil {
		t.Fatal(err)
	}
	<-at.ended
	if err := at.close(); err == nil || !strings.Contains(err.Error(), "/nowhere/peer: no such file") {
		t.Errorf("%v", err)
	}
	wantNoFolder(t, at.folder)
}

func TestAPeerHasNothingOfTheEnvironment(t *testing.T) {
	at := placeOf(t)
	t.Setenv("NOMAD_TOKEN", "of somebody")
	runShell(t, at, "trap 'exit 0' TERM; env | grep -vE '^(PWD|SHLVL|OLDPWD|_)=' | sort | tr '\\n' ' ' > env; echo >> env; while :; do sleep 0.1; done", "env")
	want := "HOME=" + at.folder + " PATH=" + peersPath + " TMPDIR=" + at.folder + " "
	if got := awaitLine(t, filepath.Join(at.folder, "env")); got != want {
		t.Errorf("it has %q, want %q", got, want)
	}
	at.grace = time.Minute
	if err := at.close(); err != nil && !strings.Contains(err.Error(), "did not end") {
		t.Error(err)
	}
}

// abandon is all that a keeper sees of a benchmark that was killed, and waits for it.
func abandon(t *testing.T, at *place) {
	t.Helper()
	at.tell.Close()
	<-at.ended
	if err := at.ledger.close(); err != nil {
		t.Error(err)
	}
}

func TestNothingOfAPeerOutlivesTheBenchmark(t *testing.T) {
	t.Parallel()
	at := placeOf(t)
	pids := runShell(t, at, "trap '' TERM; setsid sh -c 'echo $$ > below; exec sleep 3600' & echo $$ > id; while :; do sleep 0.1; done", "id", "below")
	abandon(t, at)
	wantEnded(t, pids...)
	wantNoFolder(t, at.folder)
}

func TestMountsBelowAFolder(t *testing.T) {
	const text = `22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /tmp/errand-bench-1/data/alloc/secrets rw - tmpfs tmpfs rw
31 30 0:41 / /tmp/errand-bench-1/data/alloc/secrets/a\040b rw - tmpfs tmpfs rw
32 22 0:42 / /tmp/errand-bench-10/data rw - tmpfs tmpfs rw
33 22 0:43 / /tmp/errand-bench-1 rw - tmpfs tmpfs rw
`
	got := mountsBelow(text, "/tmp/errand-bench-1")
	want := []string{"/tmp/errand-bench-1/data/alloc/secrets", "/tmp/errand-bench-1/data/alloc/secrets/a b"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestProcessOfAStat(t *testing.T) {
	for _, c := range []struct {
		name, stat string
		want       process
		ok         bool
	}{
		{"one that sleeps", "12 (sleep) S 3 12 12 0", process{12, 3, "sleep", false}, true},
		{"a name with brackets and blanks", "12 (a (b) c) R 3 12", process{12, 3, "a (b) c", false}, true},
		{"one that waits to be collected", "12 (sleep) Z 3 12", process{12, 3, "sleep", true}, true},
		{"nothing", "", process{}, false},
		{"no parent", "12 (sleep) S x 12", process{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := processOf(c.stat)
			if ok != c.ok || ok && got != c.want {
				t.Errorf("%+v, %v, want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestTheTimeOfAPeerIsThatOfAllItHasStarted(t *testing.T) {
	t.Parallel()
	const loop = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	for _, c := range []struct{ name, script string }{
		{"of itself", loop},
		{"of a child that has ended", "sh -c '" + loop + "'"},
		{"of an orphan that has ended", "(sh -c '" + loop + "; echo > orphan' &); until [ -e orphan ]; do sleep 0.01; done"},
		{"of a process that is there", "sh -c '" + loop + "; echo > child; sleep 3600' & until [ -e child ]; do sleep 0.01; done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			at := placeOf(t)
			runShell(t, at, c.script+"; echo > id; exec sleep 3600", "id")
			// The one that has ended may be between its parent's table and the sum.
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				spent, err := at.spent()
				if err == nil && spent >= 20*time.Millisecond {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it spent %s, %v", spent, err)
				}
			}
			abandon(t, at)
		})
	}
}
