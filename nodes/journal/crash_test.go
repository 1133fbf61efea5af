package journal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// model is what a journal should hold.
type model struct {
	generation int64
	commits    map[string]int64
}

func (m model) with(change nodes.JournalChange) model {
	out := model{m.generation, maps.Clone(m.commits)}
	if change.Meta != nil {
		out.generation = change.Meta.GetGeneration()
	}
	for _, e := range change.Puts {
		out.commits[e.GetRun()] = e.GetCommit()
	}
	for _, k := range change.Deletes {
		delete(out.commits, k.Run)
	}
	return out
}

func (m model) String() string {
	var out []string
	for _, run := range slices.Sorted(maps.Keys(m.commits)) {
		out = append(out, fmt.Sprint(run, "=", m.commits[run]))
	}
	return fmt.Sprint(m.generation, out)
}

func modelOf(content nodes.JournalContent) model {
	m := model{content.Meta.GetGeneration(), map[string]int64{}}
	for _, e := range content.Entries {
		m.commits[e.GetRun()] = e.GetCommit()
	}
	return m
}

func drawChange(r *rapid.T, n int64) (change nodes.JournalChange) {
	run := rapid.Custom(func(r *rapid.T) string {
		return "r.a." + strings.Repeat(rapid.StringMatching("[a-f]").Draw(r, "run"), rapid.SampledFrom([]int{1, 600}).Draw(r, "length"))
	})
	if rapid.IntRange(0, 3).Draw(r, "meta") == 0 {
		change.Meta = &recordv1.JournalMeta{Generation: n}
	}
	for range rapid.IntRange(0, 3).Draw(r, "puts") {
		e := entry(run.Draw(r, "put"), 1, 1)
		e.Commit = n
		change.Puts = append(change.Puts, e)
	}
	for range rapid.IntRange(0, 2).Draw(r, "deletes") {
		change.Deletes = append(change.Deletes, nodes.PlacementKey{Run: run.Draw(r, "delete"), Attempt: 1, Placement: 1})
	}
	return change
}

// tornTail tells whether a disk holds a part of a batch.
func tornTail(d *memoryDisk) bool {
	f, err := d.open(FileName)
	if err != nil {
		return false
	}
	begin := make([]byte, firstSector)
	n, _ := f.ReadAt(begin, 0)
	l, _, err := openLog(d, f, begin[:n], 8192)
	return err == nil && l.broken
}

// TestJournalHoldsWhatItAcknowledgedThroughCrashesAndFaults: whatever call the power
// or the daemon goes at, in founding, writing, growing and making the file anew, and whichever
// sectors of what was not synced got to the disk: all that was acknowledged is there,
// and of what was not the last change or nothing.
func TestJournalHoldsWhatItAcknowledgedThroughCrashesAndFaults(t *testing.T) {
	compactions, repairs, torn := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		d := newMemoryDisk(rapid.Uint64().Draw(r, "seed"))
		// maybe are the states after a change that was not acknowledged, each.
		sure, maybe := model{commits: map[string]int64{}}, []string(nil)
		n := int64(0)
		for range rapid.IntRange(1, 6).Draw(r, "lives") {
			if tornTail(d) {
				torn++
			}
			d.dieAt, d.calls, d.failSyncs, d.full = rapid.IntRange(0, 120).Draw(r, "dies at"), 0, 0, false
			j, err := onDisk(d, "", 8192)
			if err != nil {
				if !errors.Is(err, errDead) {
					r.Fatalf("open: %v", err)
				}
				d = d.crash()
				continue
			}
			first := j.log.head.salt
			got := modelOf(load(r, j))
			if got.String() != sure.String() && !slices.Contains(maybe, got.String()) {
				r.Fatalf("it holds %v, not %v (or one of %v)", got, sure, maybe)
			}
			sure, maybe = got, nil
			for range rapid.IntRange(0, 40).Draw(r, "changes") {
				if rapid.IntRange(0, 19).Draw(r, "fault") == 0 {
					d.mu.Lock()
					d.failSyncs, d.full = rapid.IntRange(0, 2).Draw(r, "failing syncs"), rapid.Bool().Draw(r, "full")
					d.mu.Unlock()
				}
				n++
				change := drawChange(r, n)
				err := try(j, change)
				if err == nil {
					sure, maybe = sure.with(change), nil
					if got := modelOf(load(r, j)); got.String() != sure.String() {
						r.Fatalf("it holds %v, not %v", got, sure)
					}
					continue
				}
				maybe = append(maybe, sure.with(change).String())
				if errors.Is(err, errDead) {
					break
				}
				repairs++
				if got := modelOf(load(r, j)); got.String() != sure.String() {
					r.Fatalf("after an error it holds %v, not %v", got, sure)
				}
			}
			closeQuietly(j)
			if j.log.head.salt != first || j.log.head.sealed > firstSector+sectorBytes {
				compactions++
			}
			if rapid.Bool().Draw(r, "the machine goes on") {
				d.revive()
			} else {
				d = d.crash()
			}
		}
	})
	if !testing.Short() && (compactions == 0 || repairs == 0 || torn == 0) {
		t.Errorf("%d files made anew, %d errors, %d torn tails", compactions, repairs, torn)
	}
}

