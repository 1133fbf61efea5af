package containerd

import (
	"os"
	"path/filepath"
	"testing"
)

// A directory without its note passes for a sandbox that nobody made, so a removal that
// is cut short leaves none under a sandbox's name, and the next driver finishes it.
func TestRemovalThatIsCutShortLeavesNoSandbox(t *testing.T) {
	const id = "eu4pgadsvfnwf7nqjup6oxbmcyabhmcba"
	dir := t.TempDir()
	d := &Driver{config: Config{Dir: dir}}
	if err := d.makeDir(id, note{Node: "here"}); err != nil {
		t.Fatal(err)
	}
	// A removal gets as far as its first step.
	if err := os.Rename(d.dir(id), filepath.Join(dir, removing+id)); err != nil {
		t.Fatal(err)
	}
	if notes, err := d.notes(); err != nil || len(notes) > 0 {
		t.Errorf("it lists %v, %v", notes, err)
	}
	if err := finishRemovals(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	for range 2 { // it may be repeated
		if err := d.removeDir(id); err != nil {
			t.Error(err)
		}
	}
}
