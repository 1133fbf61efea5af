package flight

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/errand-run/errand/cluster/records"
)

var options = Options{Flights: 1, Alone: 2, Members: Limit}

func put(key string) records.Op { return records.Op{Kind: records.OpPut, Key: key} }

func del(key string) records.Op { return records.Op{Kind: records.OpDelete, Key: key} }

func writes(ops ...records.Op) records.Txn { return records.Txn{Then: ops} }

// ifAbsent writes a key unless another is there.
func ifAbsent(key string, then ...records.Op) records.Txn {
	return records.Txn{If: []records.Compare{{Key: key, Target: records.TargetCreate, Relation: records.Equal}}, Then: then}
}

func ifNobody(prefix string, then ...records.Op) records.Txn {
	txn := ifAbsent(prefix, then...)
	txn.If[0].Prefix = true
	return txn
}

// submitted hands transactions over whose owners are their numbers.
func submitted(m *Machine[int], txns ...records.Txn) {
	for _, txn := range txns {
		m.Submit(txn, m.Waiting())
	}
}

// owners are those on a flight, in order.
func owners(f *Flight[int]) string {
	if f == nil {
		return "none"
	}
	var text []string
	for _, member := range f.Members {
		text = append(text, fmt.Sprint(member.Owner))
	}
	return strings.Join(text, " ")
}

func TestWhoSharesAFlight(t *testing.T) {
	read := func(op records.Op) records.Txn { return writes(op, put("of its own")) }
	for _, c := range []struct {
		name string
		txns []records.Txn
		want string
	}{
		{"different keys", []records.Txn{writes(put("a")), writes(put("b")), writes(del("c"))}, "0 1 2"},
		{"one key put twice", []records.Txn{writes(put("a")), writes(put("a")), writes(put("b"))}, "0 2"},
		{"one key put and deleted", []records.Txn{writes(put("a")), writes(del("a"))}, "0"},
		{"one key deleted twice", []records.Txn{writes(del("a")), writes(del("a"))}, "0"},
		{"a key that is put in branches that exclude each other", []records.Txn{{Then: []records.Op{put("a")}}, {Else: []records.Op{put("a")}}}, "0"},
		{"a key that another compares", []records.Txn{ifAbsent("a", put("b")), writes(put("a"))}, "0"},
		{"a key that another reads", []records.Txn{read(records.Get("a")), writes(put("a"))}, "0"},
		{"a key that another reads if it does not succeed", []records.Txn{{Then: []records.Op{put("b")}, Else: []records.Op{records.Get("a")}}, writes(put("a"))}, "0"},
		{"each writes what the other compares", []records.Txn{ifAbsent("a", put("b")), ifAbsent("b", put("a"))}, "0"},
		{"a key that several compare and read", []records.Txn{ifAbsent("n", put("a")), ifAbsent("n", put("b"), records.Get("n"))}, "0 1"},
		{"a key of a prefix that another compares", []records.Txn{ifNobody("a/", put("b")), writes(put("a/1"))}, "0"},
		{"a prefix that is compared after one of its keys was put", []records.Txn{writes(put("a/1")), ifNobody("a/", put("b"))}, "0"},
		{"a key beside a prefix", []records.Txn{ifNobody("a/", put("b")), writes(put("a0")), writes(put("a."))}, "0 1 2"},
		{"a key of a prefix that another deletes", []records.Txn{writes(records.Op{Kind: records.OpDelete, Key: "a/", Prefix: true}), ifAbsent("a/1", put("b"))}, "0"},
		{"prefixes of which one is deleted", []records.Txn{ifNobody("a/", put("b")), writes(records.Op{Kind: records.OpDelete, Key: "a/1/", Prefix: true})}, "0"},
		{"prefixes that are compared", []records.Txn{ifNobody("a/", put("b")), ifNobody("a/1/", put("c"))}, "0 1"},
		{"a prefix without an end", []records.Txn{ifNobody("\xff\xff", put("b")), writes(put("\xff\xff\xff"))}, "0"},
		{"the empty prefix", []records.Txn{ifNobody("", put("b")), writes(put("a"))}, "0"},
		{"the last key of a limited read", []records.Txn{read(records.Op{Kind: records.OpGet, Key: "a/", Prefix: true, Limit: 1}), writes(put("a/9"))}, "0"},
		{"a key in a range", []records.Txn{read(records.Op{Kind: records.OpGet, Key: "a", End: "c"}), writes(put("b"))}, "0"},
		{"the end of a range", []records.Txn{read(records.Op{Kind: records.OpGet, Key: "a", End: "c"}), writes(put("c"))}, "0 1"},
		{"whoever comes after one that waits, and conflicts with it", []records.Txn{writes(put("a")), writes(put("a"), put("b")), writes(put("b")), writes(put("c"))}, "0 3"},
		{"who comes first is under a lease", []records.Txn{writes(records.Op{Kind: records.OpPut, Key: "a", Lease: 7}), writes(put("b"))}, "0"},
		{"one under a lease in the branch that is not wanted", []records.Txn{writes(put("b")), {Then: []records.Op{put("c")}, Else: []records.Op{{Kind: records.OpPut, Key: "a", Lease: 7}}}, writes(put("d"))}, "0 2"},
		{"who conflicts with one that goes alone", []records.Txn{writes(put("b")), writes(records.Op{Kind: records.OpPut, Key: "a", Lease: 7}), ifAbsent("a", put("d"))}, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New[int](options)
			submitted(m, c.txns...)
			if got := owners(m.Depart()); got != c.want {
				t.Errorf("%s left, want %s", got, c.want)
			}
		})
	}
}

