package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/cluster/records"
)

var errShort = errors.New("the caller has had enough")

func createTxn(key, value string) records.Txn {
	return records.Txn{
		If:   []records.Compare{{Key: key, Target: records.TargetCreate, Relation: records.Equal}},
		Then: []records.Op{{Kind: records.OpPut, Key: key, Value: []byte(value)}},
		Else: []records.Op{records.Get(key)},
	}
}

func TestTxnDeliversEachResultOnce(t *testing.T) {
	s := openEmbedded(t)
	const callers, each = 16, 50
	var answers [callers * each]atomic.Int32
	var all sync.WaitGroup
	all.Add(callers * each)
	var won atomic.Int32
	for c := range callers {
		go func() {
			for i := range each {
				// Every key is wanted by all callers: one of them creates it.
				s.Txn(createTxn(fmt.Sprintf("k/%d", i), fmt.Sprint(c)), func(result records.Result) {
					answers[c*each+i].Add(1)
					switch {
					case result.Err != nil:
						t.Error(result.Err)
					case result.Succeeded:
						won.Add(1)
					default:
						if _, ok := result.First(0); !ok {
							t.Error("refused without an answer")
						}
					}
					all.Done()
				})
			}
		}()
	}
	all.Wait()
	for i := range answers {
		if n := answers[i].Load(); n != 1 {
			t.Fatalf("caller %d had %d answers", i, n)
		}
	}
	if won.Load() != each {
		t.Errorf("%d creates succeeded, want %d", won.Load(), each)
	}
}

func TestTxnTakesEveryKindOfOperation(t *testing.T) {
	s := openEmbedded(t)
	for _, key := range []string{"p/1", "p/2", "p/3", "q/1"} {
		do(t, s, putTxn(key, "v"+key))
	}
	keysOf := func(r records.OpResult) string {
		var keys string
		for _, kv := range r.KVs {
			keys += kv.Key + " "
		}
		return keys
	}
	result := do(t, s, records.Read(
		records.Range("p/"),
		records.Op{Kind: records.OpGet, Key: "p/", Prefix: true, Limit: 2},
		records.Op{Kind: records.OpGet, Key: "p/", Prefix: true, Limit: 2, Descending: true},
		records.Op{Kind: records.OpGet, Key: "p/2", End: "q/1"},
		records.Op{Kind: records.OpGet, Key: "p/1", KeysOnly: true},
		records.Get("absent"),
	))
	for i, want := range []struct {
		keys  string
		count int64
	}{{"p/1 p/2 p/3 ", 3}, {"p/1 p/2 ", 3}, {"p/3 p/2 ", 3}, {"p/2 p/3 ", 2}, {"p/1 ", 1}, {"", 0}} {
		if got := result.Responses[i]; keysOf(got) != want.keys || got.Count != want.count {
			t.Errorf("read %d: %s(%d), want %s(%d)", i, keysOf(got), got.Count, want.keys, want.count)
		}
	}
	if kv, _ := result.First(4); kv.Value != nil || kv.Mod == 0 {
		t.Errorf("keys only: %+v", kv)
	}
	result = do(t, s, records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: "p/", Prefix: true}, records.Get("p/1")}})
	if result.Responses[0].Count != 3 || len(result.Responses[1].KVs) != 0 {
		t.Errorf("deleted %d, then read %v", result.Responses[0].Count, result.Responses[1].KVs)
	}
	if kv, ok := do(t, s, records.Read(records.Get("q/1"))).First(0); !ok || string(kv.Value) != "vq/1" {
		t.Error("the delete took a key beside its prefix")
	}
}

// submitAll hands n writes over and returns where their results come.
func submitAll(s *Store, n int) <-chan records.Result {
	results := make(chan records.Result, n)
	for i := range n {
		s.Txn(createTxn(fmt.Sprintf("many/%d", i), ""), func(result records.Result) { results <- result })
	}
	return results
}

