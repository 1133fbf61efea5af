package store

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// lifeOf is a transaction as a run's actor makes it: the record and what the node and
// the wakes go by, as long as nobody else has changed the record.
func lifeOf(run string, mod int64, value []byte) records.Txn {
	return records.Txn{
		If: []records.Compare{{Key: "runs/" + run, Target: records.TargetMod, Relation: records.Equal, Operand: mod}},
		Then: []records.Op{
			{Kind: records.OpPut, Key: "runs/" + run, Value: value},
			{Kind: records.OpPut, Key: "live/" + run, Value: value[:20]},
			{Kind: records.OpPut, Key: "assignments/n1/" + run, Value: value[:200]},
		},
		Else: []records.Op{records.Get("runs/" + run)},
	}
}

// BenchmarkTransactions carries out what 64 runs do, each one transaction after the
// other, with the machine's options as they are and one by one.
func BenchmarkTransactions(b *testing.B) {
	for _, submitters := range []int{1, 2, 8, 64, 512} {
		for _, c := range []struct {
			name    string
			options flight.Options
		}{
			{"one by one", flight.Options{Flights: 64, Alone: 64, Members: 1}},
			{"1 flight", flight.Options{Flights: 1, Alone: AloneMax, Members: flight.Limit}},
			{"2 flights", flight.Options{Flights: 2, Alone: AloneMax, Members: flight.Limit}},
			{"4 flights", flight.Options{Flights: 4, Alone: AloneMax, Members: flight.Limit}},
			{"8 flights", flight.Options{Flights: 8, Alone: AloneMax, Members: flight.Limit}},
		} {
			b.Run(fmt.Sprintf("%d/%s", submitters, c.name), func(b *testing.B) {
				s := openEmbedded(b)
				s.machine = flight.New[*pending](c.options)
				benchmarkLives(b, s, submitters)
			})
		}
	}
}

func benchmarkLives(b *testing.B, s *Store, submitters int) {
	value := []byte(strings.Repeat("x", 600))
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	used := cpuUsed(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range submitters {
		all.Go(func() {
			run, mod := fmt.Sprint(i), int64(0)
			results := make(chan records.Result, 1)
			for left.Add(-1) >= 0 {
				s.Txn(lifeOf(run, mod, value), func(r records.Result) { results <- r })
				r := <-results
				if r.Err != nil || !r.Succeeded {
					b.Errorf("run %s at %d: %+v", run, mod, r)
					return
				}
				mod = r.Revision
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
	b.ReportMetric(float64((cpuUsed(b)-used).Microseconds())/float64(b.N), "cpu-us/txn")
}

// cpuUsed is the time that this process has had of all cores, the server in it too.
func cpuUsed(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