func wide(key string, width int) records.Txn {
	var txn records.Txn
	for i := range width {
		txn.Then = append(txn.Then, put(fmt.Sprintf("%s/%d", key, i)))
	}
	return txn
}

func TestAFlightNeedsRoomForItsWidestMember(t *testing.T) {
	m := New[int](options)
	for i := range 200 {
		m.Submit(wide(fmt.Sprint(i), 5), i)
	}
	if n := len(m.Depart().Members); n != 123 {
		t.Errorf("%d members of width 5 left, want 123", n)
	}
	m = New[int](options)
	submitted(m, wide("a", 100), wide("b", 1), wide("c", 126), wide("d", 127))
	if got := owners(m.Depart()); got != "0 1" {
		t.Errorf("%s left: with c there would be more operations than the limit", got)
	}
	m = New[int](options)
	submitted(m, wide("a", 300), wide("b", 1))
	if got := owners(m.Depart()); got != "0" {
		t.Errorf("%s left: whoever is too wide for any flight goes alone, and is refused", got)
	}
}

func TestAFlightHasRoomForSoManyBytes(t *testing.T) {
	large := func(key string, bytes int) records.Txn {
		return writes(records.Op{Kind: records.OpPut, Key: key, Value: make([]byte, bytes)})
	}
	m := New[int](options)
	submitted(m, large("a", BytesMax/2), large("b", BytesMax/2-1000), large("c", 1000))
	if got := owners(m.Depart()); got != "0 1" {
		t.Errorf("%s left", got)
	}
	m = New[int](options)
	submitted(m, large("a", 2*BytesMax), large("b", 1))
	if got := owners(m.Depart()); got != "0" {
		t.Errorf("%s left", got)
	}
}

func answersOf(answers []Answer[int]) string {
	var text []string
	for _, a := range answers {
		text = append(text, fmt.Sprintf("%d: %v %d %v", a.Member.Owner, a.Result.Succeeded, a.Result.Revision, a.Result.Err))
	}
	return strings.Join(text, ", ")
}

func TestMembersAreAnsweredWithTheFlightsRevision(t *testing.T) {
	m := New[int](options)
	submitted(m, writes(put("a")), writes(put("b")))
	f := m.Depart()
	answers := m.Answered(f, 70, 3, []records.Result{{Succeeded: true}, {Revision: 0}})
	if got, want := answersOf(answers), "0: true 70 <nil>, 1: false 70 <nil>"; got != want {
		t.Errorf("answered %s, want %s", got, want)
	}
	if answers[1].Result.Term != 3 {
		t.Errorf("term %d", answers[1].Result.Term)
	}
}

