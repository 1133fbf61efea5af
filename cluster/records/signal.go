package records

import (
	"slices"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// SentSignalsMax bounds the stop signals that a record keeps of one attempt. There
// are two, TERM and KILL, unless the node was restarted between them.
const SentSignalsMax = 4

// AddSignal appends a signal to those sent before it, which stay as they are. Of too
// many it keeps the first and the last ones: when the stop began, and what ended it.
func AddSignal(signals []*recordv1.SentSignal, sent *recordv1.SentSignal) []*recordv1.SentSignal {
	return BoundSignals(append(slices.Clip(signals), sent))
}

// BoundSignals keeps the first and the last ones of too many signals.
func BoundSignals(signals []*recordv1.SentSignal) []*recordv1.SentSignal {
	if len(signals) <= SentSignalsMax {
		return signals
	}
	return append(slices.Clone(signals[:1]), signals[len(signals)-SentSignalsMax+1:]...)
}
