package records

import (
	"context"
	"time"
)

// KV is one stored key.
type KV struct {
	Key   string
	Value []byte
	// Create and Mod are the revisions at which the key came into being and was
	// last changed. A key deleted and put again has a new Create.
	Create int64
	Mod    int64
	// Version counts the puts since Create.
	Version int64
	// Lease is 0 for a key that stays until it is deleted.
	Lease int64
}

// Target is what a Compare looks at.
type Target uint8

// The targets of a Compare.
const (
	TargetMod Target = iota + 1
	TargetCreate
)

// Relation is how a Compare relates what it finds to its operand.
type Relation uint8

// The relations of a Compare.
const (
	Equal Relation = iota + 1
	NotEqual
	Greater
)

// Compare is one condition of a transaction. An absent key has Create and Mod
// 0. With Prefix it must hold for every key that starts with Key, so that
// create = 0 says that nothing is there.
type Compare struct {
	Key      string
	Prefix   bool
	Target   Target
	Relation Relation
	Operand  int64
}

// OpKind is what an Op does.
type OpKind uint8

// The kinds of an Op.
const (
	OpGet OpKind = iota + 1
	OpPut
	OpDelete
)

// Op is one read or write of a transaction.
type Op struct {
	Kind OpKind
	Key  string
	// Prefix extends a get or delete to every key that starts with Key.
	Prefix bool
	// End, for a get, is the first key that is not read any more; it stands
	// instead of Prefix.
	End string
	// Value and Lease are for puts.
	Value []byte
	Lease int64
	// Limit bounds how many keys a get returns; 0 means all.
	Limit int64
	// KeysOnly leaves the values and the leases out.
	KeysOnly bool
	// Descending returns the last keys first.
	Descending bool
}

// Scan asks for the first keys of a range, in order. What it costs is in proportion to
// Limit, where a get of an Op also counts all that its range holds.
type Scan struct {
	// From is the first key that may be returned, End the first that may not.
	From, End string
	// Limit is how many keys are returned at most; it is above 0.
	Limit int64
	// KeysOnly leaves the values and the leases out.
	KeysOnly bool
}

// Txn is one transaction: if every compare holds on the state before it, Then is
// carried out, otherwise Else.
type Txn struct {
	// Change says what it does to a run, for those who count; empty for others.
	Change Change
	If     []Compare
	Then   []Op
	Else   []Op
}

// Change is what a transaction does to a run.
type Change string

// The changes of runs. Those of a run up to its end are what it costs.
const (
	ChangeCreate  Change = "create"
	ChangePlace   Change = "place"
	ChangeUnplace Change = "unplace"
	ChangeUpdate  Change = "update"
	ChangeWish    Change = "wish"
	ChangeEnd     Change = "end"
	ChangeNote    Change = "note"
	ChangeRetire  Change = "retire"
)

// ReadOnly tells whether neither branch writes, so that an unknown outcome does
// no harm and the transaction may be repeated.
func (t Txn) ReadOnly() bool {
	for _, ops := range [][]Op{t.Then, t.Else} {
		for _, op := range ops {
			if op.Kind != OpGet {
				return false
			}
		}
	}
	return true
}

// OpResult is the outcome of one Op of the branch that was taken.
type OpResult struct {
	KVs []KV
	// Count is how many keys a get matched, beyond its limit too, or a delete
	// removed.
	Count int64
}

// Result is the outcome of a Txn. Unless Err is nil nothing else in it counts.
type Result struct {
	// Err has a Class. With ClassOutcomeUnknown the transaction may have been
	// carried out, or may still be; every other class means that it was not.
	Err error
	// Succeeded tells which branch was taken.
	Succeeded bool
	// Revision is the store's revision after the transaction. What it wrote has
	// this revision.
	Revision  int64
	Responses []OpResult
	// Term is the Raft term of the member that answered.
	Term uint64
}

// First returns the first key of the i-th response, if there is one.
func (r Result) First(i int) (KV, bool) {
	if i >= len(r.Responses) || len(r.Responses[i].KVs) == 0 {
		return KV{}, false
	}
	return r.Responses[i].KVs[0], true
}

// LeaseResult is the outcome of a call about a lease. Unless Err is nil nothing else
// in it counts; a lease that is gone has ClassNotFound.
type LeaseResult struct {
	Err   error
	Lease int64
	// TTL is what the store has granted.
	TTL time.Duration
	// Term is the Raft term of the member that answered.
	Term uint64
}

// Event is one change of a followed prefix.
type Event struct {
	KV KV
	// Deleted events carry the key and, as Mod, the revision of the deletion.
	Deleted bool
}

// Batch is what a follower of a prefix receives: first a Reset with all that is
// there, then changes in order. A gap that could not be bridged shows as another
// Reset; what it lacks was deleted.
type Batch struct {
	Reset bool
	// Revision is the position after this batch: every change up to it has been
	// seen.
	Revision int64
	Events   []Event
}

// Reader is the blocking face of a store, for callers that are not actors.
type Reader interface {
	// Do carries a transaction out. A read-only one is repeated until the context
	// ends; any other is sent once.
	Do(ctx context.Context, txn Txn) (Result, error)
}
