package journal

import (
	"path/filepath"
	"testing"

	"github.com/errand-run/errand/nodes"
)

// runsOf are the runs of what a journal holds.
func runsOf(content nodes.JournalContent) (runs []string) {
	for _, e := range content.Entries {
		runs = append(runs, e.GetRun())
	}
	return runs
}

// begun is a journal on a disk whose first batch is durable.
func begun(t *testing.T) (*memoryDisk, *Journal) {
	t.Helper()
	d := newMemoryDisk(1)
	j, err := onDisk(d, "", 8192)
	must(t, err)
	must(t, try(j, puts("r.a.first")))
	return d, j
}

// next opens the journal that the life before has left.
func next(t *testing.T, d *memoryDisk) *Journal {
	t.Helper()
	d.revive()
	j, err := onDisk(d, "", 8192)
	must(t, err)
	return j
}

// holds wants a disk to hold these runs after a loss of power.
func holds(t *testing.T, d *memoryDisk, want ...string) {
	t.Helper()
	j, err := onDisk(d.lose(), "", 8192)
	must(t, err)
	defer closeOnDisk(t, j)
	got := runsOf(load(t, j))
	if len(got) != len(want) {
		t.Fatalf("after the loss of power it holds %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("after the loss of power it holds %v, want %v", got, want)
		}
	}
}

// TestWhatIsLoadedIsDurable: a daemon dies between the write of a batch and its sync.
// The next one is given the batch and acts by it, so it must not go away any more.
func TestWhatIsLoadedIsDurable(t *testing.T) {
	d, j := begun(t)
	d.dieAt = d.calls + 2 // the sync of the batch that follows
	if err := try(j, puts("r.a.second")); err == nil {
		t.Fatal("a batch that was not synced was acknowledged")
	}
	closeOnDisk(t, j)
	j = next(t, d)
	if got := runsOf(load(t, j)); len(got) != 2 {
		t.Fatalf("the next daemon is given %v", got)
	}
	holds(t, d, "r.a.first", "r.a.second")
	closeOnDisk(t, j)
}

// TestBatchesBehindASyncThatFailedAreKept: the kernel takes for clean what it could not
// write, and the daemon that knows of it dies.
func TestBatchesBehindASyncThatFailedAreKept(t *testing.T) {
	d, j := begun(t)
	d.failSyncs = 1
	if err := try(j, puts("r.a.lost")); err == nil {
		t.Fatal("a batch whose sync has failed was acknowledged")
	}
	closeOnDisk(t, j)
	j = next(t, d)
	must(t, try(j, puts("r.a.second")))
	holds(t, d, "r.a.first", "r.a.lost", "r.a.second")
	closeOnDisk(t, j)
}

// TestCloseWhoseSyncFailedIsNotTakenForAGoodOne: the kernel takes the empty batch of the
// close for written, so a batch that the next daemon puts behind it would follow a hole.
func TestCloseWhoseSyncFailedIsNotTakenForAGoodOne(t *testing.T) {
	d, j := begun(t)
	d.failSyncs = 1
	closeOnDisk(t, j)
	if d.failSyncs != 0 {
		t.Fatal("the close has synced nothing")
	}
	j = next(t, d)
	must(t, try(j, puts("r.a.second")))
	holds(t, d, "r.a.first", "r.a.second")
	closeOnDisk(t, j)
}

// TestBatchWhoseWriteFailedLeavesNothing: neither is a shorter one written over what it has
// left, nor does the mark say that it was there.
func TestBatchWhoseWriteFailedLeavesNothing(t *testing.T) {
	marks := filepath.Join(t.TempDir(), "run")
	for name, then := range map[string]func(j *Journal){
		"another follows": func(j *Journal) { must(t, try(j, puts("r.a.second"))) },
		"nothing follows": func(*Journal) {},
	} {
		t.Run(name, func(t *testing.T) {
			d := newMemoryDisk(1)
			j, err := onDisk(d, marks, 8192)
			must(t, err)
			must(t, try(j, puts("r.a.first")))
			d.failWrites = 1
			if try(j, puts(longRun("x"), longRun("y"), longRun("z"))) == nil {
				t.Fatal("a batch of which a half was written was acknowledged")
			}
			then(j)
			closeOnDisk(t, j)
			d.revive()
			j, err = onDisk(d, marks, 8192)
			must(t, err)
			defer closeOnDisk(t, j)
			content := load(t, j)
			if got := runsOf(content); content.Reverted || got[0] != "r.a.first" || len(got) > 2 {
				t.Errorf("it holds %v, reverted: %v", got, content.Reverted)
			}
		})
	}
}

