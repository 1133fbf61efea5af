package flight

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
)

// drawTxn draws a transaction over few keys, some of them by prefix.
func drawTxn(t *rapid.T) records.Txn {
	key := rapid.SampledFrom([]string{"a", "b", "c/1", "c/2", "c/3", "d"})
	prefix := rapid.SampledFrom([]string{"", "c/", "c", "d"})
	compare := rapid.Custom(func(t *rapid.T) records.Compare {
		if rapid.IntRange(0, 4).Draw(t, "wide") == 0 {
			return records.Compare{Key: prefix.Draw(t, "key"), Prefix: true, Target: records.TargetCreate, Relation: records.Equal}
		}
		return records.Compare{Key: key.Draw(t, "key"), Target: records.TargetCreate, Relation: records.Equal}
	})
	op := rapid.Custom(func(t *rapid.T) records.Op {
		op := records.Op{Kind: records.OpKind(rapid.IntRange(int(records.OpGet), int(records.OpDelete)).Draw(t, "kind")), Key: key.Draw(t, "key")}
		switch wide := rapid.IntRange(0, 4).Draw(t, "wide") == 0; {
		case op.Kind == records.OpPut:
			op.Lease = int64(max(rapid.IntRange(-8, 1).Draw(t, "lease"), 0))
		case wide && op.Kind == records.OpGet && rapid.Bool().Draw(t, "range"):
			op.Key, op.End = "b", "c/2"
		case wide:
			op.Key, op.Prefix = prefix.Draw(t, "key"), true
		}
		return op
	})
	return records.Txn{
		If:   rapid.SliceOfN(compare, 0, 2).Draw(t, "if"),
		Then: rapid.SliceOfN(op, 1, 2).Draw(t, "then"),
		Else: rapid.SliceOfN(op, 0, 1).Draw(t, "else"),
	}
}

// conflicting decides by trying every key that there is, and some that there are not.
func conflicting(a, b records.Txn) bool {
	for _, key := range []string{"a", "b", "c", "c/", "c/1", "c/2", "c/3", "c/9", "c0", "d", "d/", "e", "z"} {
		readA, writeA := touches(a, key)
		readB, writeB := touches(b, key)
		if writeA && (readB || writeB) || writeB && readA {
			return true
		}
	}
	return false
}

func touches(txn records.Txn, key string) (read, write bool) {
	in := func(from, end string, prefix bool) bool {
		switch {
		case end != "":
			return from <= key && key < end
		case prefix:
			return len(key) >= len(from) && key[:len(from)] == from
		default:
			return key == from
		}
	}
	for _, c := range txn.If {
		read = read || in(c.Key, "", c.Prefix)
	}
	for _, op := range slices.Concat(txn.Then, txn.Else) {
		if in(op.Key, op.End, op.Prefix) {
			read, write = read || op.Kind == records.OpGet, write || op.Kind != records.OpGet
		}
	}
	return read, write
}

// Whatever is handed over, answered, refused and lost: who conflicts is never under way
// together and leaves in order, nothing leaves twice but after a refusal, every one is
// answered once, and the bounds hold.
func TestMachineKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Flights: rapid.IntRange(1, 3).Draw(t, "flights"), Alone: rapid.IntRange(1, 3).Draw(t, "alone"), Members: rapid.SampledFrom([]int{1, 2, Limit}).Draw(t, "members"),
		}
		w := &watched{t: t, options: o, m: New[int](o)}
		t.Repeat(map[string]func(*rapid.T){
			"submit":   w.submit,
			"withdraw": w.withdraw,
			"land":     w.landOne,
		})
		for len(w.flying) > 0 {
			w.landOne(t)
		}
		if w.m.Waiting() != 0 || len(w.left) != w.handed {
			t.Fatalf("%d wait, %d of %d are done", w.m.Waiting(), len(w.left), w.handed)
		}
		if len(w.m.claims.keys) != 0 || len(w.m.claims.wide) != 0 {
			t.Fatalf("claims are left: %v", w.m.claims)
		}
	})
}

// watched is a machine and what is known of it.
type watched struct {
	t       *rapid.T
	options Options
	m       *Machine[int]
	handed  int
	waiting []*Member[int]
	flying  []*Flight[int]
	// left are those that need nothing any more.
	left map[int]bool
}