func TestTxnNeverBlocksAndIsAnsweredWhenTheServerIsSilent(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	const n = 200
	began := time.Now()
	results := submitAll(s, n)
	if took := time.Since(began); took >= OpTimeout { // nothing is answered before
		t.Errorf("handing over %d transactions took %v", n, took)
	}
	classes := map[records.Class]int{}
	limit := time.After(OpTimeout + patience)
	for range n {
		select {
		case result := <-results:
			classes[records.ClassOf(result.Err)]++
		case <-limit:
			t.Fatalf("answers so far: %v", classes)
		}
	}
	// Those that left may have been carried out; those that waited were not.
	if classes[records.ClassOutcomeUnknown] != FlightsMax || classes[records.ClassUnavailable] != n-FlightsMax {
		t.Errorf("answers: %v", classes)
	}
	if took := time.Since(began); took > OpTimeout+busy {
		t.Errorf("answered after %v", took)
	}
}

func TestTxnBeyondTheQueueIsRefused(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	results := submitAll(s, QueuedMax+FlightsMax+10)
	refused := 0
	for range 10 {
		result := <-results
		if records.ClassOf(result.Err) == records.ClassUnavailable {
			refused++
		}
	}
	if refused != 10 {
		t.Errorf("%d refused at once, want 10", refused)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseAnswersEverything(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	const n = 100
	results := submitAll(s, n)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if len(results) != n {
		t.Errorf("%d answers after Close, want %d", len(results), n)
	}
	s.Txn(putTxn("late", ""), func(result records.Result) {
		if records.ClassOf(result.Err) != records.ClassUnavailable {
			t.Errorf("after Close: %v", result.Err)
		}
	})
	for _, txn := range []records.Txn{putTxn("late", ""), records.Read(records.Get("late"))} {
		if _, err := s.Do(context.Background(), txn); records.ClassOf(err) != records.ClassUnavailable {
			t.Errorf("Do after Close: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

// together hands writes over that leave at once: all in one flight, if they may.
func together(s *Store, txns []records.Txn, deliver func(i int, result records.Result)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i, txn := range txns {
		p := &pending{txn: txn, deadline: now.Add(OpTimeout), queued: now, deliver: func(result records.Result) { deliver(i, result) }}
		p.member = s.machine.Submit(txn, p)
		s.order.push(p)
	}
	s.launch(s.departures())
}

// A proxy that forwards requests and swallows answers: what was written is there
// although its outcome is unknown, and repeating the create finds it. Nothing that was
// on a flight is sent again.
func TestWriteWithoutAnAnswerIsUnknownAndMayHaveHappened(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.dropAnswers = true })
	const n = 20
	txns := make([]records.Txn, n)
	for i := range txns {
		txns[i] = createTxn(fmt.Sprintf("k/%d", i), "mine")
	}
	results := make(chan records.Result, n)
	together(s, txns, func(_ int, result records.Result) { results <- result })
	for range n {
		if result := <-results; records.ClassOf(result.Err) != records.ClassOutcomeUnknown {
			t.Errorf("without an answer: %v", result.Err)
		}
	}
	found := do(t, server.store, records.Read(records.Range("k/"))).Responses[0].KVs
	if len(found) != n {
		t.Fatalf("%d of %d were carried out", len(found), n)
	}
	for _, kv := range found {
		if kv.Mod != found[0].Mod {
			t.Errorf("%s was written at %d, %s at %d: not in one flight", kv.Key, kv.Mod, found[0].Key, found[0].Mod)
		}
	}
	server.proxy.set(func(p *proxy) { p.dropAnswers = false })
	server.proxy.cut()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range n {
		var result records.Result
		err := errors.New("not yet")
		for err != nil && ctx.Err() == nil {
			result, err = s.Do(ctx, createTxn(fmt.Sprintf("k/%d", i), "again"))
		}
		if kv, _ := result.First(0); err != nil || result.Succeeded || string(kv.Value) != "mine" || kv.Mod != found[0].Mod {
			t.Fatalf("repeating create %d: %+v, %v", i, result, err)
		}
	}
}

func TestWriteThatNeverLeftIsUnavailable(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.refuse = true })
	server.proxy.cut()
	// The client notices the cut by itself; a write that runs into it may have left.
	limit := time.Now().Add(patience)
	for {
		_, err := s.Do(context.Background(), putTxn("k", "1"))
		class := records.ClassOf(err)
		if class == records.ClassUnavailable {
			break
		}
		if class != records.ClassOutcomeUnknown || time.Now().After(limit) {
			t.Fatalf("%v (%v)", err, class)
		}
	}
	// From here on nothing can leave, and no caller is told that it might have.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Do(ctx, putTxn("k", "1")); records.ClassOf(err) != records.ClassDeadline {
		t.Errorf("%v (%v)", err, records.ClassOf(err))
	}
	if _, ok := do(t, server.store, records.Read(records.Get("k"))).First(0); ok {
		t.Error("it was carried out")
	}
}

func TestReadIsRepeatedUntilTheServerIsBack(t *testing.T) {
	server := startServer(t)
	do(t, server.store, putTxn("k", "1"))
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.refuse = true })
	server.proxy.cut()
	results := make(chan records.Result, 2)
	go func() {
		result, _ := s.Do(context.Background(), records.Read(records.Get("k")))
		results <- result
	}()
	s.Txn(records.Read(records.Get("k")), func(result records.Result) { results <- result })
	accepted := func() (n int) { server.proxy.set(func(p *proxy) { n = p.accepted }); return n }
	for before, limit := accepted(), time.Now().Add(patience); accepted() == before && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	server.proxy.set(func(p *proxy) { p.refuse = false })
	for range 2 {
		result := <-results
		if kv, _ := result.First(0); result.Err != nil || string(kv.Value) != "1" {
			t.Errorf("%+v", result)
		}
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(context.Background(), 100*time.Millisecond, errShort)
	}
	within := func(name string, txn records.Txn, want records.Class) {
		t.Helper()
		ctx, cancel := short()
		defer cancel()
		began := time.Now()
		_, err := s.Do(ctx, txn)
		if records.ClassOf(err) != want {
			t.Errorf("%s: %v (%v), want %v", name, err, records.ClassOf(err), want)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	within("a read", records.Read(records.Get("k")), records.ClassDeadline)
	within("a write that was sent", putTxn("k", ""), records.ClassOutcomeUnknown)
	results := submitAll(s, FlightsMax)
	within("a write behind others", putTxn("k", ""), records.ClassDeadline)
	for range FlightsMax {
		<-results
	}
}

func TestWriteOfACallerThatHasGoneIsNotSent(t *testing.T) {
	s := openEmbedded(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Do(ctx, putTxn("k", "")); records.ClassOf(err) != records.ClassDeadline {
		t.Errorf("handed over too late: %v (%v)", err, records.ClassOf(err))
	}
	// He goes between its departure and the moment at which it is sent.
	p := &pending{txn: putTxn("k", ""), caller: ctx, deadline: time.Now().Add(OpTimeout)}
	s.mu.Lock()
	p.member = s.machine.Submit(p.txn, p)
	l := s.carry(s.departures()[0])
	s.mu.Unlock()
	if records.ClassOf(l.err) != records.ClassDeadline {
		t.Errorf("gone just before: %v (%v)", l.err, records.ClassOf(l.err))
	}
	if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); ok {
		t.Error("it was sent")
	}
}

func TestMetricsCountOutcomes(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := openAt(t, Config{DataDir: dataDir(t), Metrics: registry})
	do(t, s, createTxn("k", ""))
	do(t, s, createTxn("k", ""))
	_, _ = s.Do(context.Background(), records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "k", Lease: 7}}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "errand_store_transactions_total":
				counted[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			case "errand_store_flights_total":
				counted["flights "+metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			case "errand_store_flight_members":
				counted["members"] = metric.GetHistogram().GetSampleSum()
			case "errand_store_transaction_seconds":
				counted["seconds"] = float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	if want := map[string]float64{
		"succeeded": 1, "refused": 1, "lost_ownership": 1, "seconds": 3,
		"flights answered": 2, "flights refused": 1, "members": 3,
	}; !maps.Equal(counted, want) {
		t.Errorf("counted %v, want %v", counted, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := registry.Gather(); len(left) != 0 {
		t.Errorf("after Close: %v", left)
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	var q fifo
	next, want := 0, 0
	for range 5 {
		for range 3000 {
			q.push(&pending{queued: time.Unix(int64(next), 0)})
			next++
		}
		for range 2500 {
			if p := q.pop(); p.queued.Unix() != int64(want) {
				t.Fatalf("popped %d, want %d", p.queued.Unix(), want)
			}
			want++
		}
	}
	if q.len() != next-want || len(q.items) > 3*q.len() {
		t.Errorf("%d wait in %d places, want %d", q.len(), len(q.items), next-want)
	}
	if left := q.takeAll(); len(left) != next-want || q.pop() != nil || q.items != nil {
		t.Errorf("%d left", len(left))
	}
}
