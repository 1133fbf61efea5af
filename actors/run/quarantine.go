package run

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// quarantined is a sandbox in the run's name for which nothing accounts. It changes
// nothing about the run; its history says that there was one, also when the run has ended.
type quarantined struct{ *actorv1.Quarantined }

func (quarantined) column() column { return onQuarantined }

func sameQuarantine(m *actorv1.Quarantined, attempt, placement int32, node string, since int64) bool {
	return m.GetAttempt() == attempt && m.GetPlacement() == placement && m.GetNode() == node && m.GetSince() == since
}

// noteQuarantined remembers it once. The node tells it until the record says so.
func noteQuarantined(now actors.Instant, s snapshot, r request) decision {
	m := r.(quarantined)
	if slices.ContainsFunc(s.run.GetEvents(), func(e *recordv1.RunEvent) bool {
		return e.GetKind() == eventQuarantined && sameQuarantine(m.Quarantined, e.GetAttempt(), e.GetPlacement(), e.GetNode(), e.GetAt())
	}) {
		return decision{}
	}
	run := proto.CloneOf(s.run)
	remember(run, &recordv1.RunEvent{
		Kind: eventQuarantined, At: m.GetSince(), Attempt: m.GetAttempt(), Placement: m.GetPlacement(), Node: m.GetNode(), Message: m.GetReason(),
	})
	if phaseOf(run) == terminal {
		return decision{change: changeNote, run: run, says: "a sandbox in the run's name is in quarantine"}
	}
	return decision{change: changeUpdate, run: run, nextWake: nextWake(now, run)}
}

// withoutQuarantined parts the events that are not of the course of an attempt from
// those that are.
func withoutQuarantined(events []*recordv1.RunEvent) (course, strange []*recordv1.RunEvent) {
	for _, e := range events {
		if e.GetKind() == eventQuarantined {
			strange = append(strange, e)
		} else {
			course = append(course, e)
		}
	}
	return course, strange
}

func quarantinedEvent(e *recordv1.RunEvent) Event {
	return Event{
		At: e.GetAt(), Kind: eventQuarantined, Attempt: e.GetAttempt(), Node: e.GetNode(),
		Text: "its node keeps a sandbox in its name in quarantine: " + e.GetMessage(),
	}
}
