package machine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/journal"
	"github.com/errand-run/errand/simulation/virtual"
)

// again starts the next daemon, after a loss of power or without one.
func (b *bench) again(power bool) {
	b.life.Crash()
	if power {
		b.PowerOff()
		b.PowerOn()
	}
	b.life = b.Launch()
}

func TestBatchThatFailedIsFoundUntilAnotherIsWritten(t *testing.T) {
	for _, c := range []struct {
		name string
		keep float64
		// meanwhile happens between the failure and the load.
		meanwhile func(b *bench)
		want      []string
	}{
		{"by the daemon that knows of it: never", 1, func(*bench) {}, []string{"r1"}},
		{"by the next one: whole", 1, func(b *bench) { b.again(false) }, []string{"r1", "r2"}},
		{"by the next one: a part, so not at all", 0, func(b *bench) { b.again(false) }, []string{"r1"}},
		{"after a loss of power, kept", 1, func(b *bench) { b.again(true) }, []string{"r1", "r2"}},
		{"after a loss of power", 0, func(b *bench) { b.again(true) }, []string{"r1"}},
		{"behind another batch: never", 1, func(b *bench) {
			if err := b.written(put("r3")); err != nil {
				b.t.Fatal(err)
			}
			b.again(false)
		}, []string{"r1", "r3"}},
		{"loaded, and then the power goes", 1, func(b *bench) {
			b.again(false)
			b.holds("r1", "r2")
			b.Faults.Disk.KeepRate = 0
			b.again(true)
		}, []string{"r1", "r2"}},
		{"loaded on a full disk, and then the power goes", 1, func(b *bench) {
			b.Faults.Disk.Full = true
			b.again(false)
			b.holds("r1", "r2")
			b.Faults.Disk.KeepRate = 0
			b.again(true)
		}, []string{"r1", "r2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 1, calm())
			if err := b.written(put("r1")); err != nil {
				t.Fatal(err)
			}
			b.Faults.Disk.ErrorRate, b.Faults.Disk.KeepRate = 1, c.keep
			if err := b.written(put("r2")); !errors.Is(err, ErrDisk) {
				t.Fatalf("a failing disk: %v", err)
			}
			b.Faults.Disk.ErrorRate = 0
			c.meanwhile(b)
			b.holds(c.want...)
		})
	}
}

func TestJournalThatCanNotBeMadeDurableIsNotOpened(t *testing.T) {
	b := newBench(t, 1, calm())
	b.Faults.Disk.ErrorRate, b.Faults.Disk.KeepRate = 1, 1
	_ = b.written(put("r1"))
	b.again(false)
	if _, err := b.load(); !errors.Is(err, ErrDisk) {
		t.Errorf("loaded from a disk that fails: %v", err)
	}
	b.Faults.Disk.ErrorRate = 0
	b.holds("r1")
}

// A journal with one of its rules taken away does what the mutations need: it loses what
// it has shown, and can not be read any more.
func TestJournalWithAFlaw(t *testing.T) {
	failing := func(b *bench, change nodes.JournalChange) {
		b.Faults.Disk.ErrorRate, b.Faults.Disk.KeepRate = 1, 1
		_ = b.written(change)
		b.Faults.Disk.ErrorRate = 0
	}
	t.Run("what is read is not made durable", func(t *testing.T) {
		b := newBench(t, 1, calm())
		_ = b.written(put("r1"))
		Mistake(b.life.Journal(), FlawUnsettled)
		failing(b, put("r2"))
		b.again(false)
		b.holds("r1", "r2")
		b.Faults.Disk.KeepRate = 0
		b.again(true)
		b.holds("r1")
	})
	t.Run("and a batch follows", func(t *testing.T) {
		b := newBench(t, 1, calm())
		Mistake(b.life.Journal(), FlawUnsettled)
		failing(b, put("r2"))
		b.again(false)
		_ = b.written(put("r3"))
		b.holds("r2", "r3")
		b.Faults.Disk.KeepRate = 0
		b.again(true)
		if _, err := b.load(); !errors.Is(err, ErrDamaged) {
			t.Errorf("the sectors of a batch are missing before the last: %v", err)
		}
	})
	t.Run("what failed is written over by less", func(t *testing.T) {
		b := newBench(t, 1, calm())
		Mistake(b.life.Journal(), FlawWrittenOver)
		long := put("r1", "r2", "r3")
		for _, entry := range long.Puts {
			entry.StartToken = make([]byte, 600)
		}
		failing(b, long)
		_ = b.written(put("r4"))
		b.holds("r4")
		b.again(false)
		if _, err := b.load(); !errors.Is(err, ErrDamaged) {
			t.Errorf("the rest of a longer batch lies behind the last: %v", err)
		}
	})
}

