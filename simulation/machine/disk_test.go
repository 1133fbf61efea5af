package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

func put(runs ...string) nodes.JournalChange {
	var change nodes.JournalChange
	for _, run := range runs {
		change.Puts = append(change.Puts, &recordv1.JournalEntry{Run: run, Attempt: 1, Placement: 1})
	}
	return change
}

// write writes and returns the outcome when it is there.
func (b *bench) write(change nodes.JournalChange) func() (done bool, err error) {
	var done bool
	var err error
	b.life.Journal().Write(change, func(e error) { done, err = true, e })
	return func() (bool, error) { return done, err }
}

func (b *bench) written(change nodes.JournalChange) error {
	b.t.Helper()
	answer := b.write(change)
	b.until("write", func() bool { done, _ := answer(); return done })
	_, err := answer()
	return err
}

// load returns the runs of the journal's entries.
func (b *bench) load() (runs []string, err error) {
	b.t.Helper()
	done := false
	b.life.Journal().Load(func(content nodes.JournalContent, e error) {
		done, err = true, e
		for _, entry := range content.Entries {
			runs = append(runs, entry.GetRun())
		}
	})
	b.until("load", func() bool { return done })
	return runs, err
}

func (b *bench) holds(want ...string) {
	b.t.Helper()
	if got, err := b.load(); err != nil || !slices.Equal(got, want) {
		b.t.Errorf("the journal holds %v, %v; want %v", got, err, want)
	}
}

func TestDiskHoldsWhatWasSyncedThroughCrashAndReboot(t *testing.T) {
	b := newBench(t, 1, calm())
	b.holds()
	if err := b.written(put("r2", "r1")); err != nil {
		t.Fatal(err)
	}
	b.write(put("r3"))
	b.holds("r1", "r2", "r3") // a load sees every write before it
	loaded := 0
	b.write(put("r3")) // keeps the disk busy, so that the next two wait together
	b.life.Journal().Load(func(nodes.JournalContent, error) { loaded++ })
	if err := b.written(nodes.JournalChange{Deletes: []nodes.PlacementKey{{Run: "none"}}}); err != nil || loaded != 1 {
		t.Errorf("a write behind a load: %v, %d loads", err, loaded)
	}
	b.life.Crash()
	b.life = b.Launch()
	b.holds("r1", "r2", "r3")
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	b.holds("r1", "r2", "r3")
}

func TestDiskLoadIsTheCallersOwn(t *testing.T) {
	b := newBench(t, 1, calm())
	_ = b.written(nodes.JournalChange{Meta: &recordv1.JournalMeta{Node: "n1"}, Puts: put("r1").Puts})
	b.life.Journal().Load(func(content nodes.JournalContent, _ error) {
		content.Meta.Node, content.Entries[0].Run = "changed", "changed"
	})
	b.holds("r1")
	if b.disk.content.meta.GetNode() != "n1" {
		t.Error("the head was changed")
	}
}

func TestCrashLosesWhatIsNotSynced(t *testing.T) {
	for _, keep := range []float64{0, 1} {
		b := newBench(t, 1, calm())
		b.Faults.Disk.Sync, b.Faults.Disk.KeepRate = exactly(10*second), keep
		first, second := b.write(put("r1")), b.write(put("r2"))
		b.pass(time.Second)
		b.life.Crash()
		b.pass(time.Minute)
		if done, _ := first(); done {
			t.Error("a dead daemon was answered")
		}
		if done, _ := second(); done {
			t.Error("a dead daemon was answered")
		}
		b.life = b.Launch()
		if keep == 0 {
			b.holds()
		} else {
			b.holds("r1") // it was with the kernel; the next had to wait
		}
	}
}

func TestChangesThatMeetShareASync(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Disk.Sync = exactly(second)
	var answers []func() (bool, error)
	for i := range 50 {
		answers = append(answers, b.write(put(fmt.Sprint(i))))
	}
	b.pass(2*second + ms)
	for i, answer := range answers {
		if done, err := answer(); !done || err != nil {
			t.Fatalf("write %d: %v, %v", i, done, err)
		}
	}
}

func TestDiskFaults(t *testing.T) {
	b := newBench(t, 1, calm())
	if err := b.written(put("r1")); err != nil {
		t.Fatal(err)
	}
	older := b.Disk().Copy()
	b.Faults.Disk.Full = true
	if err := b.written(put("r2")); !errors.Is(err, ErrFull) {
		t.Errorf("a full disk: %v", err)
	}
	b.Faults.Disk.Full, b.Faults.Disk.ErrorRate = false, 1
	if err := b.written(put("r2")); !errors.Is(err, ErrDisk) {
		t.Errorf("a failing disk: %v", err)
	}
	b.holds("r1")
	b.Faults.Disk.ErrorRate, b.Faults.Disk.StallRate, b.Faults.Disk.Stall = 0, 1, exactly(time.Minute)
	begin := b.line.Now()
	if err := b.written(put("r2")); err != nil || b.line.Now()-begin < time.Minute {
		t.Errorf("a stall of a minute took %v, %v", b.line.Now()-begin, err)
	}
	b.Faults.Disk = calm().Disk
	b.holds("r1", "r2")
	restart := func() { b.life = b.Launch() }
	b.life.Crash()
	b.Disk().Revert(older)
	restart()
	b.holds("r1")
	b.Disk().Damage()
	if _, err := b.load(); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged disk: %v", err)
	}
	b.life.Crash()
	b.Disk().Lose()
	restart()
	b.holds()
}

func TestLyingDiskUndoesItsLastWriteWhenThePowerGoes(t *testing.T) {
	b := newBench(t, 1, calm())
	_ = b.written(put("r1"))
	_ = b.written(nodes.JournalChange{
		Meta: &recordv1.JournalMeta{Node: "n1"}, Puts: put("r2", "r2").Puts, Deletes: []nodes.PlacementKey{{Run: "r1", Attempt: 1, Placement: 1}},
	})
	b.Faults.Disk.TearRate = 1 // it counts for what was written before
	b.life.Crash()
	b.life = b.Launch()
	b.holds("r2") // a crash of the daemon alone undoes nothing
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	b.holds("r1")
	if b.disk.content.meta != nil {
		t.Error("the head is still there")
	}
	b.PowerOff()
	b.PowerOn()
	b.life = b.Launch()
	b.holds("r1") // it was undone once
}
