package etcd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// flying is a client that sends flights.
func flying(seed uint64, flights, opsMax int) (*bench, *Client) {
	o := DefaultOptions(3)
	o.Flights, o.OpsMax = flights, opsMax
	b := newBench(seed, o)
	return b, b.cluster.Client("n1")
}

// gather hands transactions over at one moment and returns what they come to and when.
func (b *bench) gather(t *testing.T, c *Client, txns []records.Txn) (results []records.Result, took []time.Duration) {
	t.Helper()
	results, took = make([]records.Result, len(txns)), make([]time.Duration, len(txns))
	began, left := b.line.Now(), len(txns)
	for i, txn := range txns {
		c.Txn(txn, func(r records.Result) {
			if took[i] != 0 {
				t.Errorf("transaction %d is answered twice", i)
			}
			results[i], took[i] = r, b.line.Now()-began
			left--
		})
	}
	b.until(t, "answers", func() bool { return left == 0 })
	return results, took
}

func puts(n int) []records.Txn {
	txns := make([]records.Txn, n)
	for i := range txns {
		txns[i] = put(fmt.Sprintf("k/%d", i), "1")
	}
	return txns
}

// revisionsOf are those that some transactions were answered with.
func revisionsOf(t *testing.T, results []records.Result) (revisions []int64) {
	t.Helper()
	for i, r := range results {
		if r.Err != nil || !r.Succeeded {
			t.Fatalf("transaction %d: %+v", i, r)
		}
		if !slices.Contains(revisions, r.Revision) {
			revisions = append(revisions, r.Revision)
		}
	}
	return revisions
}

func TestClientSendsTogetherWhatDoesNotMeet(t *testing.T) {
	b, c := flying(1, 1, 0)
	results, _ := b.gather(t, c, puts(30))
	// The first leaves at once, the others when it is back.
	if revisions := revisionsOf(t, results); len(revisions) != 2 {
		t.Errorf("30 puts at %d revisions", len(revisions))
	}
	for i, r := range results {
		if kv, _ := b.cluster.State().Get(fmt.Sprintf("k/%d", i)); kv.Mod != r.Revision {
			t.Errorf("%s is at %d, answered with %d", kv.Key, kv.Mod, r.Revision)
		}
	}
	same := []records.Txn{put("k/0", "2"), put("k/0", "3"), put("k/0", "4")}
	results, _ = b.gather(t, c, same)
	if revisions := revisionsOf(t, results); len(revisions) != 3 || !slices.IsSorted(revisions) {
		t.Errorf("three puts of one key at %v", revisions)
	}
}

func TestClientSendsAgainAloneWhatWasRefusedTogether(t *testing.T) {
	b, c := flying(2, 1, 16)
	results, _ := b.gather(t, c, puts(40))
	revisionsOf(t, results)
	b.cluster.Faults.Full = true
	txns := puts(6)
	txns[3] = records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: "k/3"}}}
	results, _ = b.gather(t, c, txns)
	for i, r := range results {
		if i == 3 && (r.Err != nil || !r.Succeeded) || i != 3 && records.ClassOf(r.Err) != records.ClassUnavailable {
			t.Errorf("transaction %d of a full store: %+v", i, r)
		}
	}
}

func TestClientAnswersInTimeWhatWaitsForAFlightThatIsAway(t *testing.T) {
	b, c := flying(3, 1, 0)
	b.txn(t, c, put("warm", ""))
	c.link.CutAll()
	results, took := b.gather(t, c, append(puts(5), put("k/0", "again")))
	for i, r := range results {
		want := records.ClassUnavailable
		if i == 0 {
			want = records.ClassOutcomeUnknown
		}
		if records.ClassOf(r.Err) != want || took[i] > opTimeout+sendMin {
			t.Errorf("transaction %d: %v (%v) after %v, want %v", i, r.Err, records.ClassOf(r.Err), took[i], want)
		}
	}
	c.link.HealAll()
	if results, _ := b.gather(t, c, puts(5)); len(revisionsOf(t, results)) > 2 {
		t.Errorf("then: %+v", results)
	}
}

// What was on a flight that is carried out late is there once, as a whole.
func TestFlightThatIsCarriedOutLateIsNotSentAgain(t *testing.T) {
	late := 0
	for seed := range uint64(40) {
		b, c := flying(seed, 1, 0)
		link := b.cluster.Link("n1")
		b.txn(t, c, put("warm", ""))
		// They wait for one that is answered, and leave together.
		c.Txn(put("first", ""), func(records.Result) { link.Unknown, link.Late = 1, 20*time.Second })
		results, _ := b.gather(t, c, puts(5))
		link.Unknown = 0
		b.advance(time.Minute)
		there := 0
		for i := range results {
			if records.ClassOf(results[i].Err) != records.ClassOutcomeUnknown {
				t.Errorf("seed %d: transaction %d: %+v", seed, i, results[i])
			}
			kv, ok := b.cluster.State().Get(fmt.Sprintf("k/%d", i))
			if ok {
				there++
			}
			if ok && kv.Mod != kv.Create {
				t.Errorf("seed %d: %s was put at %d and at %d", seed, kv.Key, kv.Create, kv.Mod)
			}
		}
		if there != 0 && there != len(results) {
			t.Errorf("seed %d: %d of %d are there", seed, there, len(results))
		}
		if there > 0 {
			late++
		}
	}
	if late == 0 || late == 40 {
		t.Errorf("%d of 40 flights were carried out", late)
	}
}
