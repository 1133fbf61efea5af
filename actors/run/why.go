package run

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// CauseCode says what kind of cause one is. Codes are stable; how a run ended has that
// of its reason as well (EXIT_CODE, NODE_LOST and the like).
type CauseCode string

// The codes of causes.
const (
	// Where a run is.
	CauseWaiting  CauseCode = "WAITING"
	CausePlaced   CauseCode = "PLACED"
	CauseRunning  CauseCode = "RUNNING"
	CauseFinished CauseCode = "FINISHED"

	// Why it waits.
	CauseBackoff       CauseCode = "BACKOFF"
	CauseAsking        CauseCode = "ASKING"
	CauseRefused       CauseCode = "REFUSED"
	CauseAskedAgain    CauseCode = "ASKED_AGAIN"
	CauseHeldUp        CauseCode = "HELD_UP"
	CauseLostScore     CauseCode = "NODE_LOST_SCORE"
	CauseStartDeadline CauseCode = "START_DEADLINE_AT"
	CauseOwnerSilent   CauseCode = "OWNER_SILENT"
	CauseStoreFailing  CauseCode = "STORE_FAILING"
	CauseNodeUnready   CauseCode = "NODE_UNREADY"

	// What its node does.
	CauseNodeSilent   CauseCode = "NODE_SILENT"
	CauseNodeUnaware  CauseCode = "NODE_UNAWARE"
	CauseNodeGone     CauseCode = "NODE_GONE"
	CauseWaitsForNode CauseCode = "WAITS_FOR_NODE"
	CauseStartQueued  CauseCode = "START_QUEUED"
	CauseCreating     CauseCode = "CREATING"
	CausePulling      CauseCode = "PULLING"
	CauseStarting     CauseCode = "STARTING"
	CauseStopping     CauseCode = "STOPPING"
	CauseSignal       CauseCode = "SIGNAL_SENT"
	CauseKillAt       CauseCode = "KILL_AT"
	CauseEmptying     CauseCode = "EMPTYING"
	CauseReporting    CauseCode = "REPORTING"
	CauseTimeoutAt    CauseCode = "TIMEOUT_AT"
	CauseOverdue      CauseCode = "OVERDUE"
	CauseAttemptEnded CauseCode = "ATTEMPT_ENDED"

	// How it came to its end.
	CauseExited       CauseCode = "EXITED"
	CauseBySignal     CauseCode = "ENDED_BY_SIGNAL"
	CauseMemory       CauseCode = "MEMORY"
	CauseAsked        CauseCode = "STOP_ASKED"
	CauseLeftover     CauseCode = "LEFTOVER"
	CauseLog          CauseCode = "LOG_INCOMPLETE"
	CauseSafe         CauseCode = "SAFE_POINT"
	CauseSafeUnknown  CauseCode = "SAFE_POINT_UNKNOWN"
	CauseNotRetried   CauseCode = "NOT_RETRIED"
	CauseRetriesSpent CauseCode = "RETRIES_SPENT"
	CauseLateExit     CauseCode = "LATE_EXIT"
)

const (
	// causesMax bounds an explanation.
	causesMax = 10
	// attemptsShown bounds the earlier attempts that one names.
	attemptsShown = 2
	// answersShown bounds the nodes that one quotes.
	answersShown = 4
)

// Cause is one of the reasons why a run is where it is.
type Cause struct {
	Code CauseCode
	// Text is one sentence without a full stop. Times in it are counted from the moment
	// of the question.
	Text    string
	Node    string
	Attempt int32
	// At is when it happened, or when what it speaks of will; 0 for neither.
	At int64
}

// Unrecorded is what is known of a run and stands in no record: what its owner and its
// node have said. Of a run that has ended neither is asked.
type Unrecorded struct {
	// Owner is nil when the run's owner has not answered.
	Owner *actorv1.Explained
	// Node is nil when the node of the run's placement has not answered.
	Node *actorv1.Described
	// Pull says in words how far the pull of its image has come; empty when there is none
	// or nothing is known.
	Pull string
	// Unready says in words why node UnreadyNode takes no runs; empty when it takes them
	// or nothing is known.
	Unready, UnreadyNode string
}

// explanation collects causes.
type explanation struct {
	run    *recordv1.Run
	now    int64
	causes []Cause
}

