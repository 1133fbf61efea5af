package boot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNotesTellWhoHadADataDirectoryBefore(t *testing.T) {
	n := notes{t.TempDir()}
	for _, kept := range [][2]string{{"a", "/data"}, {"b", "/data"}, {"c", "/other"}, {"d", "/data"}, {"d", "/moved"}, {"e", "/data"}} {
		if err := n.keep(kept[0], kept[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.forget("e"); err != nil {
		t.Fatal(err)
	}
	if err := n.forget("never"); err != nil {
		t.Error(err)
	}
	for name, content := range map[string]string{"node-.data": "/data", "node-x.data.new": "/data", "journal-x.mark": "/data", "nodes": "/data"} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(n.dir, "node-dir.data"), 0o700); err != nil {
		t.Fatal(err)
	}
	former, err := n.former("b", "/data")
	if err != nil || !slices.Equal(former, []string{"a"}) {
		t.Errorf("former: %q, %v; want a", former, err)
	}
}

func TestDirectoryOfFormerDriversThatACrashHasLeftIsNoMore(t *testing.T) {
	host := &sandboxHost{settings: settings{Config: Config{DataDir: t.TempDir()}}}
	for range 2 {
		dir, err := host.formerDir()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "left"), nil, 0o600); err != nil {
			t.Fatalf("the directory is not as it should be: %v", err)
		}
	}
	dir, err := host.formerDir()
	if entries, readErr := os.ReadDir(dir); err != nil || readErr != nil || len(entries) > 0 {
		t.Errorf("%v, %v, %v", entries, err, readErr)
	}
	if all, err := os.ReadDir(host.settings.DataDir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
