package boot

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics is where the stages register theirs. It takes them all back when the node
// stops, so that the registry of an application can have the next node's.
type metrics struct {
	prometheus.Registerer
	gatherer prometheus.Gatherer

	mu    sync.Mutex
	taken []prometheus.Collector
}

func newMetrics(parts Parts) *metrics {
	m := &metrics{Registerer: parts.Metrics, gatherer: parts.Gatherer}
	if m.Registerer == nil {
		own := prometheus.NewRegistry()
		own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		m.Registerer = own
	}
	if gatherer, ok := m.Registerer.(prometheus.Gatherer); ok && m.gatherer == nil {
		m.gatherer = gatherer
	}
	return m
}

// Register implements prometheus.Registerer.
func (m *metrics) Register(collector prometheus.Collector) error {
	if err := m.Registerer.Register(collector); err != nil {
		return fmt.Errorf("%w (two nodes on one registry? give each its label with prometheus.WrapRegistererWith)", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken = append(m.taken, collector)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (m *metrics) MustRegister(all ...prometheus.Collector) {
	for _, collector := range all {
		if err := m.Register(collector); err != nil {
			panic(err)
		}
	}
}

// release takes back what was registered and not taken back yet.
func (m *metrics) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, collector := range m.taken {
		m.Unregister(collector)
	}
	m.taken = nil
}
