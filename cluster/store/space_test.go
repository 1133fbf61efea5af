package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
)

// smallDisk mounts a file system of a size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root may mount a small disk")
		}
		t.Skip("only root may mount a small disk")
	}
	dir := dataDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// eventually repeats a write until its class is the one wanted.
func eventually(t *testing.T, s *Store, want records.Class) error {
	t.Helper()
	limit := time.Now().Add(patience)
	for {
		_, err := s.Do(context.Background(), putTxn("k", "1"))
		if (err == nil && want == records.ClassInternal) || (err != nil && records.ClassOf(err) == want) {
			return err
		}
		if time.Now().After(limit) {
			t.Fatalf("still %v (%v), want %v", err, records.ClassOf(err), want)
		}
	}
}

func TestFullDiskRefusesWritesAndHealsItself(t *testing.T) {
	disk := smallDisk(t, "384m")
	s := openAt(t, Config{DataDir: filepath.Join(disk, "store")})
	do(t, s, putTxn("k", "0"))
	filler := filepath.Join(disk, "filler")
	var stat unix.Statfs_t
	if err := unix.Statfs(disk, &stat); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(file.Fd()), 0, 0, int64(stat.Bavail)*stat.Bsize-SpaceReserve/2); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	err = eventually(t, s, records.ClassUnavailable)
	if !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), disk) {
		t.Errorf("%v", err)
	}
	if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); !ok {
		t.Error("reads fail too")
	}
	if _, err := Open(context.Background(), Config{DataDir: filepath.Join(disk, "another")}); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("a fresh store began on a full disk: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, Config{DataDir: filepath.Join(disk, "store")})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	_ = eventually(t, s, records.ClassInternal)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
