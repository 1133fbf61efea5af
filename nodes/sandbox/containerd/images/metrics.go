package images

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts pulls and collections; a nil one counts nothing.
type Metrics struct {
	bytes, collected prometheus.Counter
	outcomes         *prometheus.CounterVec
	held             prometheus.Gauge
}

// NewMetrics registers the counters.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "errand_image_pulls_total", Help: "Pulls that have ended, by outcome: pulled, not_found, failed, canceled.",
		}, []string{"outcome"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "errand_image_pull_bytes_total", Help: "Bytes that have come in from registries.",
		}),
		collected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "errand_images_collected_total", Help: "Pulled images that were removed because of age or size.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "errand_image_bytes", Help: "What the pulled images take on the disk, at the last collection.",
		}),
	}
	for _, collector := range []prometheus.Collector{m.outcomes, m.bytes, m.collected, m.held} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register the metrics of images: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) pulled(outcome string, bytes int64) {
	if m != nil {
		m.outcomes.WithLabelValues(outcome).Inc()
		m.bytes.Add(float64(bytes))
	}
}

func (m *Metrics) collection(removed int, bytes int64) {
	if m != nil {
		m.collected.Add(float64(removed))
		m.held.Set(float64(bytes))
	}
}
