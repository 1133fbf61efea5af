package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// life opens the journal of dir, does something with it and closes it again.
func life(t *testing.T, dir, marks string, during func(*Journal)) {
	t.Helper()
	j, err := Open(dir, marks)
	must(t, err)
	during(j)
	must(t, j.Close())
}

func put1(t *testing.T, j *Journal, run string) {
	t.Helper()
	write(t, j, nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry(run, 1, 1)}})
}

func TestJournalThatIsPutBackSaysSoUntilItIsWritten(t *testing.T) {
	path := func(dir string) string { return filepath.Join(dir, FileName) }
	keep := func(t *testing.T, dir string) {
		content, err := os.ReadFile(path(dir))
		must(t, err)
		must(t, os.WriteFile(path(dir)+".kept", content, 0o600))
	}
	// In place, as cp does it: the file is the same one.
	putBack := func(t *testing.T, dir string) {
		content, err := os.ReadFile(path(dir) + ".kept")
		must(t, err)
		must(t, os.WriteFile(path(dir), content, 0o600))
	}
	for _, test := range []struct {
		name     string
		reverted bool
		between  func(t *testing.T, dir, marks string)
	}{
		{name: "as it was left", between: func(*testing.T, string, string) {}},
		{name: "the copy that is put back is the last state", between: func(t *testing.T, dir, _ string) { keep(t, dir); putBack(t, dir) }},
		{name: "an older copy", reverted: true, between: func(t *testing.T, dir, marks string) {
			keep(t, dir)
			life(t, dir, marks, func(j *Journal) { put1(t, j, "r.a.b") })
			putBack(t, dir)
		}},
		{name: "an older copy with the mark of no later state", between: func(t *testing.T, dir, marks string) {
			keep(t, dir)
			life(t, dir, marks, func(j *Journal) { put1(t, j, "r.a.b") })
			putBack(t, dir)
			must(t, os.RemoveAll(marks))
		}},
		{name: "another journal in its place", between: func(t *testing.T, dir, marks string) {
			must(t, os.Remove(path(dir)))
			life(t, dir, marks, func(*Journal) {})
		}},
		{name: "a mark that is rubbish", between: func(t *testing.T, _, marks string) {
			names, err := filepath.Glob(filepath.Join(marks, "*.mark"))
			must(t, err)
			if len(names) != 1 {
				t.Fatalf("marks %v", names)
			}
			must(t, os.WriteFile(names[0], []byte("rubbish"), 0o600))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, marks := t.TempDir(), filepath.Join(t.TempDir(), "run")
			life(t, dir, marks, func(j *Journal) { put1(t, j, "r.a.a") })
			test.between(t, dir, marks)
			for range 2 { // looking at it changes nothing
				life(t, dir, marks, func(j *Journal) {
					if got := load(t, j).Reverted; got != test.reverted {
						t.Errorf("reverted: %v", got)
					}
				})
			}
			life(t, dir, marks, func(j *Journal) { put1(t, j, "r.a.d") })
			life(t, dir, marks, func(j *Journal) {
				if load(t, j).Reverted {
					t.Error("reverted after a write")
				}
			})
		})
	}
}

func TestJournalRefusesARuntimeDirectoryOfOthers(t *testing.T) {
	marks := t.TempDir()
	must(t, os.Chmod(marks, 0o777))
	dir := t.TempDir()
	if j, err := Open(dir, marks); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("journal %v, %v", j, err)
	}
	life(t, dir, filepath.Join(t.TempDir(), "run"), func(*Journal) {}) // nothing holds it
}
