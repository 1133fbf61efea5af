package records_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
)

func putAt(key string, mod int64) records.Event {
	return records.Event{KV: records.KV{Key: key, Create: 1, Mod: mod, Value: fmt.Appendf(nil, "%s@%d", key, mod)}}
}

func deletedAt(key string, mod int64) records.Event {
	return records.Event{KV: records.KV{Key: key, Mod: mod}, Deleted: true}
}

func TestMirrorAppliesBatches(t *testing.T) {
	first := records.Batch{Reset: true, Revision: 10, Events: []records.Event{putAt("a", 3), putAt("b", 7), putAt("c", 9)}}
	cases := []struct {
		name     string
		batch    records.Batch
		changes  []records.Event
		keys     []string
		revision int64
	}{
		{
			"changes come in their order",
			records.Batch{Revision: 12, Events: []records.Event{putAt("z", 11), deletedAt("b", 12), putAt("a", 12)}},
			[]records.Event{putAt("z", 11), deletedAt("b", 12), putAt("a", 12)},
			[]string{"a", "c", "z"},
			12,
		},
		{
			"an empty batch moves the position",
			records.Batch{Revision: 20},
			nil,
			[]string{"a", "b", "c"},
			20,
		},
		{
			"events at or below the position are dropped",
			records.Batch{Revision: 11, Events: []records.Event{putAt("a", 8), putAt("b", 10), putAt("c", 11)}},
			[]records.Event{putAt("c", 11)},
			[]string{"a", "b", "c"},
			11,
		},
		{
			"the deletion of an unknown key is no change",
			records.Batch{Revision: 11, Events: []records.Event{deletedAt("x", 11)}},
			nil,
			[]string{"a", "b", "c"},
			11,
		},
		{
			"a reset reports what it lacks and what differs, by key",
			records.Batch{Reset: true, Revision: 15, Events: []records.Event{putAt("d", 14), putAt("b", 13), putAt("c", 9)}},
			[]records.Event{deletedAt("a", 15), putAt("b", 13), putAt("d", 14)},
			[]string{"b", "c", "d"},
			15,
		},
		{
			"an empty reset deletes all",
			records.Batch{Reset: true, Revision: 15},
			[]records.Event{deletedAt("a", 15), deletedAt("b", 15), deletedAt("c", 15)},
			[]string{},
			15,
		},
		{
			"an older reset is dropped",
			records.Batch{Reset: true, Revision: 9},
			nil,
			[]string{"a", "b", "c"},
			10,
		},
		{
			"an older batch is dropped",
			records.Batch{Revision: 9, Events: []records.Event{deletedAt("a", 9)}},
			nil,
			[]string{"a", "b", "c"},
			10,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var m records.Mirror
			if got := m.Apply(first); !reflect.DeepEqual(got, first.Events) {
				t.Fatalf("the first reset changed %v", got)
			}
			got := m.Apply(c.batch)
			if len(got) != len(c.changes) || len(got) > 0 && !reflect.DeepEqual(got, c.changes) {
				t.Errorf("changes = %v, want %v", got, c.changes)
			}
			if !slices.Equal(m.Keys(), c.keys) || m.Len() != len(c.keys) {
				t.Errorf("keys = %v (%d), want %v", m.Keys(), m.Len(), c.keys)
			}
			if m.Revision() != c.revision {
				t.Errorf("revision = %d, want %d", m.Revision(), c.revision)
			}
		})
	}
}

func TestMirrorZeroValueTakesAnyBatch(t *testing.T) {
	var m records.Mirror
	if _, ok := m.Get("a"); ok || m.Len() != 0 || m.Revision() != 0 {
		t.Fatal("the zero mirror is not empty")
	}
	m.Apply(records.Batch{Revision: 4, Events: []records.Event{putAt("a", 4)}})
	if kv, ok := m.Get("a"); !ok || kv.Mod != 4 {
		t.Fatalf("a = %v, %v", kv, ok)
	}
}

// A store that was wiped or put back counts anew: the same revision is another change.
func TestMirrorRebasedOnAStoreThatHasGoneBack(t *testing.T) {
	var m records.Mirror
	m.Apply(records.Batch{Reset: true, Revision: 20, Events: []records.Event{putAt("a", 3), putAt("b", 7)}})
	back := records.Batch{Reset: true, Revision: 5, Events: []records.Event{putAt("a", 3), putAt("c", 4)}}
	if changes := m.Apply(back); changes != nil || m.Revision() != 20 {
		t.Fatalf("without being told it went back: %v at %d", changes, m.Revision())
	}
	if got, want := m.Rebase(back), []records.Event{putAt("a", 3), deletedAt("b", 5), putAt("c", 4)}; !reflect.DeepEqual(got, want) {
		t.Errorf("changes %v, want %v", got, want)
	}
	if got, want := m.Apply(records.Batch{Revision: 6, Events: []records.Event{putAt("c", 6)}}), []records.Event{putAt("c", 6)}; !reflect.DeepEqual(got, want) || !slices.Equal(m.Keys(), []string{"a", "c"}) {
		t.Errorf("changes %v, keys %v", got, m.Keys())
	}
}

// Whatever part of a history arrives as batches and whatever as resets, a copy
// that only applies the reported changes ends as the store is.
func TestMirrorChangesRebuildTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m records.Mirror
		store, copied := map[string]records.KV{}, map[string]records.KV{}
		revision := int64(1)
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			var missed []records.Event
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				revision++
				key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
				event := putAt(key, revision)
				if _, ok := store[key]; ok && rapid.Bool().Draw(t, "delete") {
					event = deletedAt(key, revision)
					delete(store, key)
				} else {
					store[key] = event.KV
				}
				missed = append(missed, event)
			}
			batch := records.Batch{Revision: revision, Events: missed}
			if rapid.Bool().Draw(t, "reset") {
				batch = records.Batch{Reset: true, Revision: revision}
				for _, key := range slices.Sorted(maps.Keys(store)) {
					batch.Events = append(batch.Events, records.Event{KV: store[key]})
				}
			}
			for _, change := range m.Apply(batch) {
				if change.Deleted {
					if _, ok := copied[change.KV.Key]; !ok {
						t.Fatalf("%s was deleted twice", change.KV.Key)
					}
					delete(copied, change.KV.Key)
				} else {
					copied[change.KV.Key] = change.KV
				}
			}
			if !reflect.DeepEqual(copied, store) {
				t.Fatalf("the copy holds %v, the store %v", copied, store)
			}
			if m.Revision() != revision || m.Len() != len(store) {
				t.Fatalf("mirror at %d with %d keys, store at %d with %d", m.Revision(), m.Len(), revision, len(store))
			}
		}
	})
}
