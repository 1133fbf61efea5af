package store

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/cluster/records"
)

// What is no change of a run, in the metric of operations.
const (
	operationWrite  = "write"
	operationRead   = "read"
	operationScan   = "scan"
	operationPast   = "past"
	operationFollow = "follow"
)

func newOperations() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "errand_store_operations_total",
		Help: "What was asked of the store and done: changes of runs by what they were (create, place, unplace, update, wish, end, note, retire), other writes, reads, scans of ranges, looks into the past, and follows begun. A refused transaction is not among them.",
	}, []string{"operation"})
}

// count adds a transaction that was carried out.
func (m *metrics) count(txn records.Txn, result records.Result) {
	switch {
	case result.Err != nil:
	case txn.ReadOnly():
		m.operations.WithLabelValues(operationRead).Inc()
	case !result.Succeeded:
	case txn.Change != "":
		m.operations.WithLabelValues(string(txn.Change)).Inc()
	default:
		m.operations.WithLabelValues(operationWrite).Inc()
	}
}
