package etcd

import "github.com/errand-run/errand/cluster/records"

// Target is what a Compare looks at.
type Target uint8

// The targets of a Compare.
const (
	TargetMod Target = iota + 1
	TargetCreate
	TargetVersion
	TargetLease
	TargetValue
)

// Relation is how what a Compare finds relates to its operand.
type Relation uint8

// The relations of a Compare.
const (
	Equal Relation = iota + 1
	NotEqual
	Greater
	Less
)

// Span names keys: one; all that begin with it, if Prefix is set; or, if End is,
// all from Key up to but not including End.
type Span struct {
	Key    string
	End    string
	Prefix bool
}

// Compare is one condition of a transaction. It must hold for every key of its
// span; of none, it is asked of a key whose numbers are all 0, and one of a value
// does not hold.
type Compare struct {
	Span
	Target   Target
	Relation Relation
	// Operand is compared with a number, Value with a value.
	Operand int64
	Value   []byte
}

// Kind is what an Op does.
type Kind uint8

// The kinds of an Op.
const (
	Range Kind = iota + 1
	Put
	Delete
	// Nested is a transaction in a transaction.
	Nested
)

// Op is one step of a transaction.
type Op struct {
	Kind Kind
	Span
	// Value and Lease are those of a Put.
	Value []byte
	Lease int64
	// Limit bounds how many keys a Range returns; 0 means all.
	Limit int64
	// Revision is that at which a Range reads; 0 is the newest.
	Revision   int64
	KeysOnly   bool
	Descending bool
	// Txn is that of a Nested.
	Txn *Txn
}

// Txn is a transaction. Every compare in it, those of nested ones too, is decided
// on the state before the outermost one; then the operations of the branches that
// were taken are carried out in order and see what earlier ones wrote.
type Txn struct {
	If         []Compare
	Then, Else []Op
}

// readOnly tells whether etcd takes the transaction for one that only reads: one
// with a nested transaction never is.
func (t *Txn) readOnly() bool {
	for _, ops := range [2][]Op{t.Then, t.Else} {
		for i := range ops {
			if ops[i].Kind != Range {
				return false
			}
		}
	}
	return true
}

// grows tells whether a branch puts something, which a full database refuses.
func (t *Txn) grows() bool {
	for _, ops := range [2][]Op{t.Then, t.Else} {
		for i := range ops {
			if ops[i].Kind == Put || ops[i].Kind == Nested && ops[i].Txn.grows() {
				return true
			}
		}
	}
	return false
}

// Response is the outcome of a Txn.
type Response struct {
	Succeeded bool
	// Revision is the store's revision afterwards; in a nested response it is 0.
	Revision int64
	Ops      []OpResponse
}

// OpResponse is the outcome of an Op.
type OpResponse struct {
	KVs []records.KV
	// Count is how many keys a Range matched, beyond its limit too, or a Delete
	// removed.
	Count int64
	// More says that a limit left keys out.
	More bool
	// Txn is that of a Nested.
	Txn *Response
}

// Refusals: answers that say for certain that nothing was done.
var (
	ErrEmptyKey        = records.Errorf(records.ClassInvalid, "etcdserver: key is not provided")
	ErrTooManyOps      = records.Errorf(records.ClassInvalid, "etcdserver: too many operations in txn request")
	ErrDuplicateKey    = records.Errorf(records.ClassInvalid, "etcdserver: duplicate key given in txn request")
	ErrTooLarge        = records.Errorf(records.ClassInvalid, "etcdserver: request is too large")
	ErrCompacted       = records.Errorf(records.ClassInvalid, "etcdserver: mvcc: required revision has been compacted")
	ErrFutureRevision  = records.Errorf(records.ClassInvalid, "etcdserver: mvcc: required revision is a future revision")
	ErrNoSpace         = records.Errorf(records.ClassUnavailable, "etcdserver: mvcc: database space exceeded")
	ErrTooManyRequests = records.Errorf(records.ClassUnavailable, "etcdserver: too many requests")
	ErrNoLeader        = records.Errorf(records.ClassUnavailable, "etcdserver: no leader")
	// errLeaseOfPut is a put under a lease that is gone: the writer no longer holds
	// what it acts under.
	errLeaseOfPut = records.Errorf(records.ClassLostOwnership, "etcdserver: requested lease not found")
	errLeaseGone  = records.Errorf(records.ClassNotFound, "etcdserver: requested lease not found")
	errLeaseTaken = records.Errorf(records.ClassConflict, "etcdserver: lease already exists")
)
