package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// oneByOne makes a store that sends nothing together.
func oneByOne(t testing.TB) *Store {
	t.Helper()
	s := openEmbedded(t)
	s.machine = flight.New[*pending](flight.Options{Flights: 1, Alone: 1, Members: 1})
	return s
}

// gather hands writes over at once and returns their results, in order.
func gather(s *Store, txns []records.Txn) []records.Result {
	results := make([]records.Result, len(txns))
	answered := make(chan struct{}, len(txns))
	together(s, txns, func(i int, result records.Result) {
		results[i] = result
		answered <- struct{}{}
	})
	for range txns {
		<-answered
	}
	return results
}

// sketch is a transaction that is yet to be told where it lies and at which revision
// its keys are.
type sketch struct {
	conditions []condition
	then, or   []records.Op
}

// condition compares a key: with its revision as it was in the beginning, or with 0.
type condition struct {
	records.Compare
	asItWas bool
}

var keysOfSketches = []string{"a", "b", "c/1", "c/2", "c/3", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"}

func drawSketch(t *rapid.T) sketch {
	key := rapid.SampledFrom(keysOfSketches)
	conditions := rapid.Custom(func(t *rapid.T) condition {
		c := condition{Compare: records.Compare{Key: key.Draw(t, "key"), Target: records.TargetCreate, Relation: records.Equal}}
		switch rapid.IntRange(0, 9).Draw(t, "sort") {
		case 0:
			c.Key, c.Prefix = "c/", true
		case 1, 2:
			c.Target, c.Relation = records.TargetMod, records.NotEqual
		case 3, 4, 5, 6:
			c.Target, c.asItWas = records.TargetMod, true
		}
		return c
	})
	ops := rapid.Custom(func(t *rapid.T) records.Op {
		op := records.Op{Kind: records.OpKind(rapid.IntRange(int(records.OpGet), int(records.OpDelete)).Draw(t, "kind")), Key: key.Draw(t, "key")}
		switch wide := rapid.IntRange(0, 9).Draw(t, "wide") == 0; {
		case op.Kind == records.OpPut:
			op.Value = []byte(rapid.StringN(0, 3, 9).Draw(t, "value"))
		case wide && op.Kind == records.OpGet:
			op.Key, op.End, op.Limit = "b", "c/3", int64(rapid.IntRange(0, 2).Draw(t, "limit"))
		case wide:
			op.Key, op.Prefix = "c/", true
		}
		return op
	})
	// Twice the same key in one branch is refused whoever else is there.
	distinct := func(name string, least int) []records.Op {
		drawn := rapid.SliceOfNDistinct(ops, least, 2, func(op records.Op) string { return op.Key[:1] }).Draw(t, name)
		return drawn
	}
	return sketch{rapid.SliceOfN(conditions, 0, 2).Draw(t, "if"), distinct("then", 1), distinct("else", 0)}
}

// at is the transaction of a number below a root where the keys were written at some
// revisions.
func (k sketch) at(number int, root string, was map[string]int64) records.Txn {
	txn := records.Txn{Then: under(root, k.then), Else: under(root, k.or)}
	// It shall be no read, which would not be on a flight.
	txn.Then = append(txn.Then, records.Op{Kind: records.OpDelete, Key: fmt.Sprintf("%sof its own/%d", root, number)})
	for _, c := range k.conditions {
		compare := c.Compare
		if c.asItWas {
			compare.Operand = was[c.Key]
		}
		compare.Key = root + compare.Key
		txn.If = append(txn.If, compare)
	}
	return txn
}

func under(root string, ops []records.Op) []records.Op {
	ops = slices.Clone(ops)
	for i := range ops {
		if ops[i].Key = root + ops[i].Key; ops[i].End != "" {
			ops[i].End = root + ops[i].End
		}
	}
	return ops
}

// told is what a result says, without revisions.
func told(root string, result records.Result) string {
	if result.Err != nil {
		return records.ClassOf(result.Err).String()
	}
	text := fmt.Sprint(result.Succeeded)
	for _, response := range result.Responses {
		text += fmt.Sprintf(" %d", response.Count)
		for _, kv := range response.KVs {
			text += fmt.Sprintf(" %s=%q", strings.TrimPrefix(kv.Key, root), kv.Value)
		}
	}
	return text
}

// Whatever is sent together is answered as if it had been sent one by one, and leaves
// the same behind.
func TestFlightsAnswerAsOneByOne(t *testing.T) {
	registry := prometheus.NewRegistry()
	shared, single := openAt(t, Config{DataDir: dataDir(t), Metrics: registry}), oneByOne(t)
	number, flights, members := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		number++
		root := fmt.Sprintf("%d/", number)
		there := rapid.SliceOfDistinct(rapid.SampledFrom(keysOfSketches), rapid.ID).Draw(r, "there")
		sketches := rapid.SliceOfN(rapid.Custom(drawSketch), 1, 12).Draw(r, "transactions")
		var outcomes, left [2]string
		for i, s := range []*Store{shared, single} {
			was := map[string]int64{}
			for _, key := range there {
				was[key] = do(t, s, putTxn(root+key, "before")).Revision
			}
			txns := make([]records.Txn, len(sketches))
			for k, sketch := range sketches {
				txns[k] = sketch.at(k, root, was)
			}
			before := flightsOf(t, registry)
			results := gather(s, txns)
			if s == shared {
				flights, members = flights+flightsOf(t, registry)-before, members+len(results)
			}
			for k, result := range results {
				outcomes[i] += told(root, result) + "\n"
				if result.Err == nil && result.Revision == 0 {
					r.Errorf("transaction %d has revision 0", k)
				}
			}
			final := do(t, s, records.Read(records.Range(root)))
			left[i] = told(root, final)
			checkRevisions(r, txns, results, final.Responses[0].KVs)
		}
		if outcomes[0] != outcomes[1] {
			r.Errorf("together:\n%sone by one:\n%s", outcomes[0], outcomes[1])
		}
		if left[0] != left[1] {
			r.Errorf("together left\n%s\none by one\n%s", left[0], left[1])
		}
	})
	if flights > members*2/3 {
		t.Errorf("%d transactions left in %d flights: few shared one", members, flights)
	}
}

