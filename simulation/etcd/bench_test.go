package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// bench is a cluster without a test around it.
type bench struct {
	line    virtual.Timeline
	history *history.History
	cluster *Cluster
}

func newBench(seed uint64, options Options) *bench {
	b := &bench{history: history.New()}
	b.cluster = New(&b.line, virtual.Streams{Seed: seed}.Of("store"), b.history, options)
	return b
}

// advance moves the time on by d.
func (b *bench) advance(d time.Duration) {
	limit := b.line.Now() + d
	reached := false
	b.line.After(d, func() { reached = true })
	for !reached && b.line.Next() {
		if b.line.Now() > limit {
			panic("moved too far")
		}
	}
}

// until moves the time on until something is so, for two minutes at most.
func (b *bench) until(t testing.TB, what string, is func() bool) {
	t.Helper()
	limit := b.line.Now() + 2*time.Minute
	for !is() {
		if !b.line.Next() || b.line.Now() > limit {
			t.Fatalf("no %s by %v", what, b.line.Now())
		}
	}
}

func (b *bench) txn(t testing.TB, c *Client, txn records.Txn) records.Result {
	t.Helper()
	var got *records.Result
	c.Txn(txn, func(r records.Result) { got = &r })
	b.until(t, "answer", func() bool { return got != nil })
	return *got
}

func (b *bench) lease(t testing.TB, call func(func(actors.LeaseResult))) actors.LeaseResult {
	t.Helper()
	var got *actors.LeaseResult
	call(func(r actors.LeaseResult) { got = &r })
	b.until(t, "answer about a lease", func() bool { return got != nil })
	return *got
}

func put(key, value string) records.Txn {
	return records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: []byte(value)}}}
}

func get(key string) records.Txn { return records.Read(records.Get(key)) }

// BenchmarkCluster is what five nodes might ask for in a busy second: 100 compares
// and swaps with a read each, followed by all.
func BenchmarkCluster(b *testing.B) {
	w := newBench(1, DefaultOptions(3))
	var clients []*Client
	heard := 0
	for i := range 5 {
		c := w.cluster.Client(fmt.Sprintf("n%d", i+1))
		for shard := range 13 {
			c.Follow(fmt.Sprintf("/errand/live/%d/", i*13+shard), func(records.Batch) { heard++ })
		}
		c.Follow("/errand/nodes/", func(records.Batch) { heard++ })
		clients = append(clients, c)
	}
	for i := range 2000 {
		w.txn(b, clients[0], put(fmt.Sprintf("/errand/runs/%d/r.app.%05d", i%64, i), "value"))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; b.Loop(); n++ {
		key := fmt.Sprintf("%d/r.app.%05d", n%2000%64, n%2000)
		c := clients[n%5]
		done := false
		c.Txn(get("/errand/runs/"+key), func(r records.Result) {
			kv, _ := r.First(0)
			c.Txn(records.Txn{
				If: []records.Compare{{Key: kv.Key, Target: records.TargetMod, Relation: records.Equal, Operand: kv.Mod}},
				Then: []records.Op{
					{Kind: records.OpPut, Key: kv.Key, Value: kv.Value},
					{Kind: records.OpPut, Key: "/errand/live/" + key, Value: kv.Value},
				},
			}, func(r records.Result) {
				if !r.Succeeded {
					b.Fatal(r)
				}
				done = true
			})
		})
		for !done {
			w.line.Next()
		}
	}
}
