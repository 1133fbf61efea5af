package boot_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"

	"github.com/errand-run/errand/boot"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// ailing is a driver that starts nothing while it is sick.
type ailing struct {
	sandbox.Driver
	sick *atomic.Bool
}

func (a ailing) Start(ctx context.Context, id string) (time.Time, error) {
	if a.sick.Load() {
		return time.Time{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the disk is full")
	}
	return a.Driver.Start(ctx, id)
}

// What a node lost score for is shown while it counts; the only node is used all the
// same, and a start gives the score back.
func TestAFailedStartIsShownOfItsNodeUntilOneSucceeds(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	registry := prometheus.NewRegistry()
	h := newHost(silent(t), fx.Replace(boot.Parts{
		Metrics: registry,
		Drivers: func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
			return []sandbox.Driver{ailing{enabled[0], &sick}}, nil
		},
	})).start(t)
	ctx := within(t, time.Minute)
	run, err := h.node.Client().Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"exit=0"}}})
	if err != nil {
		t.Fatal(err)
	}
	for ask := time.NewTicker(20 * time.Millisecond); ; <-ask.C {
		shown, err := h.node.Client().Node(ctx, "embedded")
		if err != nil {
			t.Fatal(err)
		}
		if lost := shown.GetNode().GetLostScore(); len(lost) > 0 {
			if l := lost[0]; l.GetDriver() != boot.DriverNull || l.GetRuns() != 1 || l.GetShare() != 2 || !strings.Contains(l.GetCause(), "the disk is full") || l.GetUntil() == nil {
				t.Errorf("lost %v", l)
			}
			break
		}
	}
	nodes, err := h.node.Client().Nodes(ctx)
	if err != nil || len(nodes) != 1 || len(nodes[0].GetLostScore()) != 1 {
		t.Errorf("listed as %v, %v", nodes, err)
	}
	if got := failedStarts(t, registry); got != 1 {
		t.Errorf("the metric says %v", got)
	}
	sick.Store(false)
	if ended, err := h.node.Client().Wait(ctx, run.GetId()); err != nil || ended.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
		t.Fatalf("%v, %v", ended, err)
	}
	// A command that ends at once may be told to have before its start is.
	for ask := time.NewTicker(20 * time.Millisecond); ; <-ask.C {
		nodes, err = h.node.Client().Nodes(ctx)
		if err != nil || len(nodes) != 1 {
			t.Fatalf("after a start listed as %v, %v", nodes, err)
		}
		if len(nodes[0].GetLostScore()) == 0 {
			break
		}
	}
	if got := failedStarts(t, registry); got != 0 {
		t.Errorf("after a start the metric says %v", got)
	}
}

// failedStarts is the node's sample of the metric, 0 if it has none.
func failedStarts(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "errand_node_failed_starts" && len(family.GetMetric()) == 1 {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
