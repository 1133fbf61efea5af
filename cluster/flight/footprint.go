package flight

import (
	"slices"

	"github.com/errand-run/errand/cluster/records"
)

// touch is one key that a transaction compares or reads, or that it writes.
type touch struct {
	key   string
	write bool
}

// stretch is the keys from one up to another, which is not among them any more; none
// is beyond an open one.
type stretch struct {
	from, to string
	open     bool
	write    bool
}

func (s *stretch) contains(key string) bool {
	return s.from <= key && (s.open || key < s.to)
}

func (s *stretch) meets(other *stretch) bool {
	return (other.open || s.from < other.to) && (s.open || other.from < s.to)
}

// beginningWith is the stretch of all keys that begin with a prefix.
func beginningWith(prefix string, write bool) stretch {
	end := []byte(prefix)
	for len(end) > 0 {
		last := len(end) - 1
		if end[last] < 0xff {
			end[last]++
			return stretch{from: prefix, to: string(end), write: write}
		}
		end = end[:last]
	}
	return stretch{from: prefix, open: true, write: write}
}

// footprint is all that a transaction compares, reads or writes, in whichever branch.
// A limited read has the footprint of the whole range: what it returns depends on all
// of it.
type footprint struct {
	keys      []touch
	stretches []stretch
}

func footprintOf(txn *records.Txn) footprint {
	f := footprint{keys: make([]touch, 0, len(txn.If)+len(txn.Then)+len(txn.Else))}
	for i := range txn.If {
		if c := &txn.If[i]; c.Prefix {
			f.stretches = append(f.stretches, beginningWith(c.Key, false))
		} else {
			f.keys = append(f.keys, touch{key: c.Key})
		}
	}
	for _, ops := range [2][]records.Op{txn.Then, txn.Else} {
		for i := range ops {
			op := &ops[i]
			write := op.Kind != records.OpGet
			switch {
			case op.Kind == records.OpGet && op.End != "":
				f.stretches = append(f.stretches, stretch{from: op.Key, to: op.End})
			case op.Kind != records.OpPut && op.Prefix:
				f.stretches = append(f.stretches, beginningWith(op.Key, write))
			default:
				f.keys = append(f.keys, touch{op.Key, write})
			}
		}
	}
	return f
}

// uses counts how often a key is compared or read, and how often written.
type uses struct{ reads, writes int }

func (u uses) with(write bool, n int) uses {
	if write {
		u.writes += n
	} else {
		u.reads += n
	}
	return u
}

// conflicts tells whether one more use can not be beside these.
func (u uses) conflicts(write bool) bool { return u.writes > 0 || write && u.reads > 0 }

// claims are the footprints that others must not run into.
type claims struct {
	keys map[string]uses
	// wide are those that have stretches.
	wide []*footprint
}

func (c *claims) add(f *footprint) {
	if c.keys == nil {
		c.keys = map[string]uses{}
	}
	c.count(f, 1)
	if len(f.stretches) > 0 {
		c.wide = append(c.wide, f)
	}
}

func (c *claims) remove(f *footprint) {
	c.count(f, -1)
	if len(f.stretches) > 0 {
		i := slices.Index(c.wide, f)
		c.wide = slices.Delete(c.wide, i, i+1)
	}
}

func (c *claims) count(f *footprint, n int) {
	for _, t := range f.keys {
		if u := c.keys[t.key].with(t.write, n); u == (uses{}) {
			delete(c.keys, t.key)
		} else {
			c.keys[t.key] = u
		}
	}
}

// conflict tells whether a footprint runs into one that is claimed: one of the two
// writes what the other compares, reads or writes.
func (c *claims) conflict(f *footprint) bool {
	for _, t := range f.keys {
		if c.keys[t.key].conflicts(t.write) {
			return true
		}
	}
	for _, claimed := range c.wide {
		if f.runsInto(claimed) {
			return true
		}
	}
	return len(f.stretches) > 0 && c.keyWithin(f.stretches)
}

// runsInto tells whether a footprint meets the stretches of another.
func (f *footprint) runsInto(other *footprint) bool {
	for i := range other.stretches {
		s := &other.stretches[i]
		for _, t := range f.keys {
			if (t.write || s.write) && s.contains(t.key) {
				return true
			}
		}
		for k := range f.stretches {
			if mine := &f.stretches[k]; (mine.write || s.write) && mine.meets(s) {
				return true
			}
		}
	}
	return false
}

// keyWithin tells whether a claimed key lies in one of some stretches and conflicts.
func (c *claims) keyWithin(stretches []stretch) bool {
	for key, u := range c.keys { //errand:unordered whether there is one does not depend on which is found
		for i := range stretches {
			if s := &stretches[i]; s.contains(key) && u.conflicts(s.write) {
				return true
			}
		}
	}
	return false
}
