package run

import (
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Event is one thing that became of a run.
type Event struct {
	// At is in milliseconds, by the clock of who saw it; two events that follow each
	// other may have been seen by two.
	At      int64
	Kind    recordv1.RunEventKind
	Attempt int32
	Node    string
	// Text is one sentence without a full stop.
	Text string
}

// History returns what became of a run, in the order in which one thing followed the
// other, and how many events were not kept. It is a function of the record: what was
// told of a run once is told the same way for as long as its record lives, unless it is
// left out.
func History(run *recordv1.Run) (events []Event, leftOut int) {
	events = append(events, Event{At: run.GetQueuedAt(), Kind: recordv1.RunEventKind_RUN_EVENT_KIND_QUEUED, Text: "queued by " + triggerText(run)})
	last := run.GetAttempt()
	for _, attempt := range run.GetAttempts() {
		last = max(last, attempt.GetNumber())
	}
	stored, strange := withoutQuarantined(run.GetEvents())
	for _, attempt := range run.GetAttempts() {
		var before []*recordv1.RunEvent
		before, stored = upTo(stored, attempt.GetNumber())
		events = append(events, attemptEvents(run, attempt, before)...)
	}
	if rest, _ := upTo(stored, last); len(rest) > 0 || run.GetWish() != nil && attemptIndex(run) < 0 {
		// An attempt that was not placed, or not for good, has no record.
		events = append(events, placingEvents(rest)...)
		events = append(events, courseEvents(run, nil, rest)...)
	}
	if records.Terminal(run.GetStatus()) {
		events = append(events, Event{At: run.GetEndedAt(), Kind: recordv1.RunEventKind_RUN_EVENT_KIND_FINISHED, Text: finishedText(run)})
	}
	for _, late := range run.GetLateExits() {
		events = insertByTime(events, lateEvent(run, late))
	}
	for _, e := range strange {
		events = insertByTime(events, quarantinedEvent(e))
	}
	return events, int(run.GetEventsLeftOut())
}

// upTo splits events behind those of an attempt.
func upTo(events []*recordv1.RunEvent, attempt int32) (these, rest []*recordv1.RunEvent) {
	i := slices.IndexFunc(events, func(e *recordv1.RunEvent) bool { return e.GetAttempt() > attempt })
	if i < 0 {
		i = len(events)
	}
	return events[:i], events[i:]
}

// attemptEvents tells of an attempt that was placed, from its first refusal to its end.
func attemptEvents(run *recordv1.Run, attempt *recordv1.Attempt, stored []*recordv1.RunEvent) []Event {
	events := placingEvents(stored)
	at := attempt.GetPlacedAt()
	if current(run, attempt.GetNumber(), attempt.GetPlacement(), attempt.GetNode()) {
		at = run.GetPlacement().GetPlacedAt()
	}
	if at > 0 {
		events = append(events, placedEvent(at, attempt.GetNumber(), attempt.GetNode()))
	}
	events = append(events, courseEvents(run, attempt, stored)...)
	if !attemptEnded(attempt) {
		return events
	}
	ended := Event{At: attempt.GetEndedAt(), Attempt: attempt.GetNumber(), Node: attempt.GetNode(), Text: endText(run, attempt)}
	switch {
	case attempt.ExitCode != nil:
		ended.Kind = recordv1.RunEventKind_RUN_EVENT_KIND_EXITED
	case mayHaveRun(attempt):
		ended.Kind = recordv1.RunEventKind_RUN_EVENT_KIND_LOST
	default:
		ended.Kind = recordv1.RunEventKind_RUN_EVENT_KIND_NOT_STARTED
	}
	events = append(events, ended)
	if text := logText(attempt); text != "" {
		ended.Kind, ended.Text = recordv1.RunEventKind_RUN_EVENT_KIND_LOG_INCOMPLETE, text
		events = append(events, ended)
	}
	if attempt.GetSafeAt() > 0 {
		events = append(events, Event{
			At: attempt.GetSafeAt(), Kind: recordv1.RunEventKind_RUN_EVENT_KIND_SAFE, Attempt: attempt.GetNumber(), Node: attempt.GetNode(),
			Text: safeText(attempt),
		})
	}
	if attempt.GetNumber() < run.GetAttempt() {
		text := fmt.Sprintf("attempt %d follows", attempt.GetNumber()+1)
		if wait := retryWaitBefore(run, attempt.GetNumber()+1); wait > 0 {
			text += " after " + roughly(wait)
		}
		events = append(events, Event{
			At: attempt.GetEndedAt(), Kind: recordv1.RunEventKind_RUN_EVENT_KIND_RETRY, Attempt: attempt.GetNumber(), Text: text,
		})
	}
	return events
}

// placingEvents tells of the refusals and of the placements that came to nothing.
func placingEvents(stored []*recordv1.RunEvent) (events []Event) {
	for _, e := range stored {
		switch e.GetKind() {
		case eventRefused:
			events = append(events, Event{At: e.GetAt(), Kind: eventRefused, Attempt: e.GetAttempt(), Text: "not placed: " + e.GetMessage()})
		case eventLeft:
			text := "gave it back before the start: " + e.GetMessage()
			if wait := e.GetUntil() - e.GetAt(); wait > 0 {
				text += "; it is not placed again for " + roughly(time.Duration(wait)*time.Millisecond)
			}
			events = append(events, placedEvent(e.GetPlacedAt(), e.GetAttempt(), e.GetNode()),
				Event{At: e.GetAt(), Kind: eventLeft, Attempt: e.GetAttempt(), Node: e.GetNode(), Text: text})
		default:
		}
	}
	return events
}

func placedEvent(at int64, attempt int32, node string) Event {
	return Event{At: at, Kind: recordv1.RunEventKind_RUN_EVENT_KIND_PLACED, Attempt: attempt, Node: node, Text: "placed"}
}

// courseEvents tells what became of an attempt between its placement and its end, by
// time. The attempt is nil when it has no record.
func courseEvents(run *recordv1.Run, attempt *recordv1.Attempt, stored []*recordv1.RunEvent) (events []Event) {
	number, node := run.GetAttempt(), attempt.GetNode()
	if attempt != nil {
		number = attempt.GetNumber()
	}
	add := func(at int64, kind recordv1.RunEventKind, text string) {
		if at > 0 {
			events = append(events, Event{At: at, Kind: kind, Attempt: number, Node: node, Text: text})
		}
	}
	add(attempt.GetStartedAt(), recordv1.RunEventKind_RUN_EVENT_KIND_STARTED, "the command was started")
	add(attempt.GetAdoptedAt(), recordv1.RunEventKind_RUN_EVENT_KIND_ADOPTED, "the node's daemon was started anew and took the running command over")
	forced := false
	for _, e := range stored {
		switch e.GetKind() {
		case eventStop:
			forced = forced || e.GetForce()
			add(e.GetAt(), eventStop, stopText(e.GetReason(), e.GetBy(), e.GetForce()))
		case eventOverdue:
			add(e.GetAt(), eventOverdue, overdueText)
		default:
		}
	}
	if number == run.GetAttempt() {
		if w := run.GetWish(); w != nil {
			// That it became a forced one later is an event of its own.
			add(w.GetAt(), eventStop, stopText(w.GetReason(), w.GetBy(), w.GetForce() && !forced))
		}
		add(run.GetOverdueAt(), eventOverdue, overdueText)
	}
	for _, sent := range attempt.GetSignals() {
		add(sent.GetAt(), recordv1.RunEventKind_RUN_EVENT_KIND_SIGNAL, sentText(sent))
	}
	// What is done to a command follows its start, though the clock was set back since.
	by := func(e Event) int64 {
		switch e.Kind {
		case recordv1.RunEventKind_RUN_EVENT_KIND_ADOPTED, recordv1.RunEventKind_RUN_EVENT_KIND_SIGNAL:
			return max(e.At, attempt.GetStartedAt())
		default:
			return e.At
		}
	}
	slices.SortStableFunc(events, func(a, b Event) int { return compare(by(a), by(b)) })
	return events
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// insertByTime puts an event behind the last one that is not later.
func insertByTime(events []Event, e Event) []Event {
	i := len(events)
	for i > 1 && events[i-1].At > e.At {
		i--
	}
	return slices.Insert(events, i, e)
}

func lateEvent(run *recordv1.Run, late *recordv1.LateExit) Event {
	e := Event{At: late.GetAt(), Kind: recordv1.RunEventKind_RUN_EVENT_KIND_LATE_EXIT, Attempt: late.GetAttempt(), Text: lateText(late)}
	for _, attempt := range run.GetAttempts() {
		if attempt.GetNumber() == late.GetAttempt() && attempt.GetPlacement() == late.GetPlacement() {
			e.Node = attempt.GetNode()
		}
	}
	return e
}

// attemptEnded tells whether an attempt's record is that of one that is over.
func attemptEnded(attempt *recordv1.Attempt) bool {
	return records.Terminal(attempt.GetStatus())
}

// mayHaveRun tells whether the command of an attempt without an observed end may have
// been started.
func mayHaveRun(attempt *recordv1.Attempt) bool {
	return attempt.GetStartedAt() > 0 || attempt.GetSafeAt() > 0 || isLoss(attempt.GetReason())
}
