package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

func TestReadThatHasWaitedBehindOthersIsCarriedOutWhileTheStoreAnswersThem(t *testing.T) {
	s := openEmbedded(t)
	late := func() *pending {
		return &pending{txn: records.Read(records.Get("/errand/a")), deadline: time.Now().Add(-time.Second), queued: time.Now().Add(-OpTimeout)}
	}
	if result := s.carryRead(late()); records.ClassOf(result.Err) != records.ClassUnavailable {
		t.Fatalf("with nothing answered lately: %v", result.Err)
	}
	if result := transact(t, s, records.Read(records.Get("/errand/a"))); result.Err != nil {
		t.Fatal(result.Err)
	}
	if result := s.carryRead(late()); result.Err != nil {
		t.Fatalf("while the store answers: %v", result.Err)
	}
	s.readAnswered.Store(time.Now().Add(-readAttemptTimeout).UnixNano())
	if result := s.carryRead(late()); records.ClassOf(result.Err) != records.ClassUnavailable {
		t.Fatalf("when it does not any more: %v", result.Err)
	}
}

func transact(t *testing.T, s *Store, txn records.Txn) records.Result {
	t.Helper()
	results := make(chan records.Result, 1)
	s.Txn(txn, func(result records.Result) { results <- result })
	select {
	case result := <-results:
		return result
	case <-time.After(patience):
		t.Fatal("no answer")
		return records.Result{}
	}
}

// The first read of a follow comes in pages that grow.
func TestFollowReadsMoreThanItsLargestPage(t *testing.T) {
	s := openEmbedded(t)
	const keys = 2*pageKeysMax + 17
	for i := 0; i < keys; {
		var puts []records.Op
		for ; i < keys && len(puts) < 100; i++ {
			puts = append(puts, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("/errand/many/%06d", i), Value: []byte("x")})
		}
		if result := transact(t, s, records.Txn{Then: puts}); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	batches := make(chan records.Batch, 1)
	stop := s.Follow("/errand/many/", func(b records.Batch) {
		if b.Reset {
			batches <- b
		}
	})
	defer stop()
	reset := <-batches
	if len(reset.Events) != keys {
		t.Fatalf("%d keys, want %d", len(reset.Events), keys)
	}
	for i, event := range reset.Events {
		if want := fmt.Sprintf("/errand/many/%06d", i); event.KV.Key != want {
			t.Fatalf("key %d is %s, want %s", i, event.KV.Key, want)
		}
	}
}