// TestDiskHoldsWhatItAcknowledgedThroughCrashesAndFaults is the rule that the journal is
// held to as well, by its own test of this name: all that was acknowledged is there, and
// of what was not the last change or nothing. What a life has been shown stays.
func TestDiskHoldsWhatItAcknowledgedThroughCrashesAndFaults(t *testing.T) {
	shown := 0
	rapid.Check(t, func(r *rapid.T) {
		b := newBench(t, rapid.Uint64().Draw(r, "seed"), calm())
		sure := map[string]int64{}
		var maybe []map[string]int64
		n := int64(0)
		for range rapid.IntRange(1, 6).Draw(r, "lives") {
			b.Faults.Disk.ErrorRate, b.Faults.Disk.Full, b.Faults.Disk.KeepRate = 0, rapid.Bool().Draw(r, "full"), 0.5
			got := b.commits()
			if !maps.Equal(got, sure) && !slices.ContainsFunc(maybe, func(m map[string]int64) bool { return maps.Equal(got, m) }) {
				r.Fatalf("it holds %v, not %v (or one of %v)", got, sure, maybe)
			}
			if !maps.Equal(got, sure) {
				shown++
			}
			sure, maybe = got, nil
			for range rapid.IntRange(0, 10).Draw(r, "changes") {
				b.Faults.Disk.ErrorRate, b.Faults.Disk.Full = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(r, "fails"), rapid.IntRange(0, 4).Draw(r, "full") == 0
				n++
				change := put(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "run"))
				change.Puts[0].Commit = n
				with := maps.Clone(sure)
				with[change.Puts[0].GetRun()] = n
				if rapid.IntRange(0, 9).Draw(r, "dies") == 0 {
					b.write(change)
					maybe = append(maybe, with)
					break
				}
				if err := b.written(change); err != nil {
					maybe = append(maybe, with)
				} else {
					sure, maybe = with, nil
				}
				if got := b.commits(); !maps.Equal(got, sure) {
					r.Fatalf("it holds %v, not %v", got, sure)
				}
			}
			b.again(rapid.Bool().Draw(r, "power"))
		}
	})
	if !testing.Short() && shown == 0 {
		t.Error("no life was shown what had failed")
	}
}

// commits is what the journal holds, by run.
func (b *bench) commits() map[string]int64 {
	all, done := map[string]int64{}, false
	b.life.Journal().Load(func(content nodes.JournalContent, err error) {
		done = true
		if err != nil {
			b.t.Error(err)
		}
		for _, entry := range content.Entries {
			all[entry.GetRun()] = entry.GetCommit()
		}
	})
	b.until("load", func() bool { return done })
	return all
}

// TestCrashLeavesOfABatchWhatTheJournalReads lets some of the sectors of a last batch come
// to the disk, and compares what a real journal makes of such a file with what the disk
// does: it has the batch, or it has it not.
func TestCrashLeavesOfABatchWhatTheJournalReads(t *testing.T) {
	const rounds = 12
	draw, wholes := virtual.Streams{Seed: 1}.Of("sectors"), 0
	b := newBench(t, 1, calm())
	b.Faults.Disk.Sync = exactly(second)
	kept, file := openAt(t, t.TempDir())
	for i := range rounds {
		before := readFile(t, file)
		var change nodes.JournalChange
		for n := range 1 + draw.IntN(3) {
			entry := &recordv1.JournalEntry{Run: fmt.Sprintf("r.a.%d", n), Attempt: 1, Placement: 1, Commit: int64(i)}
			entry.StartToken = make([]byte, draw.IntN(900))
			change.Puts = append(change.Puts, entry)
		}
		done := make(chan error, 1)
		kept.Write(change, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		crashed, whole := mix(before, readFile(t, file), draw)
		b.Faults.Disk.KeepRate = 0
		if whole {
			b.Faults.Disk.KeepRate = 1
			wholes++
		}
		b.write(change)
		b.pass(ms)
		b.again(false)
		if err := kept.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/"+journal.FileName, crashed, 0o600); err != nil {
			t.Fatal(err)
		}
		kept, file = openAt(t, dir)
		compare(t, b, kept)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if wholes == 0 || wholes == rounds {
		t.Errorf("%d of %d batches were whole", wholes, rounds)
	}
}

func openAt(t *testing.T, dir string) (kept *journal.Journal, file string) {
	t.Helper()
	kept, err := journal.Open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return kept, dir + "/" + journal.FileName
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// mix is a file of which some of the sectors that a batch has changed have come to the
// disk, and tells whether all have.
func mix(before, after []byte, draw *rand.Rand) (out []byte, whole bool) {
	const size = 512
	out, whole = slices.Clone(after), true
	all := draw.IntN(3) == 0
	for at := 0; at < len(after); at += size {
		if !all && !slices.Equal(before[at:at+size], after[at:at+size]) && draw.IntN(2) == 0 {
			copy(out[at:at+size], before[at:at+size])
			whole = false
		}
	}
	return out, whole
}
