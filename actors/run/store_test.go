package run

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/cluster/records"
)

// memory is a linearizable store in a map, with the semantics that records.Txn
// promises.
type memory struct {
	revision int64
	keys     map[string]records.KV
	// ignoreMod breaks it on purpose: compares of mod revisions always hold.
	ignoreMod bool
	// written is called after each transaction that wrote, with the keys before.
	written func(before map[string]records.KV)
}

func newMemory() *memory { return &memory{revision: 1, keys: map[string]records.KV{}} }

func (s *memory) holds(c records.Compare) bool {
	for _, kv := range s.matching(c.Key, c.Prefix) {
		value := kv.Create
		if c.Target == records.TargetMod {
			if s.ignoreMod {
				continue
			}
			value = kv.Mod
		}
		ok := value == c.Operand
		switch c.Relation {
		case records.NotEqual:
			ok = !ok
		case records.Greater:
			ok = value > c.Operand
		default:
		}
		if !ok {
			return false
		}
	}
	return true
}

// matching returns the keys in order; for one key without prefix an absent key
// counts as one of revision 0.
func (s *memory) matching(key string, prefix bool) []records.KV {
	if !prefix {
		return []records.KV{s.keys[key]}
	}
	var found []records.KV
	for _, kv := range s.keys {
		if strings.HasPrefix(kv.Key, key) {
			found = append(found, kv)
		}
	}
	slices.SortFunc(found, func(a, b records.KV) int { return strings.Compare(a.Key, b.Key) })
	return found
}

func (s *memory) txn(t records.Txn) records.Result {
	ops, succeeded := t.Then, true
	for _, c := range t.If {
		if !s.holds(c) {
			ops, succeeded = t.Else, false
			break
		}
	}
	before := map[string]records.KV{}
	for key, kv := range s.keys {
		before[key] = kv
	}
	next, wrote := s.revision+1, false
	var responses []records.OpResult
	for _, op := range ops {
		var response records.OpResult
		switch op.Kind {
		case records.OpGet:
			for _, kv := range s.matching(op.Key, op.Prefix) {
				if kv.Mod > 0 {
					response.KVs = append(response.KVs, kv)
				}
			}
		case records.OpPut:
			create := s.keys[op.Key].Create
			if create == 0 {
				create = next
			}
			s.keys[op.Key] = records.KV{Key: op.Key, Value: op.Value, Create: create, Mod: next}
			wrote = true
		case records.OpDelete:
			if _, ok := s.keys[op.Key]; ok {
				delete(s.keys, op.Key)
				wrote = true
			}
		}
		responses = append(responses, response)
	}
	if wrote {
		s.revision = next
		if s.written != nil {
			s.written(before)
		}
	}
	return records.Result{Succeeded: succeeded, Revision: s.revision, Responses: responses}
}
