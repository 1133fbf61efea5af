package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/cluster/records"
)

// metrics counts what transactions come to.
type metrics struct {
	transactions *prometheus.CounterVec
	seconds      prometheus.Histogram
	flights      *prometheus.CounterVec
	members      prometheus.Histogram
	resets       prometheus.Counter
	operations   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		operations: newOperations(),
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "errand_store_transactions_total",
			Help: "Transactions by what they came to: succeeded, refused (a compare did not hold) or the class of their error.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "errand_store_transaction_seconds",
			Help: "Time from handing a transaction over to its result, waiting included.",
			// 0.25 ms to 8 s.
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}),
		flights: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "errand_store_flights_total",
			Help: "Flights of transactions by what they came to: answered, refused (as a whole; several members go again, each alone), not sent, or unknown.",
		}, []string{"outcome"}),
		members: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "errand_store_flight_members",
			Help:    "Transactions that travelled in one flight.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		resets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "errand_store_follow_resets_total",
			Help: "Times that a follow began or began again from a full read.",
		}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.transactions, m.seconds, m.flights, m.members, m.resets, m.operations}
}

func (m *metrics) register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	for i, collector := range m.all() {
		if err := registerer.Register(collector); err != nil {
			for _, registered := range m.all()[:i] {
				registerer.Unregister(registered)
			}
			return fmt.Errorf("metrics of the store: %w", err)
		}
	}
	return nil
}

func (m *metrics) unregister(registerer prometheus.Registerer) {
	if registerer == nil {
		return
	}
	for _, collector := range m.all() {
		registerer.Unregister(collector)
	}
}

func (m *metrics) observe(result records.Result, took time.Duration) {
	outcome := "refused"
	switch {
	case result.Err != nil:
		outcome = strings.ReplaceAll(records.ClassOf(result.Err).String(), " ", "_")
	case result.Succeeded:
		outcome = "succeeded"
	}
	m.transactions.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
}

// landed counts a flight.
func (m *metrics) landed(members int, l landing) {
	outcome := "answered"
	switch {
	case l.err == nil:
	case l.refused:
		outcome = "refused"
	case records.ClassOf(l.err) == records.ClassOutcomeUnknown:
		outcome = "unknown"
	default:
		outcome = "not_sent"
	}
	m.flights.WithLabelValues(outcome).Inc()
	m.members.Observe(float64(members))
}
