package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/actors/run"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// g7NoInventedOutcome: an exit code in a record is the one with which that command
// really ended, by itself, by a signal or by a kill that somebody saw; a command
// that the fence, a reboot or nothing at all has ended has none. RUNNING is said
// only of a command that was started.
type g7NoInventedOutcome struct{}

func (g7NoInventedOutcome) Guarantee() Guarantee { return G7 }

func (g g7NoInventedOutcome) Observe(l *Ledger, e history.Event, report func(Finding)) {
	if e.Kind != history.KindCommit {
		return
	}
	for _, r := range l.Changed() {
		if r.Record == nil || !r.Rewritten {
			continue
		}
		text := g.judge(r)
		if text == "" && !l.forgot {
			text = unsaid(r)
		}
		if text != "" {
			report(Finding{Run: r.ID, Text: text})
		}
	}
}

func (g7NoInventedOutcome) judge(r *Run) string {
	run := r.Record
	for _, a := range run.GetAttempts() {
		if a.ExitCode == nil {
			continue
		}
		if text := invented(r, a.GetNumber(), a.GetPlacement(), a.GetExitCode(), a.GetSignal()); text != "" {
			return text
		}
	}
	for _, late := range run.GetLateExits() {
		exit := late.GetExit()
		if exit == nil || exit.Code == nil || exit.GetFenced() {
			continue
		}
		if formerly(r, late) {
			continue
		}
		if text := invented(r, late.GetAttempt(), late.GetPlacement(), exit.GetCode(), exit.GetSignal()); text != "" {
			return "late: " + text
		}
	}
	last := lastAttempt(run)
	switch {
	case run.ExitCode != nil && (last == nil || last.GetNumber() != run.GetAttempt() || last.ExitCode == nil || last.GetExitCode() != run.GetExitCode()):
		return fmt.Sprintf("the run's exit code %d is not that of its last attempt", run.GetExitCode())
	case run.GetStatus() == recordv1.Status_STATUS_SUCCEEDED && (run.ExitCode == nil || run.GetExitCode() != 0):
		return "SUCCEEDED without the exit code 0"
	case run.GetStatus() == recordv1.Status_STATUS_CANCELED && last.GetNumber() == run.GetAttempt() && endedBefore(r, last):
		return "CANCELED although the command had ended before the wish"
	case run.GetStatus() == recordv1.Status_STATUS_CANCELED && run.GetWish().GetReason() != recordv1.Reason_REASON_CANCELED:
		return "CANCELED although nobody wished it"
	case run.GetStatus() == recordv1.Status_STATUS_RUNNING && r.CommandOf(run.GetAttempt(), run.GetPlacement().GetNumber()) == nil:
		return "RUNNING although the command was not started"
	}
	return ""
}

// endedBefore tells whether an attempt has the code of a command that had ended before
// anybody wished it to.
func endedBefore(r *Run, last *recordv1.Attempt) bool {
	c := r.CommandOf(last.GetNumber(), last.GetPlacement())
	return last.ExitCode != nil && c != nil && !c.Alive && c.Cause == "itself" && c.Ended < r.Wished
}

// unsaid tells of a command that was seen to end by a stop of the engine's own, and is
// recorded as if it had ended by itself.
func unsaid(r *Run) string {
	last := lastAttempt(r.Record)
	if !r.Terminal() || last == nil || last.ExitCode == nil || r.Record.GetStatus() != recordv1.Status_STATUS_FAILED {
		return ""
	}
	switch r.Record.GetReason() {
	case recordv1.Reason_REASON_EXIT_CODE, recordv1.Reason_REASON_SIGNAL, recordv1.Reason_REASON_OOM_KILLED:
	default:
		return ""
	}
	if c := r.CommandOf(last.GetNumber(), last.GetPlacement()); c != nil && !c.Alive && (c.Cause == "signal" || c.Cause == "kill") {
		return fmt.Sprintf("%v was ended by the engine and is recorded as %s (%s)", c, records.Word(r.Record.GetStatus()), records.Word(r.Record.GetReason()))
	}
	return ""
}

func lastAttempt(run *recordv1.Run) *recordv1.Attempt {
	if n := len(run.GetAttempts()); n > 0 {
		return run.GetAttempts()[n-1]
	}
	return nil
}

// formerly tells whether an exit that came late is that of a command of a run of the
// same name, which was lost with a restore.
func formerly(r *Run, late *recordv1.LateExit) bool {
	return slices.ContainsFunc(slices.Concat(r.Former, r.Commands), func(c *Command) bool {
		return c.Attempt == late.GetAttempt() && c.Placement == late.GetPlacement() && !c.Alive && endSeen(c) && c.Code == late.GetExit().GetCode()
	})
}

// endSeen tells whether anybody saw with what code a command ended.
func endSeen(c *Command) bool { return c.Cause == "itself" || c.Cause == "signal" || c.Cause == "kill" }

// invented says what is wrong with a recorded exit code.
func invented(r *Run, attempt, placement, code, signal int32) string {
	c := r.CommandOf(attempt, placement)
	switch {
	case c == nil:
		return fmt.Sprintf("exit code %d of attempt %d placement %d, which was never started", code, attempt, placement)
	case c.Alive:
		return fmt.Sprintf("exit code %d of %v, which has not ended", code, c)
	case !endSeen(c):
		return fmt.Sprintf("exit code %d of %v, which was ended by %s: nobody saw a code", code, c, c.Cause)
	case c.Code != code:
		return fmt.Sprintf("exit code %d of %v, which ended with %d", code, c, c.Code)
	case signal != 0 && code != 128+signal:
		return fmt.Sprintf("exit code %d with signal %d", code, signal)
	}
	return ""
}

