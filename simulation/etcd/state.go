package etcd

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/history"
)

// firstRevision is that of an empty store.
const firstRevision = 1

// State is all that a cluster has agreed on. Its exported methods only read.
type State struct {
	revision int64
	// compacted is the oldest revision that may still be read.
	compacted int64
	items     map[string]*item
	tree      *btree.BTree[*item]
	leases    map[int64]*lease
	// past holds the changes of each revision from oldest on, without a gap. It may
	// reach further back than compacted, for members that are behind.
	past   []history.Commit
	oldest int64

	// Of the transaction under way: the changes so far, and which branches its
	// compares have chosen, in the order of a walk down the branches that are taken.
	changes []history.Change
	path    []bool
}

// item is one key. The KV it points to never changes.
type item struct {
	key     string
	kv      *records.KV
	version int64
}

// lease holds keys that go with it.
type lease struct {
	id int64
	// seconds is the TTL.
	seconds int64
	keys    []string
}

func newState() *State {
	return &State{
		revision: firstRevision, compacted: -1, oldest: firstRevision + 1,
		items:  map[string]*item{},
		tree:   btree.New(32, func(a, b *item) bool { return a.key < b.key }),
		leases: map[int64]*lease{},
	}
}

// clone returns a copy that shares nothing that changes.
func (s *State) clone() *State {
	c := newState()
	c.revision, c.compacted, c.oldest = s.revision, s.compacted, s.oldest
	c.past = slices.Clone(s.past)
	s.tree.Ascend(func(i *item) bool {
		copied := *i
		c.items[i.key] = &copied
		c.tree.ReplaceOrInsert(&copied)
		return true
	})
	for id, l := range maps.All(s.leases) {
		c.leases[id] = &lease{id: l.id, seconds: l.seconds, keys: slices.Clone(l.keys)}
	}
	return c
}

// Revision is that of the newest change.
func (s *State) Revision() int64 { return s.revision }

// Get returns a key as it is now.
func (s *State) Get(key string) (records.KV, bool) {
	if i := s.items[key]; i != nil {
		return *i.kv, true
	}
	return records.KV{}, false
}

// Range returns the keys that begin with a prefix, as they are now, in order. The
// state must not change meanwhile.
func (s *State) Range(prefix string) iter.Seq[records.KV] {
	return func(yield func(records.KV) bool) {
		s.ascend(&Span{Key: prefix, Prefix: true}, func(i *item) bool { return yield(*i.kv) })
	}
}

// Lease tells whether a lease exists, and the keys that it holds, sorted.
func (s *State) Lease(id int64) (keys []string, ok bool) {
	l := s.leases[id]
	if l == nil {
		return nil, false
	}
	keys = slices.Clone(l.keys)
	slices.Sort(keys)
	return keys, true
}

// ascend calls each for the keys of a span in order, until it returns false.
func (s *State) ascend(span *Span, each func(*item) bool) {
	if span.End == "" && !span.Prefix {
		if i := s.items[span.Key]; i != nil {
			each(i)
		}
		return
	}
	s.tree.AscendGreaterOrEqual(&item{key: span.Key}, func(i *item) bool {
		if span.End != "" && i.key >= span.End || span.End == "" && !strings.HasPrefix(i.key, span.Key) {
			return false
		}
		return each(i)
	})
}

// put writes a key at the next revision.
func (s *State) put(key string, value []byte, id int64) {
	if len(value) == 0 {
		value = nil
	}
	kv := &records.KV{Key: key, Value: value, Create: s.revision + 1, Mod: s.revision + 1, Lease: id}
	i := s.items[key]
	var before *records.KV
	var held int64
	if i != nil {
		before, held = i.kv, i.kv.Lease
		kv.Create = before.Create
	} else {
		i = &item{key: key}
		s.items[key] = i
		s.tree.ReplaceOrInsert(i)
	}
	i.version++
	kv.Version = i.version
	i.kv = kv
	if held != id {
		s.detach(held, key)
		if l := s.leases[id]; l != nil {
			l.keys = append(l.keys, key)
		}
	}
	s.changes = append(s.changes, history.Change{Key: key, Before: before, After: kv})
}

func (s *State) remove(i *item) {
	delete(s.items, i.key)
	s.tree.Delete(i)
	s.detach(i.kv.Lease, i.key)
	s.changes = append(s.changes, history.Change{Key: i.key, Before: i.kv})
}

// removeAll deletes a span and returns how many keys that were.
func (s *State) removeAll(span *Span) int64 {
	var doomed []*item
	s.ascend(span, func(i *item) bool { doomed = append(doomed, i); return true })
	for _, i := range doomed {
		s.remove(i)
	}
	return int64(len(doomed))
}

func (s *State) detach(id int64, key string) {
	l := s.leases[id]
	if l == nil {
		return
	}
	if at := slices.Index(l.keys, key); at >= 0 {
		l.keys = slices.Delete(l.keys, at, at+1)
	}
}

// grant makes a lease.
func (s *State) grant(id, seconds int64) error {
	if s.leases[id] != nil {
		return errLeaseTaken
	}
	s.leases[id] = &lease{id: id, seconds: seconds}
	return nil
}

// revoke ends a lease and deletes what it holds, at one revision.
func (s *State) revoke(id int64) error {
	l := s.leases[id]
	if l == nil {
		return errLeaseGone
	}
	keys := slices.Clone(l.keys)
	slices.Sort(keys)
	for _, key := range keys {
		s.remove(s.items[key])
	}
	delete(s.leases, id)
	s.commit()
	return nil
}

// commit turns the changes under way into a revision. Without any there is none.
func (s *State) commit() {
	if len(s.changes) == 0 {
		return
	}
	s.revision++
	s.past = append(s.past, history.Commit{Revision: s.revision, Changes: slices.Clone(s.changes)})
	clear(s.changes)
	s.changes = s.changes[:0]
}

// since returns the commits after a revision.
func (s *State) since(revision int64) []history.Commit {
	return s.past[min(max(revision+1-s.oldest, 0), int64(len(s.past))):]
}

// compact makes what lies before a revision unreadable. The changes after keep stay
// for members that are behind.
func (s *State) compact(revision, keep int64) error {
	switch {
	case revision <= s.compacted:
		return ErrCompacted
	case revision > s.revision:
		return ErrFutureRevision
	}
	s.compacted = revision
	s.forget(keep)
	return nil
}

// forget drops the changes that neither a reader nor a member behind can ask for.
func (s *State) forget(keep int64) {
	drop := min(s.compacted, keep) - s.oldest
	if drop <= 0 {
		return
	}
	drop = min(drop, int64(len(s.past)))
	s.past = slices.Clone(s.past[drop:])
	s.oldest += drop
}
