package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// lossesMax is how many losses of one run may be followed by another attempt.
const lossesMax = 5

// attempts: a run is tried again as often as it was asked to be, for the failures that
// it was asked for, after the wait that it was asked for; not more, and not less. Nor is
// it placed again before a registry wants to be asked again.
type attempts struct {
	// refused is what was last told of the image of a run.
	refused map[string]refusal
}

// refusal is an image that a placement of a run could not have for now.
type refusal struct {
	node               string
	attempt, placement int32
	wait               time.Duration
}

// refusalMax is how long a registry is left alone at its own wish.
const refusalMax = 30 * time.Second

func (attempts) Guarantee() Guarantee { return Attempts }

func (a attempts) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindSandbox:
		if refused, ok := e.Detail.(history.Refused); ok {
			a.refused[e.Run] = refusal{e.Node, e.Attempt, e.Placement, min(refused.RetryAfter, refusalMax)}
		}
	case history.KindDaemon:
		// It may not have heard.
		maps.DeleteFunc(a.refused, func(_ string, r refusal) bool { return r.node == e.Node })
	case history.KindCommand:
		if c, ok := e.Detail.(history.Command); ok && c.Started {
			if text := a.hurried(l, l.Run(e.Run)); text != "" {
				report(Finding{Run: e.Run, Node: e.Node, Text: text})
			}
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if text := a.judge(r); text != "" {
				report(Finding{Run: r.ID, Text: text})
			}
			if text := a.pressed(r); text != "" {
				report(Finding{Run: r.ID, Text: text})
			}
		}
	default:
	}
}

func (a attempts) judge(r *Run) string {
	switch {
	case r.Record == nil || r.Before == nil || !r.Rewritten || records.Terminal(r.Before.GetStatus()):
		return ""
	case r.Record.GetAttempt() == r.Before.GetAttempt()+1:
		return a.tooMany(r)
	case r.Terminal():
		return a.tooFew(r)
	}
	return ""
}

// pressed says that a run was given back for want of its image and is to be placed again
// before its registry wants to be asked. Both times are of the same clock.
func (a attempts) pressed(r *Run) string {
	refused, told := a.refused[r.ID]
	p := r.Before.GetPlacement()
	if !told || r.Record == nil || !r.Rewritten || r.Terminal() || r.Record.GetPlacement() != nil || p == nil ||
		p.GetNumber() != refused.placement || r.Before.GetAttempt() != refused.attempt {
		return ""
	}
	delete(a.refused, r.ID)
	events := r.Record.GetEvents()
	if len(events) == 0 || events[len(events)-1].GetReason() != recordv1.Reason_REASON_IMAGE_PULL {
		return ""
	}
	if wait := milli(r.Record.GetNotBefore() - events[len(events)-1].GetAt()); wait < refused.wait-time.Millisecond {
		return fmt.Sprintf("waits %v to be placed again, and the registry of its image wants to be left alone for %v", wait, refused.wait)
	}
	return ""
}

// tooMany says why the attempt before should have been the last.
func (attempts) tooMany(r *Run) string {
	retry := r.Record.GetSpec().GetRetry()
	over := lastAttempt(r.Record)
	failures, losses := tally(r.Record)
	what := fmt.Sprintf("attempt %d follows, after %s, ", r.Record.GetAttempt(), records.Word(over.GetReason()))
	switch {
	case r.Before.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED:
		return what + "and the run was canceled"
	case over.GetStatus() != recordv1.Status_STATUS_FAILED && over.GetStatus() != recordv1.Status_STATUS_TIMED_OUT:
		return what + "which was " + records.Word(over.GetStatus())
	case failure(over.GetReason()) && failures > int(retry.GetRetries()):
		return what + fmt.Sprintf("failure %d of a run with %d retries", failures, retry.GetRetries())
	case failure(over.GetReason()) && excluded(retry, over):
		return what + fmt.Sprintf("code %d, which was not to be tried again", over.GetExitCode())
	case !failure(over.GetReason()) && (retry.GetOnNodeLoss() != recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY || losses > lossesMax):
		return what + fmt.Sprintf("loss %d of a run that is %s by a loss", losses, records.Word(retry.GetOnNodeLoss()))
	}
	return ""
}

// tooFew says that a run was given up that was to be tried again.
func (attempts) tooFew(r *Run) string {
	retry, over := r.Record.GetSpec().GetRetry(), lastAttempt(r.Record)
	if retry == nil || over.GetNumber() != r.Record.GetAttempt() || r.Before.GetWish() != nil || r.Before.GetPlacement() == nil {
		return ""
	}
	failures, losses := tally(r.Record)
	switch reason := r.Record.GetReason(); {
	case reason == recordv1.Reason_REASON_EXIT_CODE && failures <= int(retry.GetRetries()) && !excluded(retry, over):
		return fmt.Sprintf("given up after failure %d of a run with %d retries", failures, retry.GetRetries())
	case reason == recordv1.Reason_REASON_NODE_LOST && losses <= lossesMax && retry.GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY:
		return fmt.Sprintf("given up after loss %d of a run that is to be tried again", losses)
	}
	return ""
}

// hurried says that a command was started before the wait after the one before had
// passed, where nothing has disturbed the clocks.
func (attempts) hurried(l *Ledger, r *Run) string {
	last := r.Commands[len(r.Commands)-1]
	if last.Attempt < 2 || r.Record == nil {
		return ""
	}
	for _, before := range r.Commands[:len(r.Commands)-1] {
		since, calm := l.CalmSince()
		wait := leastBackoff(r.Record)
		if before.Attempt == last.Attempt-1 && calm && (since == 0 || since < before.Started) && last.Started-before.Ended < wait-wait/100 {
			return fmt.Sprintf("attempt %d was started %v after the end of the one before, and was to wait %v", last.Attempt, last.Started-before.Ended, wait)
		}
	}
	return ""
}

// tally counts the attempts that ended by a failure of the command, and the others.
func tally(run *recordv1.Run) (failures, losses int) {
	for _, a := range run.GetAttempts() {
		switch {
		case a.GetReason() == recordv1.Reason_REASON_UNSPECIFIED:
		case failure(a.GetReason()):
			failures++
		default:
			losses++
		}
	}
	return failures, losses
}

func failure(reason recordv1.Reason) bool {
	return slices.Contains([]recordv1.Reason{
		recordv1.Reason_REASON_EXIT_CODE, recordv1.Reason_REASON_SIGNAL, recordv1.Reason_REASON_OOM_KILLED, recordv1.Reason_REASON_TIMEOUT,
	}, reason)
}

func excluded(retry *recordv1.Retry, over *recordv1.Attempt) bool {
	return over.GetReason() == recordv1.Reason_REASON_EXIT_CODE && slices.ContainsFunc(retry.GetNever().GetCodes(), func(r *recordv1.CodeRange) bool {
		return r.GetFirst() <= over.GetExitCode() && over.GetExitCode() <= r.GetLast()
	})
}

// leastBackoff is the wait before the current attempt, without what makes that of one
// run longer than that of another.
func leastBackoff(run *recordv1.Run) time.Duration {
	retry := run.GetSpec().GetRetry()
	if retry == nil || run.GetAttempt() < 2 {
		return 0
	}
	wait := retry.GetBackoffMs()
	for n := run.GetAttempt(); n > 2 && wait < retry.GetBackoffMaxMs(); n-- {
		wait *= 2
	}
	return milli(min(wait, max(retry.GetBackoffMs(), retry.GetBackoffMaxMs())))
}