func closeQuietly(j *Journal) {
	j.mu.Lock()
	j.closed = true
	j.wake.Signal()
	j.mu.Unlock()
	<-j.done
}

func TestFullDiskIsToldAndTheJournalGoesOnWhenThereIsRoom(t *testing.T) {
	d := newMemoryDisk(1)
	j, err := onDisk(d, "", 8192)
	must(t, err)
	defer closeOnDisk(t, j)
	d.mu.Lock()
	d.full = true
	d.mu.Unlock()
	written := 0
	for ; err == nil; written++ {
		err = try(j, puts(fmt.Sprintf("r.a.%d", written)))
	}
	if written < 3 {
		t.Errorf("%d written: what there was room for needs none", written)
	}
	if got := len(load(t, j).Entries); got != written-1 {
		t.Errorf("%d entries, want %d", got, written-1)
	}
	d.mu.Lock()
	d.full = false
	d.mu.Unlock()
	must(t, try(j, puts("r.a.more")))
	if got := len(load(t, j).Entries); got != written {
		t.Errorf("%d entries, want %d", got, written)
	}
}

func TestFileThatFailedToSyncIsNotWrittenAgain(t *testing.T) {
	d := newMemoryDisk(1)
	j, err := onDisk(d, "", 8192)
	must(t, err)
	defer closeOnDisk(t, j)
	must(t, try(j, puts("r.a.a")))
	old := d.names[FileName]
	d.mu.Lock()
	d.failSyncs = 1
	d.mu.Unlock()
	if err := try(j, puts("r.a.b")); err == nil {
		t.Fatal("no error")
	}
	must(t, try(j, puts("r.a.c")))
	if d.names[FileName] == old {
		t.Error("the same file is written")
	}
	var runs []string
	for _, e := range load(t, j).Entries {
		runs = append(runs, e.GetRun())
	}
	if !slices.Equal(runs, []string{"r.a.a", "r.a.c"}) {
		t.Errorf("it holds %v", runs)
	}
}

func TestBatchIsOneWriteAndOneSync(t *testing.T) {
	d := newMemoryDisk(1)
	j, err := onDisk(d, "", 4<<20)
	must(t, err)
	defer closeOnDisk(t, j)
	const batches = 100
	syncs, writes := d.syncs, d.writes
	for i := range batches {
		must(t, try(j, puts(fmt.Sprintf("r.a.%d", i))))
	}
	if d.syncs-syncs != batches || d.writes-writes != batches {
		t.Errorf("%d syncs and %d writes of %d batches", d.syncs-syncs, d.writes-writes, batches)
	}
}
