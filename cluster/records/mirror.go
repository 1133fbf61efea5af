package records

import (
	"slices"
	"strings"
)

// Mirror is a copy of a followed prefix, kept by applying its batches. It turns
// the Resets of a follow into plain changes: what a Reset lacks is reported as
// deleted, what it repeats is not reported again. The zero Mirror is empty, at
// position 0, and ready for use. It is not safe for concurrent use.
//
// Of each key it remembers the revisions alone, for there may be very many: whoever needs
// a value takes it from the changes.
type Mirror struct {
	keys     map[string]Revisions
	revision int64
}

// Revisions are those of a key.
type Revisions struct{ Create, Mod int64 }

// Apply takes the next batch of the follow and returns what it changed. The
// changes of a batch come in the order in which they happened; those found by a
// Reset are sorted by key, since their order is not known. A deletion found by a
// Reset carries the Reset's revision as Mod: the key was gone by then.
//
// Events at or below the position have been seen and are dropped, and so is a
// Reset older than the position: a mirror never goes back by itself. Whoever may go
// back with a store that has does so by Rebase.
func (m *Mirror) Apply(b Batch) []Event {
	if b.Revision < m.revision {
		return nil
	}
	var changes []Event
	if b.Reset {
		changes = m.reset(b)
	} else {
		changes = m.advance(b)
	}
	m.revision = b.Revision
	return changes
}

// Rebase takes a Reset of a store that has gone back behind the position: it was wiped, or
// is an older copy. Whatever is there is a change, since revisions of that store say
// nothing about those of this mirror, and what is not there is deleted.
func (m *Mirror) Rebase(b Batch) []Event {
	for key := range m.keys {
		m.keys[key] = Revisions{}
	}
	m.revision = 0
	return m.Apply(b)
}

func (m *Mirror) reset(b Batch) []Event {
	next := make(map[string]Revisions, len(b.Events))
	var changes []Event
	for _, event := range b.Events {
		if event.Deleted {
			continue
		}
		next[event.KV.Key] = Revisions{event.KV.Create, event.KV.Mod}
		if known, ok := m.keys[event.KV.Key]; !ok || known.Mod != event.KV.Mod {
			changes = append(changes, event)
		}
	}
	for key := range m.keys {
		if _, ok := next[key]; !ok {
			changes = append(changes, Event{KV: KV{Key: key, Mod: b.Revision}, Deleted: true})
		}
	}
	m.keys = next
	slices.SortFunc(changes, func(a, b Event) int { return strings.Compare(a.KV.Key, b.KV.Key) })
	return changes
}

func (m *Mirror) advance(b Batch) []Event {
	if m.keys == nil {
		m.keys = make(map[string]Revisions, len(b.Events))
	}
	changes := make([]Event, 0, len(b.Events))
	for _, event := range b.Events {
		if event.KV.Mod <= m.revision {
			continue
		}
		if event.Deleted {
			if _, ok := m.keys[event.KV.Key]; !ok {
				continue
			}
			delete(m.keys, event.KV.Key)
		} else {
			m.keys[event.KV.Key] = Revisions{event.KV.Create, event.KV.Mod}
		}
		changes = append(changes, event)
	}
	return changes
}

// Get returns what is remembered of a key.
func (m *Mirror) Get(key string) (Revisions, bool) {
	known, ok := m.keys[key]
	return known, ok
}

// Revision is the position: every change up to it has been applied. It is 0
// before the first batch.
func (m *Mirror) Revision() int64 { return m.revision }

// Len is the number of keys.
func (m *Mirror) Len() int { return len(m.keys) }

// Keys returns the keys in order.
func (m *Mirror) Keys() []string {
	keys := make([]string, 0, len(m.keys))
	for key := range m.keys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
