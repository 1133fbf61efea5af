package records_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
)

func TestCheckName(t *testing.T) {
	long := strings.Repeat("a", records.NameBytesMax)
	for _, name := range []string{"a", "0", "a-b", "nightly-report-2", long} {
		if err := records.CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-", "-a", "a-", "a--b", "A", "a_b", "a.b", "a/b", "a b", "ä", "a\x00", "a\n", long + "a"} {
		if err := records.CheckName(name); !errors.Is(err, records.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestAppOfRun(t *testing.T) {
	good := map[string]string{
		"r.shop.abc": "shop", "k.shop.abc": "shop", "t.shop.report.1700000000000": "shop", "r.a-b.x": "a-b",
		records.RunIDFromKey("shop", "key"): "shop", records.RunIDFromRandom("shop", [16]byte{1}): "shop",
	}
	for run, want := range good {
		if app, err := records.AppOfRun(run); err != nil || app != want {
			t.Errorf("%q: %q, %v", run, app, err)
		}
	}
	for _, run := range []string{
		"", ".", "..", "r", "r.", "r.shop", "r.shop.", "x.shop.abc", "rr.shop.abc", "r.shop.a.b", "t.shop.report", "t.shop.a.b.c",
		"r.Shop.abc", "r..abc", "r.a--b.abc", "r.shop.ABC", "r.shop.a/b", "r.shop.a b", "r.shop.a\n", "r.shop." + strings.Repeat("a", 127),
	} {
		if app, err := records.AppOfRun(run); err == nil {
			t.Errorf("%q is taken for a run of %q", run, app)
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, name := range []string{"a", "a-b", "a--b", "-", "", "A", "ä"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if records.CheckName(name) != nil {
			return
		}
		if name == "" || len(name) > records.NameBytesMax || strings.ContainsAny(name, "./ \n\x00_") || strings.ToLower(name) != name {
			t.Errorf("%q is taken for a name", name)
		}
		if app, err := records.AppOfRun("r." + name + ".x"); err != nil || app != name {
			t.Errorf("the id of app %q has app %q, %v", name, app, err)
		}
	})
}

func FuzzAppOfRun(f *testing.F) {
	for _, run := range []string{"r.shop.abc", "k.shop.abc", "t.shop.report.17", "r.shop.", "t.a.b", "r.a/b.c", "..", ""} {
		f.Add(run)
	}
	keys := records.Keys{Root: "/errand/", Shards: 64}
	f.Fuzz(func(t *testing.T, run string) {
		app, err := records.AppOfRun(run)
		if err != nil {
			return
		}
		if records.CheckName(app) != nil || !strings.HasPrefix(run[1:], "."+app+".") {
			t.Errorf("%q has app %q", run, app)
		}
		key := keys.Run(run)
		if records.LastPart(key) != run || !strings.HasPrefix(key, keys.RunsInShard(records.ShardOf(app, 64))) {
			t.Errorf("%q lies at %q", run, key)
		}
		if !strings.HasPrefix(key, keys.RunsOfApp(run[:1], app)) {
			t.Errorf("%q is not among the runs of %q", key, app)
		}
	})
}

func names() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z0-9](-?[a-z0-9]){0,6}`)
}

// Whatever apps, keys and kinds are, two ids are one only if they mean the same.
func TestRunIDsDoNotCollide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type origin struct{ kind, app, what string }
		draw := func(label string) (origin, string) {
			app := names().Draw(t, label+" app")
			switch rapid.IntRange(0, 2).Draw(t, label+" kind") {
			case 0:
				key := rapid.String().Draw(t, label+" key")
				return origin{"key", app, key}, records.RunIDFromKey(app, key)
			case 1:
				var random [16]byte
				copy(random[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label+" random"))
				return origin{"random", app, string(random[:])}, records.RunIDFromRandom(app, random)
			default:
				task, tick := names().Draw(t, label+" task"), rapid.StringMatching(`1[0-9]{12}`).Draw(t, label+" tick")
				return origin{"tick", app, task + " " + tick}, "t." + app + "." + task + "." + tick
			}
		}
		a, idA := draw("a")
		b, idB := draw("b")
		if (a == b) != (idA == idB) {
			t.Fatalf("%v is %s, %v is %s", a, idA, b, idB)
		}
		for o, id := range map[origin]string{a: idA, b: idB} {
			if app, err := records.AppOfRun(id); err != nil || app != o.app {
				t.Fatalf("%s of app %s has app %q, %v", id, o.app, app, err)
			}
		}
	})
}

func TestSandboxIDsDoNotCollide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type placement struct {
			run                string
			attempt, placement int32
		}
		draw := func(label string) placement {
			return placement{
				"r." + names().Draw(t, label) + ".x", rapid.Int32Range(1, 12).Draw(t, label+" attempt"), rapid.Int32Range(1, 12).Draw(t, label+" placement"),
			}
		}
		a, b := draw("a"), draw("b")
		idA, idB := records.SandboxID(a.run, a.attempt, a.placement), records.SandboxID(b.run, b.attempt, b.placement)
		if (a == b) != (idA == idB) {
			t.Fatalf("%v is %s, %v is %s", a, idA, b, idB)
		}
		if len(idA) != 33 || idA[0] != 'e' || strings.Trim(idA[1:], "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Fatalf("%q is no sandbox id", idA)
		}
	})
}

// What lies on machines is found by these names: they can not change.
func TestSandboxIDIsFixedAndCostsOneAllocation(t *testing.T) {
	for _, c := range []struct {
		run                string
		attempt, placement int32
		want               string
	}{
		{"r.web.4tq", 1, 1, "ei34lvcsv4mtp3ibuce5ex3ubfaz6znjj"},
		// Longer than any id there is.
		{"k." + strings.Repeat("a", 63) + "." + strings.Repeat("b", 120), 3, 70000, "emq7gl4ca6s5kdg4qpyryarrj6n5a2xob"},
	} {
		if got := records.SandboxID(c.run, c.attempt, c.placement); got != c.want {
			t.Errorf("%s is %s, want %s", c.run, got, c.want)
		}
	}
	if got := testing.AllocsPerRun(100, func() { records.SandboxID("r.web.4tq", 1, 1) }); got != 1 {
		t.Errorf("%v allocations", got)
	}
}

// These values are stored in every cluster: they can not change.
func TestShardOfIsFixed(t *testing.T) {
	// The published values of xxhash64 for "a" and "abc" end in 0x5b and 0x99.
	for app, want := range map[string]int32{"a": 0x1b, "abc": 0x19, "shop": 47} {
		if got := records.ShardOf(app, 64); got != want {
			t.Errorf("%s is in shard %d, want %d", app, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.Int32Range(1, 1<<20).Draw(t, "shards")
		if shard := records.ShardOf(names().Draw(t, "app"), shards); shard < 0 || shard >= shards {
			t.Fatalf("shard %d of %d", shard, shards)
		}
	})
}

func TestFencingTokensGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		epoch, create := rapid.Int64Range(0, 1<<15).Draw(t, "epoch"), rapid.Int64Range(1, 1<<47).Draw(t, "create")
		token := records.FencingTokenOf(epoch, create)
		if records.FencingTokenOf(epoch, create+1) <= token || records.FencingTokenOf(epoch+1, 1) <= token {
			t.Fatalf("the token of %d at %d does not grow", epoch, create)
		}
	})
}

func TestClasses(t *testing.T) {
	for class := records.ClassInternal; class <= records.ClassOutcomeUnknown; class++ {
		err := records.Errorf(class, "outer: %w", errors.New("inner"))
		if records.ClassOf(err) != class || err.Error() != "outer: inner" || strings.HasPrefix(class.String(), "class ") {
			t.Errorf("%v of class %v", err, records.ClassOf(err))
		}
		if nested := records.Errorf(records.ClassInvalid, "again: %w", err); records.ClassOf(nested) != records.ClassInvalid {
			t.Errorf("the class nearest to the surface is %v", records.ClassOf(nested))
		}
	}
	if records.ClassOf(errors.New("bare")) != records.ClassInternal || records.Class(99).String() != "class 99" {
		t.Error("an unclassed error")
	}
}
