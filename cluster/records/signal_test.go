package records_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// The first signal, and the newest ones, in their order; what was kept before is
// not written to, for the record that holds it may be on its way.
func TestSentSignalsKeepTheFirstAndTheLastOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all, kept []*recordv1.SentSignal
		for i := range rapid.IntRange(1, 12).Draw(t, "signals") {
			sent := &recordv1.SentSignal{Signal: 15, At: int64(i + 1)}
			all = append(all, sent)
			before := append([]*recordv1.SentSignal(nil), kept...)
			next := records.AddSignal(kept, sent)
			for k := range before {
				if kept[k] != before[k] {
					t.Fatalf("signal %d of the list before was changed", k)
				}
			}
			kept = next
			want := all
			if len(all) > records.SentSignalsMax {
				want = append(all[:1:1], all[len(all)-records.SentSignalsMax+1:]...)
			}
			if len(kept) != len(want) {
				t.Fatalf("%d signals of %d, want %d", len(kept), len(all), len(want))
			}
			for k := range want {
				if kept[k] != want[k] {
					t.Fatalf("signals %v, want %v", kept, want)
				}
			}
		}
	})
}