func TestWrongNumberOfAnswersIsNone(t *testing.T) {
	m := New[int](options)
	submitted(m, writes(put("a")), writes(put("b")))
	for _, a := range m.Answered(m.Depart(), 70, 3, []records.Result{{Succeeded: true}}) {
		if records.ClassOf(a.Result.Err) != records.ClassOutcomeUnknown {
			t.Errorf("%d is answered %v", a.Member.Owner, a.Result)
		}
	}
}

var errRefusal = errors.New("refused")

func TestRefusalOfAFlightIsHandedToNobody(t *testing.T) {
	m := New[int](options)
	submitted(m, writes(put("a")), writes(put("b")), writes(put("b")), writes(put("c")))
	f := m.Depart()
	if got := owners(f); got != "0 1 3" {
		t.Fatalf("%s left", got)
	}
	if answers := m.Refused(f, errRefusal, false); answers != nil {
		t.Errorf("answered %s", answersOf(answers))
	}
	first, second, third := m.Depart(), m.Depart(), m.Depart()
	if owners(first) != "0" || owners(second) != "1" || third != nil {
		t.Fatalf("%s, %s and %s left; want 0 and 1, each alone, and no more than two at a time", owners(first), owners(second), owners(third))
	}
	if got := answersOf(m.Refused(first, errRefusal, false)); got != "0: false 0 refused" {
		t.Errorf("the one that is alone is answered %q", got)
	}
	if got := answersOf(m.Answered(second, 71, 3, []records.Result{{Succeeded: true}})); got != "1: true 71 <nil>" {
		t.Errorf("the other is answered %q", got)
	}
	if last, then := m.Depart(), m.Depart(); owners(last) != "3" || owners(then) != "2" {
		t.Errorf("then %s and %s left", owners(last), owners(then))
	}
}

func TestUnansweredFlightIsNotSentAgain(t *testing.T) {
	m := New[int](options)
	submitted(m, writes(put("a")), writes(put("b")), writes(put("a")))
	f := m.Depart()
	if got := answersOf(m.Unanswered(f, errRefusal)); got != "0: false 0 refused, 1: false 0 refused" {
		t.Errorf("answered %s", got)
	}
	if next, then := m.Depart(), m.Depart(); owners(next) != "2" || then != nil {
		t.Errorf("%s and %s left", owners(next), owners(then))
	}
}

func TestWhatConflictsWithWhatIsUnderWayWaits(t *testing.T) {
	m := New[int](Options{Flights: 4, Alone: 4, Members: Limit})
	submitted(m, writes(put("a")))
	first := m.Depart()
	m.Submit(writes(put("a"), put("b")), 1)
	m.Submit(writes(put("b")), 2)
	m.Submit(writes(put("c")), 3)
	if second, third := m.Depart(), m.Depart(); owners(second) != "3" || third != nil {
		t.Fatalf("%s and %s left beside what writes a", owners(second), owners(third))
	}
	m.Unanswered(first, errRefusal)
	if next, then := m.Depart(), m.Depart(); owners(next) != "1" || then != nil {
		t.Errorf("then %s and %s left", owners(next), owners(then))
	}
}

func TestFlightsAtATimeAreBounded(t *testing.T) {
	m := New[int](Options{Flights: 2, Alone: 1, Members: 3})
	for i := range 9 {
		m.Submit(writes(put(fmt.Sprint(i))), i)
	}
	leased := func(key string) records.Txn { return writes(records.Op{Kind: records.OpPut, Key: key, Lease: 7}) }
	m.Submit(leased("x"), 10)
	m.Submit(leased("y"), 11)
	var left []string
	first := m.Depart()
	for f := first; f != nil; f = m.Depart() {
		left = append(left, owners(f))
	}
	if got := strings.Join(left, "; "); got != "0 1 2; 3 4 5; 10" {
		t.Errorf("%s left", got)
	}
	if m.Waiting() != 4 {
		t.Errorf("%d wait", m.Waiting())
	}
	m.Unanswered(first, errRefusal)
	if got := owners(m.Depart()); got != "6 7 8" {
		t.Errorf("then %s left", got)
	}
}

