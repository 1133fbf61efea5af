package run

import (
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Most of a run's history follows from its record (History). The rest is kept in it as
// events, which are written with the change that they are of and cost no transaction.
const (
	// eventsFirst and eventsLast bound the events that a record keeps: the first ones and
	// the last ones.
	eventsFirst = 8
	eventsLast  = 24
	// eventBytesMax bounds the words of one.
	eventBytesMax = 256
)

const (
	eventRefused = recordv1.RunEventKind_RUN_EVENT_KIND_REFUSED
	eventLeft    = recordv1.RunEventKind_RUN_EVENT_KIND_LEFT
	eventStop    = recordv1.RunEventKind_RUN_EVENT_KIND_STOP
	eventOverdue = recordv1.RunEventKind_RUN_EVENT_KIND_OVERDUE

	eventQuarantined = recordv1.RunEventKind_RUN_EVENT_KIND_QUARANTINED
)

// remember adds an event to a record, which is the caller's to change.
func remember(run *recordv1.Run, event *recordv1.RunEvent) {
	event.Message = records.Clip(event.GetMessage(), eventBytesMax)
	run.Events = append(run.GetEvents(), event)
	if beyond := len(run.GetEvents()) - eventsFirst - eventsLast; beyond > 0 {
		run.Events = append(run.Events[:eventsFirst], run.Events[eventsFirst+beyond:]...)
		run.EventsLeftOut += int32(beyond) //nolint:gosec // one at a time
	}
}

// stopEvent tells of a wish.
func stopEvent(run *recordv1.Run, wish *recordv1.Wish) *recordv1.RunEvent {
	return &recordv1.RunEvent{
		Kind: eventStop, At: wish.GetAt(), Attempt: run.GetAttempt(), Reason: wish.GetReason(), By: wish.GetBy(), Force: wish.GetForce(),
	}
}

// rememberWish keeps what is known of a wish that is about to go.
func rememberWish(run *recordv1.Run) {
	if run.GetWish() != nil {
		remember(run, stopEvent(run, run.GetWish()))
	}
}

// rememberOverdue keeps when the timeout of an attempt was found overdue.
func rememberOverdue(run *recordv1.Run) {
	if run.GetOverdueAt() > 0 {
		remember(run, &recordv1.RunEvent{Kind: eventOverdue, At: run.GetOverdueAt(), Attempt: run.GetAttempt(), Node: run.GetPlacement().GetNode()})
	}
}

// notePlaced keeps when the current attempt was placed, before its placement goes.
func notePlaced(run *recordv1.Run) {
	if i := attemptIndex(run); i >= 0 && run.GetPlacement() != nil {
		run.GetAttempts()[i].PlacedAt = run.GetPlacement().GetPlacedAt()
	}
}

// noteSafe records from when on no copy of the current attempt can be running, and how
// that is known (protocol.md section 6). It is never before the attempt came to its node.
func noteSafe(run *recordv1.Run, by recordv1.SafeBy, at int64) {
	attempt := attemptOf(run)
	attempt.SafeAt, attempt.SafeBy = max(at, attempt.GetStartedAt(), run.GetPlacement().GetPlacedAt()), by
}
