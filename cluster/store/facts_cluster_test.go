package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/records"
)

// Facts of protocol.md section 0 that a cluster shows: three servers, each in a process
// of its own.

// A flight without an answer is carried out later, as a whole and once, or not at all.
func TestFactE9AFlightWithoutAnAnswerMayBeCarriedOutLater(t *testing.T) {
	servers := startServers(t, 3, nil)
	leader, _ := leaderOf(t, servers, servers[0], nil)
	near := others(servers, leader)[0]
	s, client := near.connect(), near.client()
	do(t, s, putTxn("warm", ""))
	const rounds, n = 5, 10
	carriedOut := 0
	for round := range rounds {
		prefix := fmt.Sprintf("%d/", round)
		for _, other := range others(servers, near) {
			other.pause()
		}
		unanswered := flyFor(s, time.Second+time.Duration(round)*100*time.Millisecond, prefix, n)
		for range n {
			if err := <-unanswered; records.ClassOf(err) != records.ClassOutcomeUnknown {
				t.Errorf("round %d: %v", round, err)
			}
		}
		for _, other := range others(servers, near) {
			other.resume()
		}
		// What was under way is decided before anything that begins now; an election may
		// come in between.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		for _, err := s.Do(ctx, putTxn("after", "")); err != nil; _, err = s.Do(ctx, putTxn("after", "")) {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		found := must[*clientv3.GetResponse](t)(client.Get(ctx, prefix, clientv3.WithPrefix()))
		cancel()
		if found.Count != 0 && found.Count != n {
			t.Errorf("round %d: %d of %d are there", round, found.Count, n)
		}
		for _, kv := range found.Kvs {
			if kv.Version != 1 || kv.ModRevision != found.Kvs[0].ModRevision {
				t.Errorf("round %d: %s was put %d times, last at %d; the first key at %d", round, kv.Key, kv.Version, kv.ModRevision, found.Kvs[0].ModRevision)
			}
		}
		if found.Count == n {
			carriedOut++
		}
	}
	if carriedOut == 0 {
		t.Errorf("none of %d flights was carried out after its time was up", rounds)
	}
}

// flyFor hands puts below a prefix over that leave at once and have so much time.
func flyFor(s *Store, left time.Duration, prefix string, n int) <-chan error {
	results := make(chan error, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range n {
		p := &pending{deadline: now.Add(left), queued: now, deliver: func(result records.Result) { results <- result.Err }}
		p.member = s.machine.Submit(putTxn(fmt.Sprint(prefix, i), ""), p)
	}
	s.launch(s.departures())
	return results
}

// A leader that stood still while another was elected may acknowledge a keepalive; the
// term of the answer gives it away.
func TestFactE11ADeposedLeaderMayAcknowledgeKeepalives(t *testing.T) {
	servers := startServers(t, 3, nil)
	acknowledged := 0
	for round := range 5 {
		leader, term := leaderOf(t, servers, servers[0], nil)
		s := leader.connect()
		granted := lease(t, func(deliver func(records.LeaseResult)) { s.Grant(time.Minute, deliver) })
		if granted.Err != nil {
			t.Fatal(granted.Err)
		}
		leader.pause()
		_, newer := leaderOf(t, servers, others(servers, leader)[0], leader)
		if newer <= term {
			t.Fatalf("another leads in term %d, before it was %d", newer, term)
		}
		kept := make(chan records.LeaseResult, 1)
		s.KeepAlive(granted.Lease, func(result records.LeaseResult) { kept <- result })
		awaitSent(t, s)
		leader.resume()
		result := <-kept
		confirming := do(t, s, records.Read(records.Get("k")))
		if confirming.Term < newer {
			t.Errorf("round %d: a linearizable read is of term %d, the newest is %d", round, confirming.Term, newer)
		}
		if result.Err == nil && result.Term < newer {
			acknowledged++
		}
	}
	t.Logf("%d of 5 keepalives were acknowledged in an earlier term", acknowledged)
}

// awaitSent gives what was handed over the time to lie in the server's socket.
func awaitSent(t *testing.T, s *Store) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		leasing := s.leasing
		s.mu.Unlock()
		if leasing > 0 {
			time.Sleep(50 * time.Millisecond)
			return
		}
		if time.Now().After(limit) {
			t.Fatal("nothing is under way")
		}
	}
}

// On a member that is cut off a watch says nothing, one that requires a leader ends,
// and a serializable read answers what was.
func TestFactE12WatchesOfAMemberThatIsCutOff(t *testing.T) {
	servers := startServers(t, 3, nil)
	leader, _ := leaderOf(t, servers, servers[0], nil)
	cut := others(servers, leader)[0]
	client := cut.client()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	must[*clientv3.PutResponse](t)(client.Put(ctx, "k", "before"))
	plain := client.Watch(ctx, "k")
	leading := client.Watch(clientv3.WithRequireLeader(ctx), "k")
	for _, other := range others(servers, cut) {
		other.pause()
	}
	began := time.Now()
	var ended error
	for ended == nil {
		response, open := <-leading
		if !open {
			t.Fatal("the watch ended without an error")
		}
		ended = response.Err()
	}
	if !errors.Is(ended, rpctypes.ErrNoLeader) {
		t.Errorf("it ended with %v", ended)
	}
	t.Logf("the watch that requires a leader ended after %v", time.Since(began))
	old := must[*clientv3.GetResponse](t)(client.Get(ctx, "k", clientv3.WithSerializable()))
	if len(old.Kvs) != 1 || string(old.Kvs[0].Value) != "before" {
		t.Errorf("a serializable read answers %v", old.Kvs)
	}
	select {
	case response, open := <-plain:
		t.Errorf("the plain watch says %v (%v)", response.Err(), open)
	default:
	}
	for _, other := range others(servers, cut) {
		other.resume()
	}
	for _, err := client.Put(ctx, "k", "after"); err != nil; _, err = client.Put(ctx, "k", "after") {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if response := <-plain; response.Err() != nil || string(response.Events[len(response.Events)-1].Kv.Value) != "after" {
		t.Errorf("then the plain watch says %v, %v", response.Events, response.Err())
	}
}
