package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/simulation/daemon"
)

// startOnSmallDisk starts a node of a kind on a disk of its own of some bytes: the store,
// the journal, the logs, and what containers write. More options of the mount may follow.
func startOnSmallDisk(t *testing.T, k kind, size int64, more ...string) *node {
	t.Helper()
	if k.name == "containerd" {
		needContainerd(t)
	}
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for a small disk")
		}
		t.Skip("needs root, for a small disk")
	}
	n := &node{data: t.TempDir(), flags: append([]string{"--dev", "--runtime-dir", t.TempDir()}, k.flags...)}
	if err := unix.Mount("tmpfs", n.data, "tmpfs", 0, strings.Join(append(more, fmt.Sprintf("size=%d", size)), ",")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.start(t)
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Errorf("stop the node: %v\n%s", err, n.log)
		}
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Errorf("the daemon reported a data race:\n%s", n.log)
		}
	})
	if k.name == "containerd" {
		n.importBusybox(t)
	}
	return n
}

// freeBytes is how much of a disk is free.
func freeBytes(t *testing.T, path string) int64 {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		t.Fatal(err)
	}
	return int64(stat.Bavail) * stat.Bsize
}

// awaitFull returns when nothing is free, and the node says what that means.
func (n *node) awaitFull(t *testing.T) {
	t.Helper()
	const page = 4096
	for limit := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		err := daemon.Probe(t.Context(), n.Address+"/readyz")
		free := freeBytes(t, n.data)
		if free < page && err != nil && strings.Contains(err.Error(), "no space") && strings.Contains(err.Error(), "cancel the run that fills it") {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d bytes are free; readiness says %v\n%s", free, err, n.log)
		}
	}
}

// fills writes to a file until the disk is full and goes on trying: it takes each block
// that is free again.
func fills(path string) string {
	return "while :; do cat /dev/zero >> " + path + "; done 2>/dev/null"
}

// A run fills the disk on which all of the node lies, and each block that is given up.
// It can be canceled, and so can others; a timeout ends one; a daemon that is killed
// on the full disk starts again; and all goes on when there is room.
func TestRunThatFillsTheDiskIsCanceled(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := startOnSmallDisk(t, k, 400<<20)
			path, within := filepath.Join(n.data, "filler"), ""
			if k.name == "containerd" {
				path, within = "/filler", " of its own file system"
			}
			other := k.detach(t, n, nil, "sleep", "600")
			forced := k.detach(t, n, nil, "sh", "-c", `trap "" TERM; while :; do sleep 0.1; done`)
			timed := k.detach(t, n, []string{"--timeout", "8s"}, "sleep", "600")
			for _, id := range []string{other, forced, timed} {
				n.awaitRunning(t.Context(), t, id)
			}
			filler := k.detach(t, n, nil, "sh", "-c", fills(path))
			n.awaitFull(t)
			if r := n.errand(t, append(append([]string{"run"}, k.args...), "--", "true")...); r.code != 125 || !strings.Contains(r.stderr, "no space") {
				t.Errorf("a run on a full disk%s: code %d, stderr %q", within, r.code, r.stderr)
			}
			n.canceledWithin(t, other, 143, 2*time.Second)
			n.canceledWithin(t, forced, 137, 2*time.Second, "--force")
			if r := n.errand(t, "wait", timed); r.code != 124 {
				t.Errorf("wait for the one with a timeout: %+v\n%s", r, n.log)
			}
			if s := n.show(t, timed); s.Status != "TIMED_OUT" {
				t.Errorf("the one with a timeout is %+v", s)
			}
			if free := freeBytes(t, n.data); free > 64<<10 {
				t.Errorf("%d bytes are free: the disk was not full all the time", free)
			}
			n.canceledWithin(t, filler, 143, 11*time.Second)
			makeRoom := func() {
				if k.name == "process" {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
				awaitReady(t, n)
			}
			makeRoom()
			filler = k.detach(t, n, nil, "sh", "-c", "cat /dev/zero > "+path+"; exec sleep 600")
			n.awaitFull(t)
			n.restart(t)
			if free := freeBytes(t, n.data); free > 64<<10 {
				t.Errorf("%d bytes are free: the disk was not full at the start", free)
			}
			n.canceledWithin(t, filler, 143, 2*time.Second)
			makeRoom()
			if r := n.errand(t, append(append([]string{"run"}, k.args...), "--", "echo", "again")...); r.code != 0 || r.stdout != "again\n" {
				t.Errorf("a run after that: %+v\n%s", r, n.log)
			}
		})
	}
}

// canceledWithin cancels a run and wants it to end so, soon.
func (n *node) canceledWithin(t *testing.T, id string, code int, within time.Duration, flags ...string) {
	t.Helper()
	began := time.Now()
	if r := n.errand(t, append([]string{"cancel", id}, flags...)...); r.code != 0 {
		t.Errorf("cancel: %+v\n%s", r, n.log)
	}
	s := n.awaitStatus(t, id, "CANCELED", within+2*time.Minute)
	if took := time.Since(began); took > within+busy {
		t.Errorf("canceled after %s, want at most %s", took, within+busy)
	}
	if s.ExitCode == nil || *s.ExitCode != code {
		t.Errorf("the canceled run is %+v, want code %d", s, code)
	}
}

// A run uses up the inodes of the disk and each that is given up, with bytes to spare.
func TestRunThatUsesUpTheInodesIsCanceled(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := startOnSmallDisk(t, k, 400<<20, "nr_inodes=8192")
			dir := filepath.Join(n.data, "many")
			if k.name == "containerd" {
				dir = "/many"
			}
			other := k.detach(t, n, nil, "sleep", "600")
			n.awaitRunning(t.Context(), t, other)
			maker := k.detach(t, n, nil, "sh", "-c", "mkdir "+dir+"; i=0; while :; do { true > "+dir+"/$i; } 2>/dev/null && i=$((i+1)); done")
			n.awaitUnready(t, "inodes are used up")
			n.awaitNoInodes(t)
			if r := n.errand(t, append(append([]string{"run"}, k.args...), "--", "true")...); r.code != 125 || !strings.Contains(r.stderr, "inodes are used up") {
				t.Errorf("a run: code %d, stderr %q", r.code, r.stderr)
			}
			if r := n.errand(t, "node", "ls"); r.code != 0 || !strings.Contains(r.stdout, "not ready") {
				t.Errorf("node ls: %+v", r)
			}
			for _, id := range []string{other, maker} {
				if r := n.errand(t, "cancel", "--force", id); r.code != 0 {
					t.Errorf("cancel: %+v\n%s", r, n.log)
				}
				n.awaitStatus(t, id, "CANCELED", 2*time.Minute)
			}
			if k.name == "process" {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			awaitReady(t, n)
			if r := n.errand(t, append(append([]string{"run"}, k.args...), "--", "echo", "again")...); r.code != 0 || r.stdout != "again\n" {
				t.Errorf("a run after that: %+v\n%s", r, n.log)
			}
		})
	}
}

// awaitNoInodes returns when no file can be made on the node's disk.
func (n *node) awaitNoInodes(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; <-time.After(20 * time.Millisecond) {
		var stat unix.Statfs_t
		if err := unix.Statfs(n.data, &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Ffree == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d files can be made\n%s", stat.Ffree, n.log)
		}
	}
}