// TestChangeOfNothingIsNotWritten: on the disk it would be a close.
func TestChangeOfNothingIsNotWritten(t *testing.T) {
	d, j := begun(t)
	writes, syncs := d.writes, d.syncs
	must(t, try(j, nodes.JournalChange{}))
	if d.writes != writes || d.syncs != syncs {
		t.Errorf("%d writes and %d syncs", d.writes-writes, d.syncs-syncs)
	}
	closeOnDisk(t, j)
}

// TestNameIsDurableBeforeItIsWrittenTo: a daemon dies between the rename of a file that
// was made anew and the sync of its directory.
func TestNameIsDurableBeforeItIsWrittenTo(t *testing.T) {
	d, j := begun(t)
	d.failSyncs = 1
	if err := try(j, puts("r.a.lost")); err == nil {
		t.Fatal("a batch whose sync has failed was acknowledged")
	}
	closeOnDisk(t, j)
	// The file is made anew before the next batch; the call that syncs the directory is
	// the last of that.
	probe, other := begun(t)
	probe.failSyncs = 1
	_ = try(other, puts("r.a.lost"))
	closeOnDisk(t, other)
	before := probe.calls
	must(t, other.rewrite())
	d.dieAt = d.calls + probe.calls - before
	if err := j.rewrite(); err == nil {
		t.Fatal("the file was made anew though the directory could not be synced")
	}
	j = next(t, d)
	must(t, try(j, puts("r.a.second")))
	holds(t, d, "r.a.first", "r.a.second")
	closeOnDisk(t, j)
}

// TestFullDiskDoesNotKeepAJournalFromBeingRead: it can not be made anew, and is synced,
// with the batch of which a sync has failed.
func TestFullDiskDoesNotKeepAJournalFromBeingRead(t *testing.T) {
	for name, end := range map[string]func(d *memoryDisk){
		"the daemon has died before the sync": func(d *memoryDisk) { d.dieAt = d.calls + 2 },
		"the sync has failed":                 func(d *memoryDisk) { d.failSyncs = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			d, j := begun(t)
			end(d)
			if err := try(j, puts("r.a.second")); err == nil {
				t.Fatal("a batch that was not synced was acknowledged")
			}
			closeOnDisk(t, j)
			d.full = true
			j = next(t, d)
			if got := runsOf(load(t, j)); len(got) != 2 {
				t.Fatalf("the next daemon is given %v", got)
			}
			holds(t, d, "r.a.first", "r.a.second")
			must(t, try(j, puts("r.a.third"))) // in the room that it has
			holds(t, d, "r.a.first", "r.a.second", "r.a.third")
			d.full = false
			must(t, try(j, puts("r.a.too")))
			holds(t, d, "r.a.first", "r.a.second", "r.a.third", "r.a.too")
			closeOnDisk(t, j)
		})
	}
}

// TestWhatIsLeftBehindIsClearedOnAFullDisk: a batch was cut short, and the next one that
// goes into the same file must not end in what is left of it.
func TestWhatIsLeftBehindIsClearedOnAFullDisk(t *testing.T) {
	d, j := begun(t)
	d.failWrites = 1
	if try(j, puts(longRun("x"), longRun("y"), longRun("z"))) == nil {
		t.Fatal("a batch of which a half was written was acknowledged")
	}
	d.dieAt = d.calls + 1
	closeOnDisk(t, j)
	d.full = true
	j = next(t, d)
	must(t, try(j, puts("r.a.second")))
	holds(t, d, "r.a.first", "r.a.second")
	closeOnDisk(t, j)
	j = next(t, d)
	if got := runsOf(load(t, j)); len(got) != 2 {
		t.Errorf("after that it holds %v", got)
	}
	closeOnDisk(t, j)
}
