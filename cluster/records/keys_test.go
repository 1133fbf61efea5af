package records_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/errand-run/errand/cluster/records"
)

func TestKeysAreThoseOfTheProtocol(t *testing.T) {
	k := records.Keys{Root: "/errand/", Shards: 64}
	const run = "r.shop.abc"
	cases := []struct{ name, got, want string }{
		{"cluster", k.Cluster(), "/errand/meta/cluster"},
		{"run", k.Run(run), "/errand/runs/47/r.shop.abc"},
		{"run of a tick", k.Run("t.shop.report.1700000000000"), "/errand/runs/47/t.shop.report.1700000000000"},
		{"live", k.Live(run), "/errand/live/47/r.shop.abc"},
		{"gone", k.Gone(run), "/errand/gone/47/r.shop.abc"},
		{"runs of an app", k.RunsOfApp("r", "shop"), "/errand/runs/47/r.shop."},
		{"runs in a shard", k.RunsInShard(7), "/errand/runs/7/"},
		{"live in a shard", k.LiveInShard(7), "/errand/live/7/"},
		{"history in a shard", k.HistoryInShard(7), "/errand/history/7/"},
		{"history of an app", k.HistoryOfApp("shop", records.ClassConsole), "/errand/history/47/shop/console/"},
		{"history", k.History(run, "shop", records.ClassOther, 1_700_000_000_000), "/errand/history/47/shop/other/-8299999999999/r.shop.abc"},
		{"history of an early time", k.History(run, "shop", records.ClassSchedule, 5), "/errand/history/47/shop/schedule/-9999999999994/r.shop.abc"},
		{"history as it was", k.HistoryForward(run, "shop", records.ClassOther, 1_700_000_000_000), "/errand/history/47/shop/other/1700000000000/r.shop.abc"},
		{"history of an early time as it was", k.HistoryForward(run, "shop", records.ClassSchedule, 5), "/errand/history/47/shop/schedule/0000000000005/r.shop.abc"},
		{"queue", k.Queue("t/shop/report", run), "/errand/queue/t/shop/report/r.shop.abc"},
		{"slot", k.Slot("c", run), "/errand/slots/c/r.shop.abc"},
		{"overlap", k.Overlap("shop", "report", run), "/errand/overlap/shop/report/r.shop.abc"},
		{"assignment", k.Assignment("n1", run), "/errand/assignments/n1/r.shop.abc"},
		{"assignments", k.AssignmentsOf("n1"), "/errand/assignments/n1/"},
		{"node", k.Node("n1"), "/errand/nodes/n1"},
		{"nodes", k.Nodes(), "/errand/nodes/"},
		{"nodeinfo", k.NodeInfo("n1"), "/errand/nodeinfo/n1"},
		{"drain", k.Drain("n1"), "/errand/drains/n1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("got %s, want %s", c.got, c.want)
			}
		})
	}
}

// What is ranged or followed holds the keys of its own and of nobody whose name
// begins alike.
func TestPrefixesEndWhereTheirNameEnds(t *testing.T) {
	k := records.Keys{Root: "/errand/", Shards: 64}
	cases := []struct{ name, prefix, own, other string }{
		{"node n1 and n10", k.AssignmentsOf("n1"), k.Assignment("n1", "r.a.x"), k.Assignment("n10", "r.a.x")},
		{"shard 1 and 10 of live", k.LiveInShard(1), k.LiveInShard(1) + "r.a.x", k.LiveInShard(10) + "r.a.x"},
		{"shard 1 and 10 of runs", k.RunsInShard(1), k.RunsInShard(1) + "r.a.x", k.RunsInShard(10) + "r.a.x"},
		{"shard 1 and 10 of history", k.HistoryInShard(1), k.HistoryInShard(1) + "a/", k.HistoryInShard(10) + "a/"},
		{"app a and a1", k.RunsOfApp("r", "a"), k.Run("r.a.x"), k.Run("r.a1.x")},
		{"nodes and nodeinfo", k.Nodes(), k.Node("n1"), k.NodeInfo("n1")},
		{"class console of app a and a1", k.HistoryOfApp("a", records.ClassConsole), k.History("r.a.x", "a", records.ClassConsole, 1), k.History("r.a1.x", "a1", records.ClassConsole, 1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !strings.HasSuffix(c.prefix, "/") && !strings.HasSuffix(c.prefix, ".") {
				t.Errorf("%s ends in the middle of a name", c.prefix)
			}
			if !strings.HasPrefix(c.own, c.prefix) {
				t.Errorf("%s is not below %s", c.own, c.prefix)
			}
			if strings.HasPrefix(c.other, c.prefix) {
				t.Errorf("%s is below %s", c.other, c.prefix)
			}
		})
	}
}

func TestHistoryIsSortedByTimeTheLastFirst(t *testing.T) {
	k := records.Keys{Root: "/", Shards: 8}
	times := []int64{0, 9, 10, 99_999, 1_700_000_000_000, 1_700_000_000_001, records.EndedMsMax}
	var keys, forward []string
	for _, at := range times {
		keys = append(keys, k.History("r.a.x", "a", records.ClassOther, at))
		forward = append(forward, k.HistoryForward("r.a.x", "a", records.ClassOther, at))
	}
	slices.Reverse(keys)
	if !slices.IsSorted(keys) || !slices.IsSorted(forward) {
		t.Errorf("%v %v", keys, forward)
	}
	begin, middle, end := k.HistoryParts("a", records.ClassOther)
	for i := range keys {
		if keys[i] < begin || keys[i] >= middle || forward[i] < middle || forward[i] >= end {
			t.Errorf("%s and %s are not in the parts of their form", keys[i], forward[i])
		}
	}
}

func TestParseHistoryReadsBothForms(t *testing.T) {
	k := records.Keys{Root: "/errand/", Shards: 64}
	for _, at := range []int64{0, 5, 1_700_000_000_000, records.EndedMsMax} {
		for _, key := range []string{k.History("r.a.x", "a", records.ClassOther, at), k.HistoryForward("r.a.x", "a", records.ClassOther, at)} {
			if ended, run, err := records.ParseHistory(key); err != nil || ended != at || run != "r.a.x" {
				t.Errorf("ParseHistory(%s) = %d, %s, %v", key, ended, run, err)
			}
		}
	}
	for _, bad := range []string{"", "x", "/errand/history/1/a/other/r.a.x", "/errand/history/1/a/other/12/r.a.x", "/errand/history/1/a/other/--12345678901/r.a.x", "/errand/history/1/a/other/12345678901234/r.a.x"} {
		if _, _, err := records.ParseHistory(bad); records.ClassOf(err) != records.ClassInternal {
			t.Errorf("ParseHistory(%q): %v", bad, err)
		}
	}
}

func TestLastPart(t *testing.T) {
	k := records.Keys{Root: "/errand/", Shards: 8}
	for _, c := range []struct{ key, want string }{
		{k.Live("r.a.x"), "r.a.x"}, {k.Assignment("n1", "r.a.x"), "r.a.x"}, {k.Node("n1"), "n1"}, {"bare", "bare"}, {"", ""},
	} {
		if got := records.LastPart(c.key); got != c.want {
			t.Errorf("LastPart(%q) = %q, want %q", c.key, got, c.want)
		}
	}
}
