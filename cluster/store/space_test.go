package store

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

// changing is a write that is a change of a run.
func changing(change records.Change, key, value string) records.Txn {
	txn := putTxn(key, value)
	txn.Change = change
	return txn
}

// eventually repeats the making of a run until its class is the one wanted.
func eventually(t *testing.T, s *Store, want records.Class) error {
	t.Helper()
	limit := time.Now().Add(patience)
	for {
		_, err := s.Do(context.Background(), changing(records.ChangeCreate, "k", "1"))
		if (err == nil && want == records.ClassInternal) || (err != nil && records.ClassOf(err) == want) {
			return err
		}
		if time.Now().After(limit) {
			t.Fatalf("still %v (%v), want %v", err, records.ClassOf(err), want)
		}
	}
}

// fill takes all of a disk but what is to be left.
func fill(t *testing.T, disk string, left int64) (filler string) {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(disk, &stat); err != nil {
		t.Fatal(err)
	}
	filler = filepath.Join(disk, "filler")
	file, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if size := int64(stat.Bavail)*stat.Bsize - left; size > 0 {
		if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return filler
}

// grab takes every block of a disk as soon as it is free, as a run does that goes on
// whatever its writes are answered. It returns when none is left, and stops when the
// test ends or stop is called.
func grab(t *testing.T, disk string) (stop func()) {
	t.Helper()
	file, err := os.Create(filepath.Join(disk, "grabbed"))
	if err != nil {
		t.Fatal(err)
	}
	done, full := make(chan struct{}), make(chan struct{})
	var grabbing sync.WaitGroup
	grabbing.Go(func() {
		page := make([]byte, 4096)
		begun := false
		for {
			if _, err := file.Write(page); err != nil && !begun {
				close(full)
				begun = true
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		grabbing.Wait()
		_ = file.Close()
	})
	t.Cleanup(stop)
	<-full
	return stop
}

func TestLowDiskRefusesRunsAndHealsItself(t *testing.T) {
	disk := smallDisk(t, "384m")
	s := openAt(t, Config{DataDir: filepath.Join(disk, "store")})
	do(t, s, putTxn("k", "0"))
	filler := fill(t, disk, SpaceReserve/2)
	err := eventually(t, s, records.ClassUnavailable)
	if !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), disk) {
		t.Errorf("%v", err)
	}
	if _, err := s.Do(context.Background(), changing(records.ChangePlace, "k", "1")); records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("a run was placed: %v", err)
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

// A server whose disk is full ends its process, and with it this test. What ends runs
// goes on even so, while each block that is given up is taken by somebody else, and
// across what the server makes from time to time: a snapshot, and compactions.
func TestFullDiskTakesTheEndOfRuns(t *testing.T) {
	disk := smallDisk(t, "384m")
	dir := filepath.Join(disk, "store")
	s := openAt(t, Config{DataDir: dir})
	for i := range snapshotEntries - 20 {
		do(t, s, putTxn("k", strconv.Itoa(i)))
	}
	awaitAhead(t, s)
	stop := grab(t, disk)
	_ = eventually(t, s, records.ClassUnavailable)
	value := strings.Repeat("v", 2048) // of a run with all that it says
	ended := 0
	for ; ended < 10_000; ended++ {
		_, err := s.Do(context.Background(), changing(records.ChangeEnd, "run/"+strconv.Itoa(ended), value))
		if err != nil {
			if records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "is spent") {
				t.Fatalf("%v", err)
			}
			break
		}
	}
	t.Logf("%d writes on the full disk", ended)
	if ended < (entriesAhead-entriesMargin)/entriesPerWrite {
		t.Errorf("only %d writes on a full disk", ended)
	}
	if _, err := s.embedded.server.Server.Compact(context.Background(), &pb.CompactionRequest{Revision: s.embedded.server.Server.KV().Rev(), Physical: true}); err != nil {
		t.Errorf("compact: %v", err)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// What the log has is given up and taken anew at a start; nobody grabs it then.
	filler := fill(t, disk, 0)
	s = openAt(t, Config{DataDir: dir})
	if spareLog(s.space.held.logs) == "" {
		t.Error("the log's next file has lost its room")
	}
	if got := do(t, s, records.Read(records.Op{Kind: records.OpGet, Key: "run/", Prefix: true, KeysOnly: true})); len(got.Responses[0].KVs) != ended {
		t.Errorf("%d of %d writes are there", len(got.Responses[0].KVs), ended)
	}
	if _, err := s.Do(context.Background(), changing(records.ChangeCreate, "k", "1")); records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("a run was made: %v", err)
	}
	for _, path := range []string{filler, filepath.Join(disk, "grabbed")} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	_ = eventually(t, s, records.ClassInternal)
	for i := range snapshotEntries {
		do(t, s, putTxn("k", strconv.Itoa(i)))
	}
}

// awaitAhead waits until the next snapshot is far enough.
func awaitAhead(t *testing.T, s *Store) {
	t.Helper()
	limit := time.Now().Add(patience)
	for {
		s.space.held.mu.Lock()
		entries := s.space.held.entries
		s.space.held.mu.Unlock()
		if entries >= entriesAhead {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the next snapshot is still %d entries away", entries)
		}
		runtime.Gosched()
	}
}

// A server at its quota takes no write, cancels and ends included, and does not start
// again: so the last tenth is theirs.
func TestStoreNearItsQuotaTakesTheEndOfRunsAndNoOthers(t *testing.T) {
	s := openEmbedded(t)
	for i := range 600 {
		do(t, s, changing(records.ChangeCreate, "a"+strconv.Itoa(i), strings.Repeat("1", 16<<10)))
	}
	quota, backend := &s.space.held.quota, s.space.held.server.Server.Backend()
	// What is free within the file is more when the server is slow, and commits oftener.
	for i := 0; ; i++ {
		backend.ForceCommit()
		if size := backend.Size(); size-backend.SizeInUse() < size/40 {
			quota.Store(size + size/10)
			break
		}
		do(t, s, changing(records.ChangeCreate, "b"+strconv.Itoa(i), strings.Repeat("1", 64<<10)))
	}
	err := eventually(t, s, records.ClassUnavailable)
	if !strings.Contains(err.Error(), "as large as it may be") {
		t.Errorf("refused with %v", err)
	}
	if trouble := s.Trouble(); records.ClassOf(trouble) != records.ClassUnavailable {
		t.Errorf("the trouble is %v", trouble)
	}
	do(t, s, changing(records.ChangeEnd, "a0", "2"))
	quota.Store(QuotaDefault)
	if err := eventually(t, s, records.ClassInternal); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// exhaust makes files on a disk until there can be no more, and others whenever one can be
// made, until stop is called or the test ends.
func exhaust(t *testing.T, disk string) (stop func()) {
	t.Helper()
	dir := filepath.Join(disk, "many")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	done, spent := make(chan struct{}), make(chan struct{})
	var making sync.WaitGroup
	making.Go(func() {
		begun := false
		for i := 0; ; {
			file, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
			if err == nil {
				_ = file.Close()
				i++
			} else if !begun {
				close(spent)
				begun = true
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		making.Wait()
	})
	t.Cleanup(stop)
	<-spent
	return stop
}

// Bytes are free, and no file can be made: what ends runs goes on, up to the server's
// next snapshot, which is a file.
func TestDiskWithoutInodesTakesTheEndOfRuns(t *testing.T) {
	disk := smallDisk(t, "384m,nr_inodes=4096")
	dir := filepath.Join(disk, "store")
	s := openAt(t, Config{DataDir: dir})
	for i := range snapshotEntries - 20 {
		do(t, s, putTxn("k", strconv.Itoa(i)))
	}
	awaitAhead(t, s)
	stop := exhaust(t, disk)
	if err := eventually(t, s, records.ClassUnavailable); !strings.Contains(err.Error(), "inodes are used up") {
		t.Errorf("refused with %v", err)
	}
	if err := s.Trouble(); err == nil || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("the trouble is %v", err)
	}
	ended := 0
	for ; ended < 2*snapshotEntries; ended++ {
		_, err := s.Do(context.Background(), changing(records.ChangeEnd, "run/"+strconv.Itoa(ended), "v"))
		if err != nil {
			if records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "is spent") {
				t.Fatalf("%v", err)
			}
			break
		}
	}
	if ended < (entriesAhead-entriesMargin)/entriesPerWrite || ended > snapshotEntries {
		t.Errorf("%d writes without inodes", ended)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, Config{DataDir: dir})
	if got := do(t, s, records.Read(records.Op{Kind: records.OpGet, Key: "run/", Prefix: true, KeysOnly: true})); len(got.Responses[0].KVs) != ended {
		t.Errorf("%d of %d writes are there", len(got.Responses[0].KVs), ended)
	}
	if err := eventually(t, s, records.ClassUnavailable); !strings.Contains(err.Error(), "inodes are used up") {
		t.Errorf("after a start refused with %v", err)
	}
	if err := os.RemoveAll(filepath.Join(disk, "many")); err != nil {
		t.Fatal(err)
	}
	_ = eventually(t, s, records.ClassInternal)
	for i := range snapshotEntries {
		do(t, s, putTxn("k", strconv.Itoa(i)))
	}
}
