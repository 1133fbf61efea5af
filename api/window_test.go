package api

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
)

func changeAt(mod int64, bytes int) *change {
	return changeOf(records.Event{KV: records.KV{Key: fmt.Sprintf("/runs/1/r.web.x%d", mod), Mod: mod, Value: make([]byte, bytes)}})
}

func (w *window) mods() []int64 {
	var mods []int64
	for i := range w.count {
		mods = append(mods, w.at(i).mod)
	}
	return mods
}

func TestAWindowHoldsAllThatCameAfterItsStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window{start: 10}
		mod := int64(10)
		var all []*change
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			mod += rapid.Int64Range(0, 2).Draw(t, "step")
			if mod == 10 {
				mod++
			}
			c := changeAt(mod, rapid.SampledFrom([]int{0, 100, windowBytes / 7, windowBytes + 1}).Draw(t, "bytes"))
			all = append(all, c)
			w.add(c)
		}
		if w.bytes > windowBytes || w.count > windowChanges {
			t.Fatalf("%d changes of %d bytes", w.count, w.bytes)
		}
		since := rapid.Int64Range(w.start, max(mod, w.start)).Draw(t, "since")
		var want, got []int64
		for _, c := range all {
			if c.mod > since {
				want = append(want, c.mod)
			}
		}
		for i := w.after(since); i < w.count; i++ {
			got = append(got, w.at(i).mod)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("after %d: %v, want %v; the window begins at %d", since, got, want, w.start)
		}
	})
}

func TestAWindowIsBounded(t *testing.T) {
	w := window{start: 1}
	for i := range int64(3 * windowChanges) {
		w.add(changeAt(2+i, 0))
	}
	if w.count != windowChanges || len(w.ring) != windowChanges || w.start != int64(2*windowChanges)+1 {
		t.Errorf("%d changes in a ring of %d, from %d", w.count, len(w.ring), w.start)
	}
	w.add(changeAt(1<<40, windowBytes))
	if w.count != 0 || w.bytes != 0 || w.start != 1<<40 {
		t.Errorf("one change that is too large leaves %d of %d bytes from %d", w.count, w.bytes, w.start)
	}
}

func TestAWindowReachesBackOnlyToWhatItFollows(t *testing.T) {
	w := window{start: 10}
	w.add(changeAt(11, 0))
	past := []*change{changeAt(8, 0), changeAt(9, 0)}
	w.extend(past, 7, 9)
	if w.start != 10 || w.count != 1 {
		t.Errorf("the window took a past that does not meet it: from %d, %v", w.start, w.mods())
	}
	w.extend(past, 7, 10)
	if want := []int64{8, 9, 11}; w.start != 7 || !slices.Equal(w.mods(), want) {
		t.Errorf("from %d, %v, want from 7, %v", w.start, w.mods(), want)
	}
}

func TestPositionsAreReadBackOrRefused(t *testing.T) {
	for _, p := range []position{{"abcd2345.1", 7}, {".0", 1}} {
		if got, err := parsePosition(p.String()); err != nil || got != p {
			t.Errorf("%s is read as %+v, %v", p, got, err)
		}
	}
	for _, bad := range []string{"", ".", "1", "x.", ".1", "x.0", "x.-1", "x.+1", "x.01", "x.1 ", "x.99999999999999999999", string(make([]byte, 100)) + ".1"} {
		if p, err := parsePosition(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, p)
		}
	}
}
