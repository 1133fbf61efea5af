package etcd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/virtual"
)

// ask is what a client asks of a register that holds a number and knows at which
// revision it was written.
type ask struct {
	key   string
	kind  byte // 'r'ead, 'w'rite, 'c'ompare and swap
	value string
	mod   int64
}

// told is what came back. Of an unknown one nothing else counts.
type told struct {
	unknown  bool
	value    string
	mod      int64
	swapped  bool
	revision int64
}

// register is one key as it must look to clients.
type register struct {
	value string
	mod   int64
}

// anyMod is that of a write whose revision is not known.
const anyMod = -1

// registers are keys that each must behave as one register. A write that was not
// answered may have been carried out at any time after it was sent, or never.
var registers = (&porcupine.NondeterministicModel{
	Partition: func(operations []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		var keys []string
		for _, o := range operations {
			key := o.Input.(ask).key
			if byKey[key] == nil {
				keys = append(keys, key)
			}
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, key := range keys {
			parts = append(parts, byKey[key])
		}
		return parts
	},
	Init: func() []any { return []any{register{}} },
	Step: func(state, input, output any) []any {
		r, a, o := state.(register), input.(ask), output.(told)
		switch mayBe := func(mod int64) bool { return r.mod == mod || r.mod == anyMod }; {
		case a.kind == 'r' && o.unknown:
			return []any{r}
		case a.kind == 'r':
			if r.value == o.value && mayBe(o.mod) {
				return []any{register{o.value, o.mod}}
			}
		case o.unknown && (a.kind == 'w' || mayBe(a.mod)):
			return []any{r, register{a.value, anyMod}}
		case o.unknown:
			return []any{r}
		case a.kind == 'w' || o.swapped && mayBe(a.mod):
			return []any{register{a.value, o.revision}}
		case !o.swapped && r.mod != a.mod:
			return []any{r}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()

// traffic lets clients read, write and swap a few keys.
type traffic struct {
	*bench
	rand       *rand.Rand
	clients    []*Client
	operations []porcupine.Operation
	known      map[string]int64
	value      int
}

func (w *traffic) ask(i int) {
	c := w.clients[i]
	a := ask{key: fmt.Sprintf("k%d", w.rand.IntN(6)), kind: "rwc"[w.rand.IntN(3)]}
	var txn records.Txn
	switch a.kind {
	case 'r':
		txn = get(a.key)
	default:
		w.value++
		a.value = fmt.Sprint(w.value)
		txn = put(a.key, a.value)
		if a.kind == 'c' {
			a.mod = w.known[a.key]
			txn.If = []records.Compare{{Key: a.key, Target: records.TargetMod, Relation: records.Equal, Operand: a.mod}}
		}
	}
	at := len(w.operations)
	w.operations = append(w.operations, porcupine.Operation{ClientId: at, Input: a, Call: int64(w.line.Now()), Output: told{unknown: true}})
	c.Txn(txn, func(r records.Result) {
		o := &w.operations[at]
		if class := records.ClassOf(r.Err); r.Err != nil && class != records.ClassOutcomeUnknown {
			o.Input = ask{key: a.key, kind: 'r'} // certain not to have been carried out
		}
		if r.Err == nil {
			answer := told{swapped: r.Succeeded, revision: r.Revision}
			if kv, ok := r.First(0); ok {
				answer.value, answer.mod = string(kv.Value), kv.Mod
				w.known[a.key] = kv.Mod
			}
			o.Output, o.Return = answer, int64(w.line.Now())
		}
	})
}

// run is half a minute of traffic of three clients with a fault now and then.
func (w *traffic) run(faults bool) []porcupine.Operation {
	for end := w.line.Now() + 30*time.Second; w.line.Now() < end; {
		w.ask(w.rand.IntN(len(w.clients)))
		w.advance(time.Duration(w.rand.Int64N(int64(600 * time.Millisecond))))
		if faults && w.rand.IntN(6) == 0 {
			w.fault()
		}
	}
	w.advance(5 * time.Minute)
	for i := range w.operations {
		if w.operations[i].Return == 0 {
			w.operations[i].Return = int64(w.line.Now()) + int64(i)
		}
	}
	return w.operations
}

func (w *traffic) fault() {
	m, link := w.rand.IntN(len(w.cluster.members)), w.clients[w.rand.IntN(len(w.clients))].link
	switch w.rand.IntN(12) {
	case 0:
		w.cluster.Isolate(m)
	case 1, 2:
		w.cluster.Rejoin(m)
	case 3:
		w.cluster.Pause(m)
	case 4, 5:
		w.cluster.Resume(m)
	case 6:
		w.cluster.MoveLeader()
	case 7:
		link.Cut(m)
	case 8:
		link.HealAll()
		link.LoseAnswers(false)
	case 9:
		link.LoseAnswers(true)
	case 10:
		link.Unknown, link.Late = w.rand.Float64()/4, 30*time.Second
	default:
		w.cluster.Stop(m)
		w.line.After(3*time.Second, func() { w.cluster.Start(m) })
	}
}

func newTraffic(seed uint64) *traffic {
	w := &traffic{bench: newBench(seed, DefaultOptions(3)), rand: virtual.Streams{Seed: seed}.Of("traffic"), known: map[string]int64{}}
	for i := range 3 {
		w.clients = append(w.clients, w.cluster.Client(fmt.Sprintf("n%d", i+1)))
	}
	return w
}

func TestClientsFindTheStoreLinearizableUnderFaults(t *testing.T) {
	answered, unknown := 0, 0
	for seed := range uint64(60) {
		operations := newTraffic(seed).run(seed%4 != 0)
		if got := porcupine.CheckOperationsTimeout(registers, operations, 2*time.Minute); got != porcupine.Ok {
			t.Fatalf("seed %d: %v", seed, got)
		}
		for _, o := range operations {
			if o.Output.(told).unknown {
				unknown++
			} else {
				answered++
			}
		}
	}
	t.Logf("%d answered, %d not", answered, unknown)
	if answered < 1000 || unknown < 100 {
		t.Errorf("%d operations were answered, %d were not: too few to tell", answered, unknown)
	}
}

// The same seed is the same world, faults and all; another one is another.
func TestTheSameSeedGivesTheSameHistory(t *testing.T) {
	hash := func(seed uint64) [2]uint64 {
		w := newTraffic(seed)
		for i, c := range w.clients {
			c.Follow(fmt.Sprintf("k%d", i), func(records.Batch) { w.value += 1000 })
			for range 20 {
				c.Grant(time.Duration(5+i)*time.Second, func(r actors.LeaseResult) {
					c.Txn(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: fmt.Sprintf("l/%d", r.Lease), Lease: r.Lease}}}, func(records.Result) {})
				})
			}
		}
		w.run(true)
		return [2]uint64{w.history.Hash(), w.history.Count()}
	}
	seen := map[[2]uint64]bool{}
	for seed := range uint64(30) {
		first := hash(seed)
		for range 2 {
			if again := hash(seed); again != first {
				t.Fatalf("seed %d: %v, then %v", seed, first, again)
			}
		}
		seen[first] = true
	}
	if len(seen) != 30 {
		t.Errorf("%d histories of 30 seeds", len(seen))
	}
}
