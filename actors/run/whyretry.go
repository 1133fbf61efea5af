package run

import (
	"fmt"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// retries says why a run that did not succeed was not tried again: the rules of
// tryAgain, in its order.
func (e *explanation) retries(attempt *recordv1.Attempt) {
	run := e.run
	if run.GetStatus() != recordv1.Status_STATUS_FAILED && run.GetStatus() != recordv1.Status_STATUS_TIMED_OUT || attempt == nil {
		return
	}
	code, text := CauseNotRetried, ""
	retry, reason := run.GetSpec().GetRetry(), run.GetReason()
	switch {
	case !isLoss(reason) && !isFailure(reason):
		text = "an attempt that can not be started is not followed by another"
	case retry == nil:
		text = "it asked for no retries"
	case run.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED:
		text = "what a cancel was recorded for is not tried again"
	case isLoss(reason) && retry.GetOnNodeLoss() != recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY:
		text = "it asked that a lost attempt is not followed by another"
	case isLoss(reason) && ended(run, isLoss) >= lossesMax:
		code, text = CauseRetriesSpent, fmt.Sprintf("%d attempts before were lost, the most that are followed by another", ended(run, isLoss))
	case isLoss(reason):
		text = "a lost attempt was not followed by another"
	case ended(run, isFailure) >= int(retry.GetRetries()):
		code, text = CauseRetriesSpent, fmt.Sprintf("%d of %d retries are spent", ended(run, isFailure), retry.GetRetries())
	case !chosen(retry, run, outcome{reason: reason, code: run.ExitCode}):
		text = records.Word(reason)
		if reason == recordv1.Reason_REASON_EXIT_CODE {
			text = fmt.Sprintf("exit code %d", run.GetExitCode())
		}
		text += " is not among the failures for which it asked to be tried again"
	default:
		return
	}
	e.add(code, 0, "", 0, "not tried again: %s", text)
}
