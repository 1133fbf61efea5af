package flight

import "github.com/errand-run/errand/cluster/records"

const (
	// Limit is how many operations a default server takes in a transaction, added up
	// along the path into a member: a flight of n members, the widest of which has w
	// operations or compares in one list, needs n + w.
	Limit = 128
	// BytesMax bounds a flight. A default server takes a request of one and a half times
	// that; a member that is larger goes alone.
	BytesMax = 1 << 20
	// LookMax is how many waiting transactions are looked at for one flight. Those
	// behind wait for the next.
	LookMax = 512
	// overhead is at least what an operation or compare takes beside its texts, in bytes.
	overhead = 32
)

// Options are the bounds of a Machine. All must be above 0.
type Options struct {
	// Flights is how many flights may be under way at a time.
	Flights int
	// Alone is how many transactions may be under way at a time that go alone, beside
	// the flights.
	Alone int
	// Members is how many a flight may have at most; 1 means that nothing is sent
	// together.
	Members int
}

// Member is a transaction that was handed over, and whose it is.
type Member[T any] struct {
	Txn   records.Txn
	Owner T

	footprint footprint
	width     int
	bytes     int
	// alone says that it shares no flight.
	alone      bool
	waiting    bool
	prev, next *Member[T]
}

// Flight is what leaves at once. A flight of one member is sent as that transaction,
// one of several as a transaction that holds each of them, in order.
type Flight[T any] struct {
	Members []*Member[T]

	widest int
	bytes  int
	alone  bool
}

// Answer is what becomes of a member.
type Answer[T any] struct {
	Member *Member[T]
	Result records.Result
}

// Machine decides what is sent together; see the package. The zero value is of no use.
// It belongs to one goroutine at a time. Who drives it asks Depart after every other
// call, until nothing departs.
type Machine[T any] struct {
	options Options
	// limit is what the server is thought to take. Of what flights have needed, taken is
	// the most that it took and refused the least that it did not.
	limit, taken, refused int

	first, last *Member[T]
	// waiting counts those that wait, waitingAlone those of them that go alone.
	waiting, waitingAlone int
	// flying and flyingAlone count what is under way.
	flying, flyingAlone int
	// claims are the footprints of what is under way.
	claims claims
	passed []*Member[T]
}

// New makes a machine on which nothing is under way.
func New[T any](options Options) *Machine[T] {
	return &Machine[T]{options: options, limit: Limit, refused: Limit + 1}
}

// Waiting is how many transactions wait to be sent.
func (m *Machine[T]) Waiting() int { return m.waiting }

// Limit is how many operations the server is thought to take in a transaction.
func (m *Machine[T]) Limit() int { return m.limit }

// Submit hands a transaction over. It is not sent before Depart says so.
func (m *Machine[T]) Submit(txn records.Txn, owner T) *Member[T] {
	member := &Member[T]{
		Txn: txn, Owner: owner, footprint: footprintOf(&txn),
		width: max(len(txn.If), len(txn.Then), len(txn.Else)), bytes: bytesOf(&txn), alone: putsUnderLease(&txn),
	}
	m.insert(member, m.last)
	return member
}

// Withdraw takes a member out that still waits, and tells whether it did. Nobody is
// answered for it.
func (m *Machine[T]) Withdraw(member *Member[T]) bool {
	if !member.waiting {
		return false
	}
	m.remove(member)
	return true
}

// Clear takes all out that wait, in order. Nobody is answered for them.
func (m *Machine[T]) Clear() []*Member[T] {
	members := make([]*Member[T], 0, m.waiting)
	for m.first != nil {
		members = append(members, m.first)
		m.remove(m.first)
	}
	return members
}

// Depart returns the next flight that leaves, nil if none may. Exactly one of
// Answered, Refused and Unanswered must be told what became of it.
func (m *Machine[T]) Depart() *Flight[T] {
	if !m.room(false) && (m.waitingAlone == 0 || !m.room(true)) {
		return nil
	}
	var f *Flight[T]
	looked := 0
	for member := m.first; member != nil && looked < LookMax; looked++ {
		next := member.next
		switch {
		case m.claims.conflict(&member.footprint), !m.room(member.alone), f != nil && member.alone:
			// Whatever comes later and conflicts with it has to wait as well.
			m.claims.add(&member.footprint)
			m.passed = append(m.passed, member)
		case f == nil:
			f = &Flight[T]{alone: member.alone}
			m.board(f, member)
		case m.fits(f, member):
			m.board(f, member)
		default:
			next = nil
		}
		if f != nil && (f.alone || len(f.Members) >= m.options.Members) {
			next = nil
		}
		member = next
	}
	for i, member := range m.passed {
		m.claims.remove(&member.footprint)
		m.passed[i] = nil
	}
	m.passed = m.passed[:0]
	if f != nil {
		*m.underWay(f.alone)++
	}
	return f
}

func (m *Machine[T]) underWay(alone bool) *int {
	if alone {
		return &m.flyingAlone
	}
	return &m.flying
}

