package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

func TestServerThatTakesFewOperations(t *testing.T) {
	const opsMax = 16
	s := startServers(t, 1, func(plan *serverPlan) { plan.OpsMax = opsMax })[0].connect()
	for round := range 10 {
		txns := make([]records.Txn, 100)
		for i := range txns {
			txns[i] = createTxn(fmt.Sprintf("%d/%d", round, i), "")
		}
		wide := records.Txn{}
		for i := range opsMax + 1 {
			wide.Then = append(wide.Then, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("wide/%d", i)})
		}
		results := gather(s, append(txns, wide))
		for i, result := range results[:len(txns)] {
			if result.Err != nil || !result.Succeeded {
				t.Fatalf("round %d: transaction %d: %+v", round, i, result)
			}
		}
		if err := results[len(txns)].Err; records.ClassOf(err) != records.ClassInvalid || !strings.Contains(err.Error(), "too many operations") {
			t.Errorf("one of %d operations: %v", opsMax+1, err)
		}
	}
	s.mu.Lock()
	limit := s.machine.Limit()
	s.mu.Unlock()
	if limit != opsMax {
		t.Errorf("learned %d, want %d", limit, opsMax)
	}
	revisions := map[int64]bool{}
	var txns []records.Txn
	for i := range 60 {
		txns = append(txns, createTxn(fmt.Sprintf("after/%d", i), ""))
	}
	for _, result := range gather(s, txns) {
		revisions[result.Revision] = true
	}
	if want := 60 / (opsMax - 1); len(revisions) != want {
		t.Errorf("then 60 left in %d flights, want %d", len(revisions), want)
	}
}

func TestServerWithoutSpaceRefusesPutsAloneAndHeals(t *testing.T) {
	server := startServers(t, 1, func(plan *serverPlan) { plan.Quota = 4 << 20 })[0]
	s, client := server.connect(), server.client()
	large := strings.Repeat("x", 400<<10)
	do(t, s, putTxn("victim/1", ""))
	do(t, s, putTxn("victim/2", ""))
	var err error
	for i, limit := 0, time.Now().Add(patience); err == nil; i++ {
		if time.Now().After(limit) {
			t.Fatal("the server never has enough")
		}
		_, err = s.Do(context.Background(), putTxn(fmt.Sprintf("large/%d", i), large))
	}
	if records.ClassOf(err) != records.ClassOutcomeUnknown {
		t.Errorf("the first put beyond the quota may have been carried out, and is answered with %v", err)
	}
	if trouble := s.Trouble(); trouble == nil || !strings.Contains(trouble.Error(), "alarm disarm") {
		t.Errorf("the trouble is %v", trouble)
	}
	for range 3 {
		results := gather(s, []records.Txn{putTxn("a", ""), deleteTxn("victim/1"), putTxn("b", ""), deleteTxn("victim/2")})
		for i, result := range results {
			switch {
			case i%2 == 1 && result.Err != nil:
				t.Errorf("a delete is refused: %v", result.Err)
			case i%2 == 0 && (records.ClassOf(result.Err) != records.ClassUnavailable || !strings.Contains(result.Err.Error(), "database space exceeded")):
				t.Errorf("a put: %+v", result)
			}
		}
	}
	if found := do(t, s, records.Read(records.Range("victim/"))); found.Responses[0].Count != 0 {
		t.Errorf("%d victims are left", found.Responses[0].Count)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	revision := do(t, s, records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: "large/", Prefix: true}}}).Revision
	must[*clientv3.CompactResponse](t)(client.Compact(ctx, revision, clientv3.WithCompactPhysical()))
	must[*clientv3.DefragmentResponse](t)(client.Defragment(ctx, server.plan.Client))
	must[*clientv3.AlarmResponse](t)(client.AlarmDisarm(ctx, &clientv3.AlarmMember{}))
	for i, result := range gather(s, []records.Txn{putTxn("a", ""), putTxn("b", "")}) {
		if result.Err != nil {
			t.Errorf("with space again, put %d: %v", i, result.Err)
		}
	}
	if trouble := s.Trouble(); trouble != nil {
		t.Errorf("with space again, the trouble is %v", trouble)
	}
}

// register is a key that one writer changes, each time only if it is as he left it.
type register struct {
	key string
	// sure is the value of the last write that is known to be there, maybe are those
	// after it of which nobody knows.
	sure  string
	maybe []string
	mod   int64
	next  int
	// counts by class; worst is the longest that an answer took.
	counts map[records.Class]int
	worst  time.Duration
	ended  chan error
}

