package boot

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/cluster/placement"
)

// scoreMetric shows the nodes that have lost score, as the actors of this one have met
// it. A driver of a node that has lost none has no sample. The label of the node is "on":
// an application may give all metrics of each of its nodes one that is named "node".
type scoreMetric struct {
	desc *prometheus.Desc
	lost func() []placement.Lost
}

func newScoreMetric(lost func() []placement.Lost) *scoreMetric {
	return &scoreMetric{lost: lost, desc: prometheus.NewDesc("errand_node_failed_starts",
		"Runs that a driver of a node could not start and that count against it: one of 2^n runs asks it in its turn.",
		[]string{"on", "driver"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *scoreMetric) Describe(to chan<- *prometheus.Desc) { to <- m.desc }

// Collect implements prometheus.Collector.
func (m *scoreMetric) Collect(to chan<- prometheus.Metric) {
	for _, l := range m.lost() {
		to <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(l.Runs), l.Node, l.Driver)
	}
}