// flightsOf is how many flights a store has had.
func flightsOf(t *testing.T, registry *prometheus.Registry) (flights int) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "errand_store_flight_members" {
			flights = int(family.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	return flights
}

// checkRevisions sees that what is left of a transaction has the revision that it was
// answered with.
func checkRevisions(t *rapid.T, txns []records.Txn, results []records.Result, left []records.KV) {
	for _, kv := range left {
		last := int64(0)
		for i, txn := range txns {
			branch := txn.Then
			if !results[i].Succeeded {
				branch = txn.Else
			}
			if results[i].Err == nil && slices.ContainsFunc(branch, func(op records.Op) bool { return op.Kind == records.OpPut && op.Key == kv.Key }) {
				last = max(last, results[i].Revision)
			}
		}
		if last != 0 && last != kv.Mod {
			t.Errorf("%s is at %d, who wrote it last was answered with %d", kv.Key, kv.Mod, last)
		}
	}
}

// One that can not be carried out does not take the others with it.
func TestOneThatIsRefusedLeavesTheOthersAlone(t *testing.T) {
	s := openEmbedded(t)
	dead := records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "leased", Lease: 77}}}
	twice := records.Txn{Then: []records.Op{records.Get("k"), {Kind: records.OpPut, Key: "twice"}, {Kind: records.OpPut, Key: "twice"}}}
	wide := records.Txn{}
	for i := range flight.Limit + 1 {
		wide.Then = append(wide.Then, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("wide/%d", i)})
	}
	large := putTxn("large", strings.Repeat("x", 3<<20))
	results := gather(s, []records.Txn{putTxn("a", "1"), dead, putTxn("b", "1"), twice, wide, large, putTxn("c", "1")})
	for i, want := range []records.Class{0, records.ClassLostOwnership, 0, records.ClassInvalid, records.ClassInvalid, records.ClassInvalid, 0} {
		if err := results[i].Err; (err == nil) != (want == 0) || err != nil && records.ClassOf(err) != want {
			t.Errorf("transaction %d: %v, want %v", i, err, want)
		}
	}
	if limit := s.machine.Limit(); limit != flight.Limit {
		t.Errorf("the limit is now %d", limit)
	}
}

// A caller that is gone does not take the others with it.
func TestCallerThatIsGoneLeavesTheOthersAlone(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.dropAnswers = true })
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	results := make(chan records.Result, 2)
	var members []*pending
	s.mu.Lock()
	for i, caller := range []context.Context{ctx, nil} {
		p := &pending{caller: caller, deadline: now.Add(OpTimeout), queued: now, deliver: func(result records.Result) { results <- result }}
		p.member = s.machine.Submit(createTxn(fmt.Sprint(i), ""), p)
		members = append(members, p)
	}
	s.launch(s.departures())
	s.mu.Unlock()
	cancel()
	s.abandon(members[0])
	if result := <-results; records.ClassOf(result.Err) != records.ClassOutcomeUnknown {
		t.Errorf("who is gone is answered %+v", result)
	}
	if took := time.Since(now); took > OpTimeout/2 {
		t.Errorf("after %v", took)
	}
	if result := <-results; records.ClassOf(result.Err) != records.ClassOutcomeUnknown {
		t.Errorf("who stays is answered %+v", result)
	}
	if took := time.Since(now); took < OpTimeout-time.Second {
		t.Errorf("who stays had only %v", took)
	}
	if found := do(t, server.store, records.Read(records.Range(""))); found.Responses[0].Count != 2 {
		t.Errorf("%d of 2 were carried out", found.Responses[0].Count)
	}
	if len(results) != 0 {
		t.Error("somebody was answered twice")
	}
}

// What has waited as long as it may is answered although nothing comes back meanwhile,
// and what is under way with others that have longer.
func TestTimeIsUpWhileAFlightIsAway(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	now := time.Now()
	results := make(chan string, 3)
	hand := func(name, key string, left time.Duration) *pending {
		p := &pending{deadline: now.Add(left), queued: now, deliver: func(result records.Result) {
			results <- fmt.Sprint(name, ": ", records.ClassOf(result.Err))
		}}
		p.member = s.machine.Submit(putTxn(key, ""), p)
		s.order.push(p)
		return p
	}
	s.mu.Lock()
	s.sweeping = true
	s.sweep.Reset(0)
	hand("on the flight", "a", 300*time.Millisecond)
	hand("behind it", "a", 400*time.Millisecond)
	hand("on it for longer", "b", 700*time.Millisecond)
	s.launch(s.departures())
	s.mu.Unlock()
	for _, want := range []string{"behind it: unavailable", "on the flight: outcome unknown", "on it for longer: outcome unknown"} {
		if got := <-results; got != want {
			t.Errorf("%s after %v, want %s", got, time.Since(now), want)
		}
	}
	if took := time.Since(now); took > busy {
		t.Errorf("answered after %v", took)
	}
}
