package run

import (
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// backoffMin and backoffMax bound how long a run waits after a void or after a
	// round in which no node took it.
	backoffMin = time.Second
	backoffMax = 30 * time.Second
	// waitingLook is how often a run is looked at that waits for a node, to take it
	// or to start it.
	waitingLook = 10 * time.Second
	// wishReminder is how often a node is told again of a wish.
	wishReminder = 30 * time.Second
	// timeoutSlack is how much later than the node the run actor enforces a timeout.
	timeoutSlack = 30 * time.Second
	// startAheadMax is how far ahead of the clock here a node's may be that dates a
	// start.
	startAheadMax = time.Hour
	// awayLook is how often a run is looked at that waits for a node without a session.
	awayLook = 30 * time.Second
	// unboundedLook is when to look at a run for which no clock runs.
	unboundedLook = time.Hour
	// unhealthyLook is when to look again while the wall clock can not be trusted.
	unhealthyLook = time.Second
	// dueAtOnce is a wall time that every clock is past.
	dueAtOnce = 1
)

// milliAfter rounds up, so that a wake at the result is never early.
func milliAfter(now actors.Instant, d time.Duration) int64 { return now.Wall.Add(d).UnixMilli() + 1 }

func untilMilli(now actors.Instant, at int64) time.Duration {
	if at <= 0 {
		return 0
	}
	return time.UnixMilli(at).Sub(now.Wall)
}

func earlier(a, b int64) int64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// startDeadline is when the current attempt has waited too long, 0 for never.
func startDeadline(run *recordv1.Run) int64 {
	if run.GetSpec().GetStartDeadlineMs() <= 0 {
		return 0
	}
	return max(run.GetQueuedAt(), run.GetAttemptQueuedAt()) + run.GetSpec().GetStartDeadlineMs()
}

// timeoutBackup is when the run actor no longer trusts the node to enforce the
// timeout, 0 for never.
func timeoutBackup(run *recordv1.Run) int64 {
	if run.GetSpec().GetTimeoutMs() <= 0 {
		return 0
	}
	from := run.GetOverdueAt()
	if i := attemptIndex(run); from == 0 && i >= 0 {
		from = run.GetAttempts()[i].GetStartedAt()
	}
	return from + run.GetSpec().GetTimeoutMs() + run.GetSpec().GetStopGraceMs() + timeoutSlack.Milliseconds()
}

func startDeadlinePassed(now actors.Instant, run *recordv1.Run) bool {
	at := startDeadline(run)
	return at > 0 && now.WallHealthy && now.Milli() >= at
}

func timeoutLongPassed(now actors.Instant, run *recordv1.Run) bool {
	at := timeoutBackup(run)
	return at > 0 && now.WallHealthy && now.Milli() >= at
}

// beforeStartDeadline bounds for how long a run that waits is left alone: its start
// deadline may come before what it waits for.
func beforeStartDeadline(now actors.Instant, run *recordv1.Run, wait time.Duration) time.Duration {
	at := startDeadline(run)
	if p := phaseOf(run); p != waiting && p != placed || at == 0 || wait <= 0 || run.GetWish() != nil {
		return wait
	}
	if left := untilMilli(now, at); left > 0 {
		return min(wait, left)
	}
	return wait
}

// startOf is when a command started, given what its node says. The backup of the
// timeout counts from it, so a node whose clock was set back must not date it before
// its placement, nor one that is far ahead long after the present: what can not be is
// taken for now. Up to startAheadMax the clock here may as well be the one that is
// wrong, and a later start ends nothing early. Where the clock here is known not to be
// trusted, only the placement is sure.
func startOf(now actors.Instant, run *recordv1.Run, at int64) int64 {
	first := max(run.GetQueuedAt(), run.GetPlacement().GetPlacedAt())
	switch {
	case at <= 0:
		return max(now.Milli(), first)
	case !now.WallHealthy:
		return max(at, first)
	case at < first || at > milliAfter(now, startAheadMax):
		return now.Milli()
	default:
		return at
	}
}

// untilNotBefore is how long a run has still to wait after a void or a failed attempt.
// Nothing waits longer than backoffMax or what its retries say: a time beyond was
// written by a clock that was ahead.
func untilNotBefore(now actors.Instant, run *recordv1.Run) time.Duration {
	if wait := untilMilli(now, run.GetNotBefore()); wait <= max(backoffMax, retryWait(run))+time.Millisecond {
		return max(wait, 0)
	}
	return 0
}

// nextWake is when a run must be looked at again, as its live key tells the
// deadline actor. It is a function of the record, so that every transaction can
// write it. A clock that has just been set knows no later time that others could go
// by: what a node has is due at once then, and the answer to the wake is a duration.
func nextWake(now actors.Instant, run *recordv1.Run) int64 {
	if !now.WallHealthy && run.GetPlacement() != nil {
		return dueAtOnce
	}
	return wakeAt(now, run)
}

// wakeAt is when a run must be looked at again by this node's wall clock.
func wakeAt(now actors.Instant, run *recordv1.Run) int64 {
	if run.GetWish() != nil {
		return milliAfter(now, wishReminder)
	}
	at := int64(0)
	switch phaseOf(run) {
	case waiting:
		next := milliAfter(now, waitingLook)
		if untilNotBefore(now, run) > 0 {
			next = run.GetNotBefore()
		}
		at = earlier(startDeadline(run), next)
	case placed:
		at = earlier(startDeadline(run), milliAfter(now, waitingLook))
	case running:
		at = timeoutBackup(run)
	default:
	}
	if at == 0 {
		at = milliAfter(now, unboundedLook)
	}
	if attended(run) {
		// Whoever is woken by it, perhaps after a restart, waits for the client.
		at = min(at, milliAfter(now, attendGrace))
	}
	return at
}

// untilWake is nextWake as the answer to a wake. It is positive: what is due but
// may not be done by a clock that is not healthy is looked at soon, and what seems to
// be far off is not believed from it.
func untilWake(now actors.Instant, run *recordv1.Run) time.Duration {
	d := untilMilli(now, wakeAt(now, run))
	switch {
	case d <= 0:
		return unhealthyLook
	case !now.WallHealthy:
		return min(max(d, unhealthyLook), waitingLook)
	default:
		return d
	}
}

// holdBackoff is how long to wait after every node has refused. It doubles with
// the time that the run has waited, so that nothing need be counted or stored. Whoever
// queued it may have had a clock that was ahead: how long it has waited is not known
// then.
func holdBackoff(now actors.Instant, run *recordv1.Run) time.Duration {
	waited := -untilMilli(now, max(run.GetQueuedAt(), run.GetAttemptQueuedAt()))
	if waited < -waitingLook {
		return waitingLook
	}
	return min(max(waited, backoffMin), backoffMax)
}

// doubling is the n-th backoff, n from 0.
func doubling(first time.Duration, n int32) time.Duration {
	d := first
	for ; n > 0 && d < backoffMax; n-- {
		d *= 2
	}
	return min(d, backoffMax)
}