func (w *watched) submit(t *rapid.T) {
	member := w.m.Submit(drawTxn(t), w.handed)
	w.handed++
	w.waiting = append(w.waiting, member)
	w.depart()
}

func (w *watched) withdraw(t *rapid.T) {
	if len(w.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(w.waiting)-1).Draw(t, "who")
	if !w.m.Withdraw(w.waiting[i]) {
		t.Fatalf("%d waits and can not be withdrawn", w.waiting[i].Owner)
	}
	w.done(w.waiting[i])
	w.waiting = slices.Delete(w.waiting, i, i+1)
	w.depart()
}

func (w *watched) done(member *Member[int]) {
	if w.left == nil {
		w.left = map[int]bool{}
	}
	if w.left[member.Owner] {
		w.t.Fatalf("%d is answered twice", member.Owner)
	}
	w.left[member.Owner] = true
}

func (w *watched) landOne(t *rapid.T) {
	if len(w.flying) == 0 {
		t.Skip("nothing is under way")
	}
	i := rapid.IntRange(0, len(w.flying)-1).Draw(t, "which")
	f := w.flying[i]
	w.flying = slices.Delete(w.flying, i, i+1)
	var answers []Answer[int]
	switch rapid.IntRange(0, 3).Draw(t, "how") {
	case 0:
		answers = w.m.Refused(f, errRefusal, rapid.Bool().Draw(t, "too many"))
		if len(f.Members) > 1 {
			if answers != nil {
				t.Fatalf("a refusal was handed on: %s", answersOf(answers))
			}
			w.waiting = append(slices.Clone(f.Members), w.waiting...)
			w.depart()
			return
		}
	case 1:
		answers = w.m.Unanswered(f, errRefusal)
	default:
		answers = w.m.Answered(f, 7, 1, make([]records.Result, len(f.Members)))
	}
	if len(answers) != len(f.Members) {
		t.Fatalf("%s: answered %s", owners(f), answersOf(answers))
	}
	for _, a := range answers {
		w.done(a.Member)
	}
	w.depart()
}

func (w *watched) depart() {
	for f := w.m.Depart(); f != nil; f = w.m.Depart() {
		w.check(f)
		w.flying = append(w.flying, f)
	}
	flights, alone := 0, 0
	for _, f := range w.flying {
		if f.alone {
			alone++
		} else {
			flights++
		}
	}
	if flights > w.options.Flights || alone > w.options.Alone || w.m.Waiting() != len(w.waiting) {
		w.t.Fatalf("%d flights and %d alone are under way, %d wait, %d should", flights, alone, w.m.Waiting(), len(w.waiting))
	}
	if len(w.waiting) > 0 && flights < w.options.Flights && alone < w.options.Alone && !w.blocked(w.waiting[0].Txn) {
		w.t.Fatalf("%d could leave and waits", w.waiting[0].Owner)
	}
}

func (w *watched) blocked(txn records.Txn) bool {
	for _, f := range w.flying {
		for _, member := range f.Members {
			if conflicting(member.Txn, txn) {
				return true
			}
		}
	}
	return false
}

// check judges a flight that leaves.
func (w *watched) check(f *Flight[int]) {
	if n := len(f.Members); n == 0 || n > w.options.Members || n > 1 && n+f.widest > w.m.Limit() {
		w.t.Fatalf("%d members of width %d, the limit is %d", n, f.widest, w.m.Limit())
	}
	for i, member := range f.Members {
		if len(f.Members) > 1 && slices.ContainsFunc(slices.Concat(member.Txn.Then, member.Txn.Else), func(op records.Op) bool { return op.Lease != 0 }) {
			w.t.Fatalf("%d puts under a lease and shares a flight", member.Owner)
		}
		if w.blocked(member.Txn) {
			w.t.Fatalf("%d conflicts with what is under way", member.Owner)
		}
		for _, other := range f.Members[:i] {
			if conflicting(member.Txn, other.Txn) {
				w.t.Fatalf("%d and %d conflict on one flight", other.Owner, member.Owner)
			}
		}
		at := slices.Index(w.waiting, member)
		if at < 0 {
			w.t.Fatalf("%d left and did not wait", member.Owner)
		}
		for _, before := range w.waiting[:at] {
			if conflicting(before.Txn, member.Txn) {
				w.t.Fatalf("%d left before %d", member.Owner, before.Owner)
			}
		}
		w.waiting = slices.Delete(w.waiting, at, at+1)
	}
}