// g11Explained: what did not succeed says why, and at the end so does what still
// waits.
type g11Explained struct{}

func (g11Explained) Guarantee() Guarantee { return G11 }

func (g11Explained) Observe(l *Ledger, e history.Event, report func(Finding)) {
	if e.Kind != history.KindCommit {
		return
	}
	for _, r := range l.Changed() {
		record := r.Record
		if !r.Terminal() || !r.Rewritten {
			continue
		}
		failed := record.GetStatus() != recordv1.Status_STATUS_SUCCEEDED && record.GetStatus() != recordv1.Status_STATUS_SKIPPED
		switch {
		case failed && record.GetReason() == recordv1.Reason_REASON_UNSPECIFIED:
			report(Finding{Run: r.ID, Text: records.Word(record.GetStatus()) + " without a reason"})
		case failed && record.GetMessage() == "":
			report(Finding{Run: r.ID, Text: records.Word(record.GetStatus()) + " without a message"})
		case record.GetEndedAt() < max(record.GetStartedAt(), record.GetQueuedAt()):
			report(Finding{Run: r.ID, Text: "the run ended before it was started or queued"})
		case failed && !named(record):
			report(Finding{Run: r.ID, Text: "why does not name the reason " + records.Word(record.GetReason())})
		}
	}
}

// named tells whether the explanation of a run that has ended names why it did.
func named(of *recordv1.Run) bool {
	return slices.ContainsFunc(run.Why(time.UnixMilli(of.GetEndedAt()), of, run.Unrecorded{}), func(c run.Cause) bool {
		return string(c.Code) == records.Word(of.GetReason()) && c.Text != ""
	})
}

func (g11Explained) Finish(l *Ledger, facts Facts, report func(Finding)) {
	for _, r := range l.live {
		if why := Why(r.Record); why == "" && facts.At-max(r.Queued, r.Left) > l.config.Slack {
			report(Finding{Run: r.ID, Text: "the run waits and its record can not say for what"})
		}
	}
}

// Why is what a run's record says it waits for; empty when it says nothing.
func Why(run *recordv1.Run) string {
	switch {
	case run.GetPlacement() != nil && run.GetStatus() == recordv1.Status_STATUS_RUNNING && run.GetWish() != nil:
		return "runs on " + run.GetPlacement().GetNode() + " and is to end: " + records.Word(run.GetWish().GetReason())
	case run.GetPlacement() != nil && run.GetWish() != nil:
		return "placed on " + run.GetPlacement().GetNode() + " and is to end: " + records.Word(run.GetWish().GetReason())
	case run.GetStatus() == recordv1.Status_STATUS_RUNNING:
		return "runs on " + run.GetPlacement().GetNode()
	case run.GetPlacement() != nil:
		return "placed on " + run.GetPlacement().GetNode() + ", not started"
	case run.GetHoldMessage() != "":
		return run.GetHoldMessage()
	case run.GetAttempt() > 1 && lastAttempt(run).GetNumber() == run.GetAttempt()-1:
		return fmt.Sprintf("waits for attempt %d after %s", run.GetAttempt(), records.Word(lastAttempt(run).GetReason()))
	case run.GetHoldReason() != recordv1.Reason_REASON_UNSPECIFIED:
		return records.Word(run.GetHoldReason())
	default:
		return ""
	}
}

// again tells whether the last command is of a placement of which one was started
// before: then the same token comes again, and what is wrong is G2's.
func again(r *Run) bool {
	last := r.Commands[len(r.Commands)-1]
	for _, c := range r.Commands[:len(r.Commands)-1] {
		if c.Attempt == last.Attempt && c.Placement == last.Placement {
			return true
		}
	}
	return false
}

// keptOut tells whether all commands with tokens that are not below that of the last one
// are of later placements: a start that stood still with its machine while the run went on
// elsewhere is what a token is there to keep out.
func keptOut(r *Run) bool {
	last, highest := r.Commands[len(r.Commands)-1], uint64(0)
	for _, c := range r.Commands[:len(r.Commands)-1] {
		if c.Token >= last.Token && cmp.Or(cmp.Compare(c.Attempt, last.Attempt), cmp.Compare(c.Placement, last.Placement)) <= 0 {
			return false
		}
		highest = max(highest, c.Token)
	}
	return highest == r.tokenBefore && highest > last.Token
}

// g12FencingToken: each command of a run carries a token above those of all commands
// of the run that were started before, but for those of later placements, and it is the
// token of its placement. This holds outside the fencing model too.
type g12FencingToken struct{}

func (g12FencingToken) Guarantee() Guarantee { return G12 }

func (g12FencingToken) Observe(l *Ledger, e history.Event, report func(Finding)) {
	c, ok := e.Detail.(history.Command)
	if e.Kind != history.KindCommand || !ok || !c.Started {
		return
	}
	r := l.Run(e.Run)
	text := ""
	switch {
	case c.Token == 0:
		text = "the command carries no fencing token"
	case (c.Token < r.tokenBefore || c.Token == r.tokenBefore && !again(r)) && !keptOut(r):
		text = fmt.Sprintf("the token %d is not above %d, which an earlier command carries", c.Token, r.tokenBefore)
	}
	for _, g := range r.tokens {
		if text == "" && g.attempt == e.Attempt && g.placement == e.Placement && g.token != c.Token {
			text = fmt.Sprintf("the token %d is not the placement's, %d", c.Token, g.token)
		}
	}
	if text != "" {
		report(Finding{Run: e.Run, Node: e.Node, Text: text})
	}
}