func (m *Machine[T]) room(alone bool) bool {
	if alone {
		return m.flyingAlone < m.options.Alone
	}
	return m.flying < m.options.Flights
}

// fits tells whether a flight that has a member may have another.
func (m *Machine[T]) fits(f *Flight[T], member *Member[T]) bool {
	return len(f.Members)+1+max(f.widest, member.width) <= m.limit && f.bytes+member.bytes <= BytesMax
}

func (m *Machine[T]) board(f *Flight[T], member *Member[T]) {
	m.remove(member)
	m.claims.add(&member.footprint)
	f.Members = append(f.Members, member)
	f.widest = max(f.widest, member.width)
	f.bytes += member.bytes
}

// Answered is told what the store has answered for each member, in their order, with
// the revision and the term of the flight. Those of the answers in it count for
// nothing: the store has none there.
func (m *Machine[T]) Answered(f *Flight[T], revision int64, term uint64, results []records.Result) []Answer[T] {
	if len(results) != len(f.Members) {
		return m.Unanswered(f, records.Errorf(records.ClassOutcomeUnknown, "%d answers to %d transactions", len(results), len(f.Members)))
	}
	m.land(f)
	if len(f.Members) > 1 {
		m.tookOf(len(f.Members) + f.widest)
	}
	answers := make([]Answer[T], len(f.Members))
	for i, member := range f.Members {
		result := results[i]
		result.Revision, result.Term = revision, term
		answers[i] = Answer[T]{member, result}
	}
	return answers
}

// Refused is told that the store has said for certain that it did nothing, and
// whether that was because of too many operations. Who was alone is answered so. Of
// several, nobody knows whom it was about: they go again, each alone, before all that
// wait.
func (m *Machine[T]) Refused(f *Flight[T], err error, tooMany bool) []Answer[T] {
	m.land(f)
	needed := f.widest
	if len(f.Members) > 1 {
		needed += len(f.Members)
	}
	if tooMany {
		m.refusedOf(needed)
	}
	if len(f.Members) == 1 {
		return []Answer[T]{{f.Members[0], records.Result{Err: err}}}
	}
	var before *Member[T]
	for _, member := range f.Members {
		member.alone = true
		m.insert(member, before)
		before = member
	}
	return nil
}

// Unanswered is told that no answer came. Every member has the error, whose class says
// whether the flight may have been carried out: none is sent again.
func (m *Machine[T]) Unanswered(f *Flight[T], err error) []Answer[T] {
	m.land(f)
	answers := make([]Answer[T], len(f.Members))
	for i, member := range f.Members {
		answers[i] = Answer[T]{member, records.Result{Err: err}}
	}
	return answers
}

func (m *Machine[T]) land(f *Flight[T]) {
	*m.underWay(f.alone)--
	for _, member := range f.Members {
		m.claims.remove(&member.footprint)
	}
}

// refusedOf learns that the server does not take what a transaction needed. What lies
// between that and what it has taken is halved each time.
func (m *Machine[T]) refusedOf(needed int) {
	if needed > m.limit {
		return
	}
	m.refused = needed
	if m.taken >= needed {
		m.taken = 0 // another server than before
	}
	m.limit = max((m.taken+m.refused)/2, 1)
}

func (m *Machine[T]) tookOf(needed int) {
	if needed > m.taken {
		m.taken = needed
		m.limit = max(m.limit, (m.taken+m.refused)/2)
	}
}

// insert puts a member behind another among those that wait; nil stands for the front.
func (m *Machine[T]) insert(member, behind *Member[T]) {
	member.waiting, member.prev = true, behind
	if behind == nil {
		member.next, m.first = m.first, member
	} else {
		member.next, behind.next = behind.next, member
	}
	if member.next == nil {
		m.last = member
	} else {
		member.next.prev = member
	}
	m.waiting++
	if member.alone {
		m.waitingAlone++
	}
}

func (m *Machine[T]) remove(member *Member[T]) {
	if member.prev == nil {
		m.first = member.next
	} else {
		member.prev.next = member.next
	}
	if member.next == nil {
		m.last = member.prev
	} else {
		member.next.prev = member.prev
	}
	member.waiting, member.prev, member.next = false, nil, nil
	m.waiting--
	if member.alone {
		m.waitingAlone--
	}
}

// putsUnderLease tells whether a branch puts a key under a lease. If that is gone the
// store refuses all that came with it.
func putsUnderLease(txn *records.Txn) bool {
	for _, ops := range [2][]records.Op{txn.Then, txn.Else} {
		for i := range ops {
			if ops[i].Lease != 0 {
				return true
			}
		}
	}
	return false
}

func bytesOf(txn *records.Txn) int {
	total := overhead
	for i := range txn.If {
		total += overhead + len(txn.If[i].Key)
	}
	for _, ops := range [2][]records.Op{txn.Then, txn.Else} {
		for i := range ops {
			total += overhead + len(ops[i].Key) + len(ops[i].End) + len(ops[i].Value)
		}
	}
	return total
}