// write changes the register until the time is over. After an error it reads where it
// is, as an actor does.
func (r *register) write(ctx context.Context, s *Store) error {
	for ctx.Err() == nil {
		r.next++
		value := fmt.Sprintf("%s/%d", r.key, r.next)
		began := time.Now()
		results := make(chan records.Result, 1)
		s.Txn(records.Txn{
			If:   []records.Compare{{Key: r.key, Target: records.TargetMod, Relation: records.Equal, Operand: r.mod}},
			Then: []records.Op{{Kind: records.OpPut, Key: r.key, Value: []byte(value)}},
			Else: []records.Op{records.Get(r.key)},
		}, func(result records.Result) { results <- result })
		result := <-results
		r.worst = max(r.worst, time.Since(began))
		switch {
		case result.Err != nil:
			class := records.ClassOf(result.Err)
			r.counts[class]++
			if class == records.ClassOutcomeUnknown {
				r.maybe = append(r.maybe, value)
			} else if class != records.ClassUnavailable {
				return result.Err
			}
		case result.Succeeded:
			r.sure, r.maybe, r.mod = value, nil, result.Revision
			r.counts[records.ClassInternal]++
			continue
		default:
			kv, _ := result.First(0)
			if err := r.found(kv); err != nil {
				return err
			}
		}
	}
	return nil
}

// found takes over what the register holds: what was sure, or what nobody knew of.
func (r *register) found(kv records.KV) error {
	value := string(kv.Value)
	known := value == r.sure
	for _, maybe := range r.maybe {
		known = known || value == maybe
	}
	if !known {
		return fmt.Errorf("%s holds %q, the last that is sure is %q, not so %q", r.key, value, r.sure, r.maybe)
	}
	if value != r.sure {
		r.sure, r.maybe = value, nil
	}
	r.mod = kv.Mod
	return nil
}

// writeThrough lets 64 writers go on until trouble is over and says what they were
// told, and how long an answer took at most. What they were told must be so.
func writeThrough(t *testing.T, s *Store, trouble func()) (counts map[records.Class]int, worst time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var writers sync.WaitGroup
	registers := make([]*register, 64)
	for i := range registers {
		r := &register{key: fmt.Sprintf("register/%d", i), counts: map[records.Class]int{}, ended: make(chan error, 1)}
		registers[i] = r
		writers.Go(func() { r.ended <- r.write(ctx, s) })
	}
	trouble()
	stop()
	writers.Wait()
	counts = map[records.Class]int{}
	for _, r := range registers {
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		kv, _ := do(t, s, records.Read(records.Get(r.key))).First(0)
		if err := r.found(kv); err != nil {
			t.Error("in the end: ", err)
		}
		for class, n := range r.counts {
			counts[class] += n
		}
		worst = max(worst, r.worst)
	}
	t.Logf("%d done, %d unknown, %d not sent, longest %v", counts[records.ClassInternal], counts[records.ClassOutcomeUnknown], counts[records.ClassUnavailable], worst)
	return counts, worst
}

// A server that stands still nine tenths of the time, as one does whose disk takes
// 100 ms for a sync, is slow and nothing else.
func TestSlowServerIsSlowAndNothingElse(t *testing.T) {
	server := startServers(t, 1, nil)[0]
	s := server.connect()
	counts, _ := writeThrough(t, s, func() {
		for began := time.Now(); time.Since(began) < OpTimeout/2; {
			server.pause()
			time.Sleep(90 * time.Millisecond)
			server.resume()
			time.Sleep(10 * time.Millisecond)
		}
	})
	if counts[records.ClassInternal] == 0 || len(counts) != 1 {
		t.Errorf("answered %v", counts)
	}
}

// A server that is away for longer than a transaction waits: who was on the way does
// not know, who waited is told so within his time, and then all goes on by itself.
func TestServerIsAwayForAWhile(t *testing.T) {
	for _, c := range []struct {
		name        string
		leave, back func(t *testing.T, server *process)
	}{
		{"it stands still", func(_ *testing.T, server *process) { server.pause() }, func(_ *testing.T, server *process) { server.resume() }},
		{"it is killed and started again", func(_ *testing.T, server *process) { server.kill() }, func(_ *testing.T, server *process) {
			server.start()
			server.awaitReady()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := startServers(t, 1, nil)[0]
			s := server.connect()
			counts, worst := writeThrough(t, s, func() {
				time.Sleep(500 * time.Millisecond)
				c.leave(t, server)
				time.Sleep(OpTimeout + time.Second)
				c.back(t, server)
				// It is well again when somebody is answered who comes now.
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				for _, err := s.Do(ctx, putTxn("after", "")); err != nil; _, err = s.Do(ctx, putTxn("after", "")) {
					if ctx.Err() != nil {
						t.Fatal(err)
					}
				}
			})
			if unknown := counts[records.ClassOutcomeUnknown]; unknown > FlightsMax*flight.Limit {
				t.Errorf("%d do not know, more than may be under way", unknown)
			}
			if counts[records.ClassInternal] == 0 || counts[records.ClassUnavailable]+counts[records.ClassOutcomeUnknown] == 0 {
				t.Errorf("answered %v", counts)
			}
			if worst > OpTimeout+2*sendMin+busy {
				t.Errorf("an answer took %v", worst)
			}
		})
	}
}
