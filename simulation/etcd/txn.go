package etcd

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/history"
)

// apply carries a transaction out, or refuses it and changes nothing. The
// outermost responses are appended to into.
func (s *State) apply(txn *Txn, into []OpResponse) (Response, error) {
	s.path = s.decide(txn, s.path[:0])
	if _, err := s.refusal(txn, s.path); err != nil {
		return Response{}, err
	}
	response, _ := s.execute(txn, s.path, into)
	s.commit()
	response.Revision = s.revision
	return response, nil
}

// decide appends which branch each transaction takes: the outermost first, then
// those in its branch, each followed by its own.
func (s *State) decide(txn *Txn, path []bool) []bool {
	holds := true
	for i := range txn.If {
		if !s.holds(&txn.If[i]) {
			holds = false
			break
		}
	}
	path = append(path, holds)
	ops := txn.branch(holds)
	for i := range ops {
		if ops[i].Kind == Nested {
			path = s.decide(ops[i].Txn, path)
		}
	}
	return path
}

func (t *Txn) branch(holds bool) []Op {
	if holds {
		return t.Then
	}
	return t.Else
}

func (s *State) holds(c *Compare) bool {
	if c.End == "" && !c.Prefix {
		i := s.items[c.Key]
		if i == nil {
			return c.Target != TargetValue && c.of(absent)
		}
		return c.of(i)
	}
	holds, found := true, false
	s.ascend(&c.Span, func(i *item) bool {
		found = true
		holds = c.of(i)
		return holds
	})
	if !found {
		return c.Target != TargetValue && c.of(absent)
	}
	return holds
}

// absent is what compares find where there is no key.
var absent = &item{kv: &records.KV{}}

func (c *Compare) of(i *item) bool {
	var order int
	switch c.Target {
	case TargetMod:
		order = cmp.Compare(i.kv.Mod, c.Operand)
	case TargetCreate:
		order = cmp.Compare(i.kv.Create, c.Operand)
	case TargetVersion:
		order = cmp.Compare(i.version, c.Operand)
	case TargetLease:
		order = cmp.Compare(i.kv.Lease, c.Operand)
	case TargetValue:
		order = bytes.Compare(i.kv.Value, c.Value)
	}
	switch c.Relation {
	case NotEqual:
		return order != 0
	case Greater:
		return order > 0
	case Less:
		return order < 0
	default:
		return order == 0
	}
}

// refusal looks through the branches that are taken for what can not be done. used
// is how many entries of the path belong to the transaction.
func (s *State) refusal(txn *Txn, path []bool) (used int, err error) {
	used = 1
	ops := txn.branch(path[0])
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case Put:
			if op.Lease != 0 && s.leases[op.Lease] == nil {
				return 0, errLeaseOfPut
			}
		case Range:
			switch {
			case op.Revision > s.revision:
				return 0, ErrFutureRevision
			case op.Revision != 0 && op.Revision < s.compacted:
				return 0, ErrCompacted
			}
		case Nested:
			n, err := s.refusal(op.Txn, path[used:])
			if err != nil {
				return 0, err
			}
			used += n
		}
	}
	return used, nil
}

func (s *State) execute(txn *Txn, path []bool, into []OpResponse) (response Response, used int) {
	response.Succeeded, used = path[0], 1
	ops := txn.branch(path[0])
	for i := range ops {
		var r OpResponse
		switch op := &ops[i]; op.Kind {
		case Put:
			s.put(op.Key, op.Value, op.Lease)
		case Delete:
			r.Count = s.removeAll(&op.Span)
		case Range:
			r = s.read(op)
		case Nested:
			child, n := s.execute(op.Txn, path[used:], nil)
			r.Txn = &child
			used += n
		}
		into = append(into, r)
	}
	response.Ops = into
	return response, used
}

// read carries a Range out.
func (s *State) read(op *Op) OpResponse {
	var r OpResponse
	if op.Revision != 0 {
		r.KVs = s.at(&op.Span, op.Revision)
		r.Count = int64(len(r.KVs))
	} else {
		keep := op.Limit
		if op.Descending {
			keep = 0
		}
		s.ascend(&op.Span, func(i *item) bool {
			if r.Count++; keep == 0 || r.Count <= keep {
				r.KVs = append(r.KVs, *i.kv)
			}
			return true
		})
	}
	if op.Descending {
		slices.Reverse(r.KVs)
	}
	if op.Limit > 0 && r.Count > op.Limit {
		r.KVs, r.More = r.KVs[:op.Limit], true
	}
	if op.KeysOnly {
		// Answered from the index, which knows no leases either.
		for i := range r.KVs {
			r.KVs[i].Value, r.KVs[i].Lease = nil, 0
		}
	}
	return r
}

// at returns a span as it was at a revision, by undoing what came later.
func (s *State) at(span *Span, revision int64) []records.KV {
	was := map[string]*records.KV{}
	undo := func(changes []history.Change) {
		for i := len(changes) - 1; i >= 0; i-- {
			if span.contains(changes[i].Key) {
				was[changes[i].Key] = changes[i].Before
			}
		}
	}
	undo(s.changes)
	later := s.since(revision)
	for i := len(later) - 1; i >= 0; i-- {
		undo(later[i].Changes)
	}
	var kvs []records.KV
	s.ascend(span, func(i *item) bool {
		if _, changed := was[i.key]; !changed {
			kvs = append(kvs, *i.kv)
		}
		return true
	})
	for _, kv := range was {
		if kv != nil {
			kvs = append(kvs, *kv)
		}
	}
	slices.SortFunc(kvs, func(a, b records.KV) int { return strings.Compare(a.Key, b.Key) })
	return kvs
}
