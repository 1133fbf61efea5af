package placement_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/placement"
)

// Nodes of different versions must agree: these never change.
func TestRanksAreThoseOfEveryVersion(t *testing.T) {
	view := placement.NewView([]string{"n1", "n2", "n3", "n4", "n5"})
	for _, c := range []struct {
		kind, identity string
		bucket         int
		ranks          []string
	}{
		{"run", "r.default.aaaaaaaaaa", 540, []string{"n1", "n3", "n4", "n2", "n5"}},
		{"run", "k.shop.abcdefghijklmnopqrstuvwxyz", 652, []string{"n3", "n1", "n4", "n5", "n2"}},
		{"deadline", "0", 817, []string{"n5", "n1", "n2", "n3", "n4"}},
		{"deadline", "63", 363, []string{"n4", "n3", "n1", "n5", "n2"}},
		{"gate", "t/shop/nightly", 802, []string{"n5", "n4", "n3", "n1", "n2"}},
		{"", "", 872, []string{"n1", "n5", "n2", "n3", "n4"}},
	} {
		if got := placement.BucketOf(c.kind, c.identity); got != c.bucket {
			t.Errorf("bucket of %s %s is %d, want %d", c.kind, c.identity, got, c.bucket)
		}
		if got := view.Ranks(c.kind, c.identity); !slices.Equal(got, c.ranks) {
			t.Errorf("ranks of %s %s are %q, want %q", c.kind, c.identity, got, c.ranks)
		}
	}
}

func TestBucketKeepsKindAndIdentityApart(t *testing.T) {
	if placement.BucketOf("ab", "c") == placement.BucketOf("a", "bc") {
		t.Error("ab+c and a+bc share a bucket")
	}
}

func drawNodes(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9-]{0,12}`), 1, 15, rapid.ID).Draw(t, "nodes")
}

func TestRanksAreTheSameForTheSameNodesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		a, b := placement.NewView(nodes), placement.NewView(rapid.Permutation(nodes).Draw(t, "order"))
		for bucket := range placement.Buckets {
			ranks := a.OfBucket(bucket)
			if !slices.Equal(ranks, b.OfBucket(bucket)) {
				t.Fatalf("bucket %d: %q and %q", bucket, ranks, b.OfBucket(bucket))
			}
			if sorted := slices.Sorted(slices.Values(ranks)); !slices.Equal(sorted, a.Nodes()) {
				t.Fatalf("bucket %d: %q of %q", bucket, ranks, a.Nodes())
			}
		}
	})
}

func TestRanksOfTheOthersStayWhenANodeLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		gone := rapid.SampledFrom(nodes).Draw(t, "gone")
		rest := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == gone })
		before, after := placement.NewView(nodes), placement.NewView(rest)
		for bucket := range placement.Buckets {
			want := slices.DeleteFunc(slices.Clone(before.OfBucket(bucket)), func(n string) bool { return n == gone })
			if got := after.OfBucket(bucket); !slices.Equal(got, want) {
				t.Fatalf("bucket %d: %q after %q", bucket, got, before.OfBucket(bucket))
			}
		}
	})
}

// A node's share of n nodes' buckets is binomial; five standard deviations, and a
// bucket for small numbers, are never passed by a fair hash.
func TestRanksAreBalanced(t *testing.T) {
	for _, count := range []int{2, 3, 5, 15, 50} {
		t.Run(strconv.Itoa(count)+" nodes", func(t *testing.T) {
			nodes := make([]string, count)
			for i := range nodes {
				nodes[i] = fmt.Sprintf("n%d", i+1)
			}
			view := placement.NewView(nodes)
			share := float64(placement.Buckets) / float64(count)
			for rank := range min(count, 3) {
				counts := map[string]int{}
				for bucket := range placement.Buckets {
					counts[view.OfBucket(bucket)[rank]]++
				}
				for _, node := range nodes {
					off := float64(counts[node]) - share
					if off*off > 25*share+1 {
						t.Errorf("%s has rank %d for %d buckets, a fair share is %.0f", node, rank+1, counts[node], share)
					}
				}
			}
		})
	}
}

func TestRankCountsFromOneAndIsZeroForAStranger(t *testing.T) {
	view := placement.NewView([]string{"n2", "n1", "n2"})
	first := view.First("run", "a")
	other := map[string]string{"n1": "n2", "n2": "n1"}[first]
	if view.Rank(first, "run", "a") != 1 || view.Rank(other, "run", "a") != 2 || view.Rank("n3", "run", "a") != 0 {
		t.Errorf("ranks of %q: %d, %d, %d", view.Ranks("run", "a"), view.Rank(first, "run", "a"), view.Rank(other, "run", "a"), view.Rank("n3", "run", "a"))
	}
	if got := placement.NewView(nil).First("run", "a"); got != "" {
		t.Errorf("an empty view places at %q", got)
	}
}

func TestTrackerMakesANewViewWhenTheNodesChange(t *testing.T) {
	alive := []string{"n1", "n2"}
	tracker := placement.NewTracker(func() []string { return alive })
	first := tracker.View()
	alive = []string{"n1", "n2"}
	if tracker.View() != first {
		t.Error("another view of the same nodes")
	}
	alive[1] = "n3" // the tracker does not lean on the slice it was given
	second := tracker.View()
	if second == first || !slices.Equal(second.Nodes(), []string{"n1", "n3"}) || !slices.Equal(first.Nodes(), []string{"n1", "n2"}) {
		t.Errorf("views of %q, then %q", first.Nodes(), second.Nodes())
	}
	alive = []string{"n1", "n2"}
	if third := tracker.View(); third == first || third == second {
		t.Error("a view that came back is not told apart")
	}
}

type candidate struct {
	node  string
	score int64
}

func (c candidate) of() (string, int64) { return c.node, c.score }

func TestSpreadPutsHigherScoresFirstWhateverTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var given []candidate
		for _, node := range drawNodes(t) {
			given = append(given, candidate{node, rapid.Int64Range(0, 2).Draw(t, "score")})
		}
		was := slices.Clone(given)
		got := placement.Spread("run", given, candidate.of)
		if !slices.Equal(given, was) || len(got) != len(given) {
			t.Fatalf("%v became %v, returned %v", was, given, got)
		}
		if !slices.IsSortedFunc(got, func(a, b candidate) int { return int(b.score - a.score) }) {
			t.Fatalf("scores are not in order: %v", got)
		}
		if again := placement.Spread("run", rapid.Permutation(given).Draw(t, "order"), candidate.of); !slices.Equal(got, again) {
			t.Fatalf("%v, in another order %v", got, again)
		}
	})
}

func TestSpreadSharesRunsEvenly(t *testing.T) {
	given := []candidate{{"n1", 1}, {"n2", 1}, {"n3", 1}, {"n4", 1}, {"n5", 1}, {"weak", 0}}
	const runs = 5000
	counts := map[string]int{}
	for i := range runs {
		counts[placement.Spread("r.default."+strconv.Itoa(i), given, candidate.of)[0].node]++
	}
	for _, c := range given[:5] {
		if n := counts[c.node]; n < runs/5*9/10 || n > runs/5*11/10 {
			t.Errorf("%s comes first for %d of %d runs", c.node, n, runs)
		}
	}
}

func BenchmarkRanks(b *testing.B) {
	alive := []string{"n1", "n2", "n3", "n4", "n5"}
	tracker := placement.NewTracker(func() []string { return alive })
	b.ReportAllocs()
	for b.Loop() {
		tracker.View().Ranks("run", "r.default.aaaaaaaaaa")
	}
}