// Why says why a run is where it is: first where that is, then the causes, at most ten
// in all. It is a function of the record and of what was asked beside it; each of its
// sentences is true by them.
func Why(now time.Time, run *recordv1.Run, seen Unrecorded) []Cause {
	e := &explanation{run: proto.CloneOf(run), now: now.UnixMilli()}
	switch phaseOf(run) {
	case absent:
		return nil
	case terminal:
		e.finished()
	case running:
		e.running(seen)
	case placed:
		e.placed(seen)
	default:
		e.waiting(seen)
	}
	return e.causes[:min(len(e.causes), causesMax)]
}

func (e *explanation) add(code CauseCode, at int64, node string, attempt int32, format string, args ...any) {
	e.causes = append(e.causes, Cause{Code: code, Text: fmt.Sprintf(format, args...), Node: node, Attempt: attempt, At: at})
}

// since says how long ago something was, until how long it takes; neither is negative,
// for clocks differ.
func (e *explanation) since(at int64) string { return roughly(max(0, e.milli(e.now-at))) }
func (e *explanation) until(at int64) string { return roughly(max(0, e.milli(at-e.now))) }

func (e *explanation) milli(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (e *explanation) waiting(seen Unrecorded) {
	run := e.run
	queued := max(run.GetQueuedAt(), run.GetAttemptQueuedAt())
	if e.now < queued {
		e.add(CauseWaiting, queued, "", run.GetAttempt(), "attempt %d has not been placed yet", run.GetAttempt())
	} else {
		e.add(CauseWaiting, queued, "", run.GetAttempt(), "attempt %d waits to be placed on a node, for %s", run.GetAttempt(), e.since(queued))
	}
	if run.GetWish() != nil {
		e.asked()
	}
	e.unready(seen)
	e.backoff()
	e.asks(seen.Owner)
	e.startDeadline()
	e.lostScore(seen.Owner)
	e.earlier()
}

// unready says why a node takes no runs, whatever its room.
func (e *explanation) unready(seen Unrecorded) {
	if seen.Unready != "" {
		e.add(CauseNodeUnready, 0, seen.UnreadyNode, 0, "node %s takes no runs: %s", seen.UnreadyNode, bounded(seen.Unready))
	}
}

// backoff says until when a run is not placed, and after what.
func (e *explanation) backoff() {
	run := e.run
	if run.GetNotBefore() <= e.now {
		return
	}
	after := ""
	switch {
	case run.GetHoldMessage() != "":
		after = ": " + run.GetHoldMessage()
	case run.GetAttempt() > 1:
		after = fmt.Sprintf(": the wait before attempt %d", run.GetAttempt())
	}
	e.add(CauseBackoff, run.GetNotBefore(), "", run.GetAttempt(), "it is not placed before %s have passed%s", e.until(run.GetNotBefore()), after)
}

// asks tells what the nodes have answered, by the owner if it knows and else by the
// record.
func (e *explanation) asks(owner *actorv1.Explained) {
	run := e.run
	knows := owner.GetActive() && owner.GetAttempt() == run.GetAttempt()
	if owner.GetStoreFailures() > 0 {
		e.add(CauseStoreFailing, 0, "", 0, "the store has failed %d times in a row", owner.GetStoreFailures())
	}
	if knows && owner.GetAsking() != "" {
		e.add(CauseAsking, 0, owner.GetAsking(), run.GetAttempt(), "node %s is being asked, one of %d", owner.GetAsking(), owner.GetCandidates())
	}
	switch {
	case knows && len(owner.GetRefusals()) > 0:
		for _, r := range owner.GetRefusals()[:min(len(owner.GetRefusals()), answersShown)] {
			e.add(CauseRefused, e.now-owner.GetRefusedAgoMs(), r.GetNode(), run.GetAttempt(), "node %s said no: %s", r.GetNode(), bounded(r.GetMessage()))
		}
		if more := len(owner.GetRefusals()) - answersShown; more > 0 {
			e.add(CauseRefused, 0, "", run.GetAttempt(), "%d more nodes said no", more)
		}
	case run.GetHoldMessage() != "" && run.GetNotBefore() <= e.now:
		e.add(CauseHeldUp, 0, "", run.GetAttempt(), "what held it up last: %s", run.GetHoldMessage())
	}
	if knows && owner.GetAskAgainMs() > 0 {
		e.add(CauseAskedAgain, e.now+owner.GetAskAgainMs(), "", run.GetAttempt(), "nodes are asked again in %s", roughly(e.milli(owner.GetAskAgainMs())))
	}
	if owner == nil {
		e.add(CauseOwnerSilent, 0, "", 0, "the run's owner did not answer: nothing is known beyond the record")
	}
}

// lostScore tells which nodes come last for the run because of what others have met there.
func (e *explanation) lostScore(owner *actorv1.Explained) {
	lost := owner.GetLostScore()
	for _, l := range lost[:min(len(lost), answersShown)] {
		runs := "another run"
		if l.GetRuns() > 1 {
			runs = fmt.Sprintf("%d other runs", l.GetRuns())
		}
		e.add(CauseLostScore, e.now+l.GetUntilMs(), l.GetNode(), 0, "node %s comes behind the others: it could not start %s, the last %s ago (%s); that is forgotten in %s unless more follow",
			l.GetNode(), runs, roughly(e.milli(l.GetSinceMs())), bounded(l.GetCause()), roughly(e.milli(l.GetUntilMs())))
	}
	if more := len(lost) - answersShown; more > 0 {
		e.add(CauseLostScore, 0, "", 0, "%d more nodes come behind the others", more)
	}
}

func (e *explanation) startDeadline() {
	at := startDeadline(e.run)
	switch {
	case at == 0 || e.run.GetWish().GetReason() == recordv1.Reason_REASON_START_DEADLINE:
	case at > e.now:
		e.add(CauseStartDeadline, at, "", e.run.GetAttempt(), "it fails unless it is started within %s", e.until(at))
	default:
		e.add(CauseStartDeadline, at, "", e.run.GetAttempt(), "its start deadline passed %s ago", e.since(at))
	}
}

func (e *explanation) placed(seen Unrecorded) {
	run := e.run
	held := run.GetPlacement()
	e.add(CausePlaced, held.GetPlacedAt(), held.GetNode(), run.GetAttempt(),
		"attempt %d is on node %s, for %s; its command is not known to run yet", run.GetAttempt(), held.GetNode(), e.since(held.GetPlacedAt()))
	if run.GetWish() != nil {
		e.asked()
	}
	e.unready(seen)
	e.atNode(seen)
	e.startDeadline()
	e.earlier()
}

func (e *explanation) running(seen Unrecorded) {
	run := e.run
	node, at := run.GetPlacement().GetNode(), run.GetStartedAt()
	if i := attemptIndex(run); i >= 0 {
		at = run.GetAttempts()[i].GetStartedAt()
	}
	e.add(CauseRunning, at, node, run.GetAttempt(), "attempt %d runs on node %s, for %s", run.GetAttempt(), node, e.since(at))
	if run.GetWish() != nil {
		e.asked()
	}
	e.atNode(seen)
	if run.GetOverdueAt() > 0 {
		e.add(CauseOverdue, run.GetOverdueAt(), node, run.GetAttempt(), "%s", overdueText)
	}
	if ms := run.GetSpec().GetTimeoutMs(); ms > 0 && run.GetWish() == nil {
		end := at + ms
		if end > e.now {
			e.add(CauseTimeoutAt, end, node, run.GetAttempt(), "it is stopped unless it ends within %s: its timeout is %s", e.until(end), milliSpan(ms))
		} else {
			e.add(CauseTimeoutAt, end, node, run.GetAttempt(), "its timeout of %s passed %s ago", milliSpan(ms), e.since(end))
		}
	}
	e.earlier()
}

// asked tells of the wish to end the run.
func (e *explanation) asked() {
	w := e.run.GetWish()
	text := stopText(w.GetReason(), w.GetBy(), w.GetForce())
	if w.GetAt() > 0 {
		text += ", " + e.since(w.GetAt()) + " ago"
	}
	e.add(CauseAsked, w.GetAt(), "", e.run.GetAttempt(), "%s", text)
}

// atNode tells what the node of the placement does, and whether it is there.
func (e *explanation) atNode(seen Unrecorded) {
	run, node := e.run, e.run.GetPlacement().GetNode()
	if owner := seen.Owner; owner.GetNodeGone() && owner.GetGoneAttempt() == run.GetAttempt() && owner.GetGonePlacement() == run.GetPlacement().GetNumber() {
		e.add(CauseNodeGone, e.now+owner.GetLostInMs(), node, run.GetAttempt(),
			"the session of node %s is over: in %s the attempt is lost, unless the node has told by then how it ended", node, roughly(e.milli(owner.GetLostInMs())))
	}
	if seen.Node == nil {
		e.add(CauseNodeSilent, 0, node, run.GetAttempt(), "node %s did not answer", node)
		if waitsForNode(run) {
			e.add(CauseWaitsForNode, 0, node, run.GetAttempt(), "it asked to wait for its node, however long that is away: what runs there goes on, and nobody else takes the run; if its machine is dead for good, errand node rm %s --i-know-it-is-dead ends it", node)
		}
		return
	}
	step := seen.Node.GetPlacement()
	if step.GetAttempt() != run.GetAttempt() || step.GetPlacement() != run.GetPlacement().GetNumber() {
		e.add(CauseNodeUnaware, 0, node, run.GetAttempt(), "node %s does not know of this placement yet, or not any more", node)
		return
	}
	e.step(step, node, seen.Pull)
}

func (e *explanation) step(step *actorv1.PlacementStep, node, pull string) {
	add := func(code CauseCode, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		at := int64(0)
		if step.GetSinceMs() > 0 {
			at = e.now - step.GetSinceMs()
			text += ", for " + roughly(e.milli(step.GetSinceMs()))
		}
		e.add(code, at, node, e.run.GetAttempt(), "%s", text)
	}
	switch step.GetStep() {
	case actorv1.Step_STEP_QUEUED:
		add(CauseStartQueued, "its sandbox waits for its turn: node %s is making %d others", node, step.GetStartsInFlight())
	case actorv1.Step_STEP_CREATING:
		if pull != "" {
			add(CausePulling, "node %s pulls image %s: %s", node, step.GetImage(), pull)
			return
		}
		what := "its sandbox"
		if step.GetImage() != "" {
			what += ", of image " + step.GetImage()
		}
		add(CauseCreating, "node %s makes %s", node, what)
	case actorv1.Step_STEP_STARTING:
		add(CauseStarting, "node %s starts its command", node)
	case actorv1.Step_STEP_STOPPING:
		e.stopping(step, node)
	case actorv1.Step_STEP_EMPTYING:
		add(CauseEmptying, "its command has ended; node %s ends what is left of it and completes its log", node)
	case actorv1.Step_STEP_REPORTING:
		add(CauseReporting, "node %s knows how it ended and tells its owner", node)
	case actorv1.Step_STEP_QUARANTINED:
		add(CauseReporting, "node %s knows how it ended and was told that nobody knows the run", node)
	default:
	}
}

// stopping tells how far a stop has come.
func (e *explanation) stopping(step *actorv1.PlacementStep, node string) {
	attempt := e.run.GetAttempt()
	if len(step.GetSignals()) == 0 {
		e.add(CauseStopping, 0, node, attempt, "node %s is about to stop it", node)
		return
	}
	sent := step.GetSignals()[len(step.GetSignals())-1]
	e.add(CauseSignal, sent.GetAt(), node, attempt, "node %s %s, %s ago", node, sentText(sent), e.since(sent.GetAt()))
	const kill = 9
	if kills := sent.GetAt() + step.GetStopGraceMs(); sent.GetSignal() != kill && kills > e.now {
		e.add(CauseKillAt, kills, node, attempt, "it is killed unless it ends within %s: its stop grace is %s", e.until(kills), milliSpan(step.GetStopGraceMs()))
	}
}

// earlier tells how the last attempts before the current one ended.
func (e *explanation) earlier() {
	var before []*recordv1.Attempt
	for _, attempt := range e.run.GetAttempts() {
		if attempt.GetNumber() < e.run.GetAttempt() && attemptEnded(attempt) {
			before = append(before, attempt)
		}
	}
	slices.Reverse(before)
	for _, attempt := range before[:min(len(before), attemptsShown)] {
		e.add(CauseAttemptEnded, attempt.GetEndedAt(), attempt.GetNode(), attempt.GetNumber(),
			"attempt %d on node %s: %s", attempt.GetNumber(), attempt.GetNode(), endText(e.run, attempt))
	}
	if more := len(before) - attemptsShown; more > 0 {
		e.add(CauseAttemptEnded, 0, "", 0, "%d attempts before", more)
	}
}

// finished tells how a run came to its end.
func (e *explanation) finished() {
	run := e.run
	e.add(CauseFinished, run.GetEndedAt(), "", 0, "%s, %s ago", outcomeText(run.GetStatus(), run.GetReason(), "", nil), e.since(run.GetEndedAt()))
	var attempt *recordv1.Attempt
	if i := attemptIndex(run); i >= 0 {
		attempt = run.GetAttempts()[i]
	}
	e.end(attempt)
	if w := run.GetWish(); w != nil {
		e.asked()
		if w.GetReason() == recordv1.Reason_REASON_CANCELED && run.GetStatus() != recordv1.Status_STATUS_CANCELED {
			e.causes[len(e.causes)-1].Text += "; that did not decide the outcome"
		}
	}
	e.safety(attempt)
	e.retries(attempt)
	if attempt.GetLeftover() {
		e.add(CauseLeftover, 0, attempt.GetNode(), attempt.GetNumber(), "processes that its command had left behind were killed")
	}
	if text := logText(attempt); text != "" {
		e.add(CauseLog, 0, attempt.GetNode(), attempt.GetNumber(), "%s", text)
	}
	for _, late := range run.GetLateExits()[:min(len(run.GetLateExits()), 1)] {
		e.add(CauseLateExit, late.GetAt(), "", late.GetAttempt(), "attempt %d: %s", late.GetAttempt(), lateText(late))
	}
	e.earlier()
}

// end tells how the last attempt ended: the message of the run, and what that leaves
// open.
func (e *explanation) end(attempt *recordv1.Attempt) {
	run := e.run
	code := CauseCode(records.Word(run.GetReason()))
	if code == "" {
		code = CauseExited
	}
	where := ""
	if attempt.GetNode() != "" {
		where = fmt.Sprintf("attempt %d on node %s: ", attempt.GetNumber(), attempt.GetNode())
	}
	text := run.GetMessage()
	if text == "" {
		text = reasonText(run.GetReason())
	}
	switch {
	case text == "" && run.ExitCode != nil:
		text = fmt.Sprintf("exit code %d", run.GetExitCode())
	case text == "":
		text = "nothing more is recorded"
	case run.ExitCode != nil && (attempt.GetSignal() != 0 || run.GetMessage() == "" || run.GetReason() != recordv1.Reason_REASON_EXIT_CODE):
		text += fmt.Sprintf("; exit code %d", run.GetExitCode())
	}
	e.add(code, attempt.GetEndedAt(), attempt.GetNode(), attempt.GetNumber(), "%s%s", where, text)
	if attempt.GetSignal() != 0 {
		e.bySignal(attempt)
	}
	if attempt.GetOomKilled() || attempt.GetMemoryPeakBytes() > 0 {
		e.memory(attempt)
	}
}

// bySignal says whose the signal was that ended the command, as far as that is known.
func (e *explanation) bySignal(attempt *recordv1.Attempt) {
	name := signalName(attempt.GetSignal())
	var ours *recordv1.SentSignal
	for _, sent := range attempt.GetSignals() {
		if sent.GetSignal() == attempt.GetSignal() && (sent.Delivered == nil || sent.GetDelivered()) {
			ours = sent
		}
	}
	text := fmt.Sprintf("signal %s was not the engine's: the command sent it to itself, or another process or the kernel did", name)
	switch {
	case ours != nil && ours.GetDelivered():
		text = fmt.Sprintf("signal %s was the engine's", name)
		if why := causeText(ours.GetCause()); why != "" {
			text += ": " + why
		}
	case ours != nil:
		text = fmt.Sprintf("the engine had sent signal %s; it is not known whether that was what ended it", name)
	case attempt.GetOomKilled() && attempt.GetSignal() == sigkill:
		text = fmt.Sprintf("signal %s was the kernel's, for want of memory", name)
	case e.stoppedByEngine():
		// Its record is bounded, and what a crash left unknown is absent from it.
		text = fmt.Sprintf("the engine had stopped it; whose signal %s was is not recorded", name)
	}
	e.add(CauseBySignal, attempt.GetEndedAt(), attempt.GetNode(), attempt.GetNumber(), "%s", text)
}

// stoppedByEngine tells whether the engine's stop is what the outcome is of.
func (e *explanation) stoppedByEngine() bool {
	switch e.run.GetReason() {
	case recordv1.Reason_REASON_CANCELED, recordv1.Reason_REASON_TIMEOUT, recordv1.Reason_REASON_DRAINED, recordv1.Reason_REASON_START_DEADLINE:
		return true
	default:
		return false
	}
}

func (e *explanation) memory(attempt *recordv1.Attempt) {
	e.add(CauseMemory, 0, attempt.GetNode(), attempt.GetNumber(), "processes of it were killed for want of memory: %s", memoryText(e.run, attempt))
}

// safety says from when on no copy of an attempt can be running whose end nobody saw.
func (e *explanation) safety(attempt *recordv1.Attempt) {
	switch {
	case attempt == nil:
	case attempt.GetSafeAt() > 0:
		e.add(CauseSafe, attempt.GetSafeAt(), attempt.GetNode(), attempt.GetNumber(), "%s, %s ago", safeText(attempt), e.since(attempt.GetSafeAt()))
	case attempt.ExitCode == nil && isLoss(attempt.GetReason()):
		e.add(CauseSafeUnknown, 0, attempt.GetNode(), attempt.GetNumber(), "no moment is recorded from which on no copy of attempt %d can be running", attempt.GetNumber())
	}
}
