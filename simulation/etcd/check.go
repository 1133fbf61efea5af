package etcd

import (
	"slices"
	"strings"
)

const (
	// OpsMax is how many operations a default server takes in a transaction, added up
	// along the path from the outermost one.
	OpsMax = 128
	// RequestMax is how many bytes a default server takes in a write.
	RequestMax = 3 << 19
	// opOverhead is about what an operation takes on the wire beside its texts.
	opOverhead = 12
)

// check refuses what a server refuses before it looks at its state.
func check(txn *Txn, opsMax int) error {
	if err := checkWidth(txn, opsMax); err != nil {
		return err
	}
	for _, ops := range [2][]Op{txn.Then, txn.Else} {
		if _, err := overlaps(ops); err != nil {
			return err
		}
	}
	if !txn.readOnly() && size(txn) > RequestMax {
		return ErrTooLarge
	}
	return nil
}

func checkWidth(txn *Txn, left int) error {
	width := max(len(txn.If), len(txn.Then), len(txn.Else))
	if width > left {
		return ErrTooManyOps
	}
	for i := range txn.If {
		if txn.If[i].Key == "" {
			return ErrEmptyKey
		}
	}
	for _, ops := range [2][]Op{txn.Then, txn.Else} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Kind == Nested:
				if err := checkWidth(op.Txn, left-width); err != nil {
					return err
				}
			case op.Key == "" && !op.Prefix:
				return ErrEmptyKey
			}
		}
	}
	return nil
}

// contains tells whether a key lies in a span.
func (s *Span) contains(key string) bool {
	switch {
	case s.End != "":
		return s.Key <= key && key < s.End
	case s.Prefix:
		return strings.HasPrefix(key, s.Key)
	default:
		return s.Key == key
	}
}

// writes are the keys that some operations put and the spans that they delete.
type writes struct {
	puts []string
	dels []*Span
}

func (w *writes) deletes(key string) bool {
	return slices.ContainsFunc(w.dels, func(s *Span) bool { return s.contains(key) })
}

// overlaps refuses operations of which two put one key, or one puts what another
// deletes. Siblings are looked at in order: of these a put before a delete passes.
// The order of a transaction's own operations does not matter.
func overlaps(ops []Op) (writes, error) {
	var w writes
	for i := range ops {
		if ops[i].Kind == Delete {
			w.dels = append(w.dels, &ops[i].Span)
		}
	}
	// seen is filled where there are siblings, whose puts may be many.
	var seen map[string]bool
	for i := range ops {
		if ops[i].Kind != Nested {
			continue
		}
		if seen == nil {
			seen = map[string]bool{}
		}
		if err := w.join(ops[i].Txn, seen); err != nil {
			return writes{}, err
		}
	}
	siblings := len(w.puts)
	for i := range ops {
		if ops[i].Kind != Put {
			continue
		}
		key := ops[i].Key
		if seen[key] || slices.Contains(w.puts[siblings:], key) || w.deletes(key) {
			return writes{}, ErrDuplicateKey
		}
		w.puts = append(w.puts, key)
	}
	return w, nil
}

// join adds what a nested transaction writes. Its branches exclude each other and
// may put the same key.
func (w *writes) join(txn *Txn, seen map[string]bool) error {
	then, err := overlaps(txn.Then)
	if err != nil {
		return err
	}
	otherwise, err := overlaps(txn.Else)
	if err != nil {
		return err
	}
	for _, key := range then.puts {
		if seen[key] || w.deletes(key) {
			return ErrDuplicateKey
		}
	}
	for _, key := range otherwise.puts {
		if seen[key] || w.deletes(key) {
			return ErrDuplicateKey
		}
	}
	for _, puts := range [2][]string{then.puts, otherwise.puts} {
		for _, key := range puts {
			if !seen[key] {
				seen[key] = true
				w.puts = append(w.puts, key)
			}
		}
	}
	w.dels = append(append(w.dels, then.dels...), otherwise.dels...)
	return nil
}

// size is about how many bytes a transaction takes on the wire.
func size(txn *Txn) int {
	total := 0
	for i := range txn.If {
		total += opOverhead + len(txn.If[i].Key) + len(txn.If[i].End) + len(txn.If[i].Value)
	}
	for _, ops := range [2][]Op{txn.Then, txn.Else} {
		for i := range ops {
			total += opOverhead + len(ops[i].Key) + len(ops[i].End) + len(ops[i].Value)
			if ops[i].Kind == Nested {
				total += size(ops[i].Txn)
			}
		}
	}
	return total
}
