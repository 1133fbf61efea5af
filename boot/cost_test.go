package boot_test

import (
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"

	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// operations is what has been asked of a node's store, by kind.
type operations map[string]int

func gatherOperations(t *testing.T, registry prometheus.Gatherer) operations {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := operations{}
	for _, family := range families {
		if family.GetName() != "errand_store_operations_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			counts[metric.GetLabel()[0].GetValue()] = int(metric.GetCounter().GetValue())
		}
	}
	return counts
}

func (o operations) since(before operations) operations {
	done := operations{}
	for kind, count := range o {
		if count > before[kind] {
			done[kind] = count - before[kind]
		}
	}
	return done
}

// settled waits until the store has answered for every run that was created.
func settled(t *testing.T, registry prometheus.Gatherer) operations {
	t.Helper()
	for {
		counts := gatherOperations(t, registry)
		if counts["create"] == counts["end"] {
			return counts
		}
		if t.Context().Err() != nil {
			t.Fatal("the runs do not end")
		}
		runtime.Gosched()
	}
}

// lifecycles carries runs out and returns how many transactions they say that they
// have cost.
func (h *host) lifecycles(t *testing.T, runs int, command string) int {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	var ids []string
	for range runs {
		run, err := h.node.Client().Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{command}}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, run.GetId())
	}
	total := 0
	for _, id := range ids {
		run, err := h.node.Client().Wait(ctx, id)
		if err != nil || run.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
			t.Fatal(run, err)
		}
		total += int(run.GetTransactions())
	}
	return total
}

func TestARunCostsThreeTransactionsAndNoRead(t *testing.T) {
	const runs = 20
	for _, c := range []struct {
		name, command string
		// updatesMin is how many runs are seen running at least: which of a start and an
		// end that come together is heard first is not ours to say.
		updatesMin int
	}{
		{"that ends at once", "exit=0", 0},
		{"that takes its time", "after=300ms", runs},
	} {
		t.Run(c.name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			h := newHost(silent(t), fx.Replace(boot.Parts{Metrics: registry})).start(t)
			h.run(t, c.command) // the first one begins what the others share
			// A machine that stands still for a quarter of a second has runs looked at by
			// others, who read them.
			const tries = 25
			for try := 1; ; try++ {
				before := settled(t, registry)
				said := h.lifecycles(t, runs, c.command)
				got := settled(t, registry).since(before)
				updates := got["update"]
				delete(got, "update")
				if want := got["create"] + got["place"] + updates + got["end"]; said != want {
					t.Errorf("the runs say that they cost %d transactions, the store %d", said, want)
				}
				// The scans are those of the callers, who ask for their runs once.
				want := operations{"create": runs, "place": runs, "end": runs, "scan": runs}
				if maps.Equal(got, want) && updates >= c.updatesMin && updates <= runs {
					return
				}
				if try == tries {
					t.Fatalf("%d runs cost %v and %d updates, want %v and at least %d", runs, got, updates, want, c.updatesMin)
				}
			}
		})
	}
}
