package etcd

import "github.com/errand-run/errand/cluster/records"

// translator turns the transactions of package records into those of the state. It
// reuses its memory: one translation is in use at a time.
type translator struct {
	txn             Txn
	compares        []Compare
	then, otherwise []Op
	ops             []OpResponse
}

func (t *translator) translate(from *records.Txn) *Txn {
	t.compares = t.compares[:0]
	for i := range from.If {
		c := &from.If[i]
		t.compares = append(t.compares, Compare{
			Span: Span{Key: c.Key, Prefix: c.Prefix}, Operand: c.Operand,
			Target: targets[c.Target], Relation: relations[c.Relation],
		})
	}
	t.then = translateOps(t.then[:0], from.Then)
	t.otherwise = translateOps(t.otherwise[:0], from.Else)
	t.txn = Txn{If: t.compares, Then: t.then, Else: t.otherwise}
	return &t.txn
}

var (
	targets   = [...]Target{records.TargetMod: TargetMod, records.TargetCreate: TargetCreate}
	relations = [...]Relation{records.Equal: Equal, records.NotEqual: NotEqual, records.Greater: Greater}
	kinds     = [...]Kind{records.OpGet: Range, records.OpPut: Put, records.OpDelete: Delete}
)

func translateOps(into []Op, from []records.Op) []Op {
	for i := range from {
		op := &from[i]
		to := Op{Kind: kinds[op.Kind], Span: Span{Key: op.Key}}
		switch to.Kind {
		case Put:
			to.Value, to.Lease = op.Value, op.Lease
		case Delete:
			to.Prefix = op.Prefix
		default:
			to.End, to.Prefix = op.End, op.Prefix && op.End == ""
			to.Limit, to.KeysOnly, to.Descending = op.Limit, op.KeysOnly, op.Descending
		}
		into = append(into, to)
	}
	return into
}

// known refuses what there are no words for, as the production adapter does.
func known(txn *records.Txn) error {
	for i := range txn.If {
		c := &txn.If[i]
		if int(c.Target) >= len(targets) || targets[c.Target] == 0 || int(c.Relation) >= len(relations) || relations[c.Relation] == 0 {
			return records.Errorf(records.ClassInvalid, "compare of %q: target %d, relation %d", c.Key, c.Target, c.Relation)
		}
	}
	for _, ops := range [2][]records.Op{txn.Then, txn.Else} {
		for i := range ops {
			if kind := ops[i].Kind; int(kind) >= len(kinds) || kinds[kind] == 0 {
				return records.Errorf(records.ClassInvalid, "operation on %q of kind %d", ops[i].Key, kind)
			}
		}
	}
	return nil
}

// result turns the answer to a translated transaction back.
func result(response Response, term uint64) records.Result {
	r := records.Result{
		Succeeded: response.Succeeded, Revision: response.Revision, Term: term,
		Responses: make([]records.OpResult, len(response.Ops)),
	}
	for i := range response.Ops {
		r.Responses[i] = records.OpResult{KVs: response.Ops[i].KVs, Count: response.Ops[i].Count}
	}
	return r
}