func TestWithdrawnIsNotSent(t *testing.T) {
	m := New[int](options)
	first := m.Submit(writes(put("a")), 0)
	second := m.Submit(writes(put("a")), 1)
	m.Submit(writes(put("b")), 2)
	f := m.Depart()
	if m.Withdraw(first) {
		t.Error("what is under way was withdrawn")
	}
	if !m.Withdraw(second) || m.Withdraw(second) {
		t.Error("what waits was not withdrawn once")
	}
	m.Unanswered(f, errRefusal)
	if left := m.Depart(); left != nil || m.Waiting() != 0 {
		t.Errorf("%s left, %d wait", owners(left), m.Waiting())
	}
	m.Submit(writes(put("a")), 3)
	m.Submit(writes(put("b")), 4)
	if cleared := m.Clear(); len(cleared) != 2 || cleared[1].Owner != 4 || m.Depart() != nil {
		t.Errorf("%d were cleared", len(cleared))
	}
}

// serve lets a server of a limit answer until nothing is left, and counts.
func serve(t *testing.T, m *Machine[int], limit int) (flights, alone, refused int) {
	t.Helper()
	for f := m.Depart(); f != nil; f = m.Depart() {
		needed := f.widest
		if len(f.Members) > 1 {
			needed += len(f.Members)
			flights++
		} else {
			alone++
		}
		if needed <= limit {
			m.Answered(f, 1, 1, make([]records.Result, len(f.Members)))
			continue
		}
		if len(f.Members) == 1 {
			refused++
		}
		m.Refused(f, errRefusal, true)
	}
	return flights, alone, refused
}

func TestTheServersLimitIsLearned(t *testing.T) {
	for _, limit := range []int{1, 3, 16, 17, 100, 127, 128, 500} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			m := New[int](options)
			for i := range 5000 {
				m.Submit(wide(fmt.Sprint(i), 1+i%3), i)
			}
			_, _, refused := serve(t, m, min(limit, 128))
			if limit >= 3 && refused > 0 {
				t.Errorf("%d were refused alone that need three operations", refused)
			}
			if want := min(limit, 128); want > 4 && m.Limit() != want {
				t.Errorf("learned %d, want %d", m.Limit(), want)
			}
			for i := range 1000 {
				m.Submit(wide(fmt.Sprint(i), 3), i)
			}
			flights, alone, _ := serve(t, m, min(limit, 128))
			if most := max(1, min(limit, 128)-3); flights+alone > (1000+most-1)/most {
				t.Errorf("1000 left in %d flights and %d alone, %d fit into one", flights, alone, most)
			}
		})
	}
}

func TestALowerLimitThanBeforeIsLearned(t *testing.T) {
	m := New[int](options)
	for i := range 1000 {
		m.Submit(wide(fmt.Sprint(i), 1), i)
	}
	serve(t, m, 128)
	for i := range 1000 {
		m.Submit(wide(fmt.Sprint(i), 1), i)
	}
	if _, _, refused := serve(t, m, 16); refused > 0 || m.Limit() != 16 {
		t.Errorf("learned %d, %d were refused", m.Limit(), refused)
	}
}

func TestOneThatIsTooWideTeachesNothingAboutFlights(t *testing.T) {
	m := New[int](options)
	m.Submit(wide("a", 300), 0)
	m.Refused(m.Depart(), errRefusal, true)
	if m.Limit() != Limit {
		t.Errorf("the limit is now %d", m.Limit())
	}
}

func TestOnlySoManyAreLookedAt(t *testing.T) {
	m := New[int](Options{Flights: 2, Alone: 1, Members: Limit})
	for i := range 2 * LookMax {
		m.Submit(writes(put("hot")), i)
	}
	m.Submit(writes(put("cold")), -1)
	if first, second := m.Depart(), m.Depart(); owners(first) != "0" || second != nil {
		t.Errorf("%s and %s left", owners(first), owners(second))
	}
}
