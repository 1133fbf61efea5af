package run

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// lossesMax is how many attempts of a run may be lost with what they ran on until
	// it fails for that, whatever its retries.
	lossesMax = 5
	// avoidedMax bounds the nodes that a run remembers to ask last.
	avoidedMax = 16
)

// tryAgain tells whether an attempt that has ended like this is followed by another.
// The record of the attempt is complete but for its outcome. Retries count failures of
// the command; what was lost with its node or sandbox is counted apart. What a cancel
// was recorded for is not tried again, though it came too late for this attempt.
func tryAgain(run *recordv1.Run, result outcome) bool {
	retry := run.GetSpec().GetRetry()
	switch {
	case retry == nil || run.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED:
		return false
	case isLoss(result.reason):
		return retry.GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY && ended(run, isLoss) < lossesMax
	case isFailure(result.reason):
		return ended(run, isFailure) < int(retry.GetRetries()) && chosen(retry, run, result)
	default:
		return false
	}
}

// isLoss: the command may have been started, and nobody has seen it end by itself.
func isLoss(reason recordv1.Reason) bool {
	switch reason {
	case recordv1.Reason_REASON_START_UNKNOWN, recordv1.Reason_REASON_SANDBOX_LOST, recordv1.Reason_REASON_NODE_LOST,
		recordv1.Reason_REASON_NODE_FENCED, recordv1.Reason_REASON_DRAINED:
		return true
	default:
		return false
	}
}

// isFailure: the command itself has failed. What could not be started is neither, and
// another attempt would not change it.
func isFailure(reason recordv1.Reason) bool {
	switch reason {
	case recordv1.Reason_REASON_EXIT_CODE, recordv1.Reason_REASON_SIGNAL, recordv1.Reason_REASON_OOM_KILLED, recordv1.Reason_REASON_TIMEOUT:
		return true
	default:
		return false
	}
}

// ended counts the attempts before the current one that ended for such a reason.
func ended(run *recordv1.Run, such func(recordv1.Reason) bool) (n int) {
	for _, attempt := range run.GetAttempts() {
		if attempt.GetNumber() < run.GetAttempt() && such(attempt.GetReason()) {
			n++
		}
	}
	return n
}

// chosen tells whether a failure of the command is one that the run tries again.
func chosen(retry *recordv1.Retry, run *recordv1.Run, result outcome) bool {
	signal := attemptOf(run).GetSignal()
	return (retry.GetOnly() == nil || among(retry.GetOnly(), result, signal)) && !among(retry.GetNever(), result, signal)
}

func among(set *recordv1.Failures, result outcome, signal int32) bool {
	switch result.reason {
	case recordv1.Reason_REASON_TIMEOUT:
		return set.GetTimeout()
	case recordv1.Reason_REASON_OOM_KILLED:
		return set.GetOomKilled()
	}
	if signal != 0 && set.GetSignal() {
		return true
	}
	return result.code != nil && slices.ContainsFunc(set.GetCodes(), func(r *recordv1.CodeRange) bool {
		return r.GetFirst() <= *result.code && *result.code <= r.GetLast()
	})
}

// again makes a run wait for its next attempt, whose record and start deadline are its
// own. The run is the caller's to change.
func again(now actors.Instant, run *recordv1.Run, result outcome, after ...follow) decision {
	node := run.GetPlacement().GetNode()
	attempt := attemptOf(run)
	attempt.Status, attempt.Reason, attempt.Message = result.status, result.reason, result.message
	if attempt.EndedAt <= 0 {
		attempt.EndedAt = max(now.Milli(), attempt.GetStartedAt())
	}
	if isLoss(result.reason) {
		avoid(run, node)
	}
	notePlaced(run)
	rememberWish(run)
	rememberOverdue(run)
	run.Attempt++
	run.Status, run.Reason, run.Message, run.ExitCode = recordv1.Status_STATUS_PENDING, recordv1.Reason_REASON_UNSPECIFIED, "", nil
	run.Placement, run.Placements, run.Voids, run.Wish = nil, 0, 0, nil
	run.HoldReason, run.HoldMessage, run.OverdueAt = recordv1.Reason_REASON_UNSPECIFIED, "", 0
	run.NotBefore = milliAfter(now, retryWait(run))
	run.AttemptQueuedAt = run.GetNotBefore()
	return decision{change: changeUnplace, run: run, node: node, nextWake: nextWake(now, run), after: after}
}

// retryWait is how long a run waits before its current attempt, 0 for the first. The
// waits of a run never get shorter: all of them are longer by the same part, which
// follows from the run's id.
func retryWait(run *recordv1.Run) time.Duration { return retryWaitBefore(run, run.GetAttempt()) }

// retryWaitBefore is how long a run waits before one of its attempts.
func retryWaitBefore(run *recordv1.Run, attempt int32) time.Duration {
	retry := run.GetSpec().GetRetry()
	if attempt < 2 || retry == nil {
		return 0
	}
	wait := time.Duration(retry.GetBackoffMs()) * time.Millisecond
	most := time.Duration(retry.GetBackoffMaxMs()) * time.Millisecond
	for n := attempt - 2; n > 0 && wait < most; n-- {
		wait *= 2
	}
	wait = min(wait, max(most, time.Duration(retry.GetBackoffMs())*time.Millisecond))
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(run.GetId()))
	part := float64(hash.Sum32()) / (1 << 32) * float64(retry.GetJitterPercent()) / 100
	return wait + time.Duration(float64(wait)*part)
}

// avoid remembers that a node is to be asked last.
func avoid(run *recordv1.Run, node string) {
	run.Avoided = append(slices.DeleteFunc(run.GetAvoided(), func(other string) bool { return other == node }), node)
	if beyond := len(run.GetAvoided()) - avoidedMax; beyond > 0 {
		run.Avoided = run.GetAvoided()[beyond:]
	}
}

// askedLast puts the candidates that a run avoids behind all others, those that it
// came to avoid last at the end.
func askedLast(candidates []actors.Candidate, avoided []string) []actors.Candidate {
	slices.SortStableFunc(candidates, func(a, b actors.Candidate) int {
		return slices.Index(avoided, a.Node) - slices.Index(avoided, b.Node)
	})
	return candidates
}
