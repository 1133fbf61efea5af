package check_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
)

// contention is a history of transactions that were handed over together.
type contention struct{ *script }

func (c contention) put(names ...string) (revision int64) {
	var ops []records.Op
	for _, name := range names {
		ops = append(ops, records.Op{Kind: records.OpPut, Key: contendedKey(name), Value: []byte(name)})
	}
	c.commit(ops...)
	return c.revision
}

func (c contention) tell(name string, result records.Result) {
	c.calls("contend", "")("ok", []history.Contended{{Key: contendedKey(name), Value: name, Result: result}})
}

func contendedKey(name string) string { return keys.Root + history.ContendedFolder + "c0/" + name }

func TestWhatTravelsTogetherIsAsIfAlone(t *testing.T) {
	done := func(revision int64) records.Result { return records.Result{Succeeded: true, Revision: revision} }
	fails := func(class records.Class) records.Result { return records.Result{Err: records.Errorf(class, "why")} }
	for _, c := range []struct {
		name, want string
		play       func(c contention)
	}{
		{"one of a pair, and a mark", "", func(c contention) {
			at := c.put("0/left", "0/mark")
			c.tell("0/left", done(at))
			c.tell("0/mark", done(at))
			c.tell("0/right", records.Result{Revision: at})
		}},
		{"unknown, done before and after", "", func(c contention) {
			c.put("0/left")
			c.tell("0/left", fails(records.ClassOutcomeUnknown))
			c.tell("0/mark", fails(records.ClassOutcomeUnknown))
			c.put("0/mark")
		}},
		{"not sent and not done", "", func(c contention) { c.tell("0/left", fails(records.ClassUnavailable)) }},
		{"both of a pair at once", "was put although", func(c contention) { c.put("0/left", "0/right") }},
		{"both of a pair one after the other", "was put although", func(c contention) {
			c.put("0/left")
			c.put("0/right")
		}},
		{"a mark twice", "and again at", func(c contention) {
			c.put("0/mark")
			c.put("0/mark")
		}},
		{"another revision", "told at 0", func(c contention) {
			c.put("0/mark")
			c.tell("0/mark", done(0))
		}},
		{"told and not done", "was put at 0", func(c contention) { c.tell("0/mark", done(7)) }},
		{"done and told otherwise", "told that it was not", func(c contention) {
			c.put("0/mark")
			c.tell("0/mark", fails(records.ClassUnavailable))
		}},
		{"told otherwise and then done", "would not be", func(c contention) {
			c.tell("0/mark", fails(records.ClassUnavailable))
			c.put("0/mark")
		}},
		{"done and told that the condition failed", "did not hold", func(c contention) {
			c.put("0/left")
			c.tell("0/left", records.Result{})
		}},
		{"a condition that holds and is told to fail", "is not there", func(c contention) { c.tell("0/left", records.Result{}) }},
		{"told to be wrong", "told to be wrong", func(c contention) { c.tell("0/left", fails(records.ClassInvalid)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := contention{newScript()}
			c.play(s)
			if c.want == "" {
				if found := s.set.Violations(); len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			expect(t, s.set.Violations(), check.Together, c.want)
		})
	}
}

// goBack puts a copy of the store in its place.
func (c contention) goBack(to map[string]records.KV) {
	c.store = map[string]records.KV{}
	maps.Copy(c.store, to)
	held := slices.Collect(maps.Values(to))
	c.add(history.Event{Kind: history.KindRestore, Detail: history.Restore{Records: held}})
}

func TestWhatTravelsTogetherWhenTheStoreGoesBack(t *testing.T) {
	for _, c := range []struct {
		name, want string
		play       func(c contention)
	}{
		{"the other of a pair that the copy does not hold", "", func(c contention) {
			c.put("0/left")
			c.goBack(nil)
			c.put("0/right")
		}},
		{"the other of a pair that it holds", "was put although", func(c contention) {
			c.put("0/left")
			copied := maps.Clone(c.store)
			c.put("0/mark")
			c.goBack(copied)
			c.put("0/right")
		}},
		{"a mark that it does not hold, once more", "", func(c contention) {
			c.put("0/mark")
			c.goBack(nil)
			c.put("0/mark")
		}},
		{"a mark that it holds, once more", "and again at", func(c contention) {
			c.put("0/mark")
			c.goBack(maps.Clone(c.store))
			c.put("0/mark")
		}},
		{"a call that was decided before and is answered after", "", func(c contention) {
			answer := c.calls("contend", "")
			c.put("0/left")
			c.goBack(nil)
			answer("ok", []history.Contended{{Key: contendedKey("0/right"), Value: "0/right"}})
		}},
		{"a call of after", "is not there", func(c contention) {
			c.put("0/left")
			c.goBack(nil)
			c.tell("0/right", records.Result{})
		}},
		{"told and done, and the copy holds it", "", func(c contention) {
			at := c.put("0/left")
			c.goBack(maps.Clone(c.store))
			c.tell("0/left", records.Result{Succeeded: true, Revision: at})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := contention{newScript()}
			c.play(s)
			if c.want == "" {
				if found := s.set.Violations(); len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			expect(t, s.set.Violations(), check.Together, c.want)
		})
	}
}
