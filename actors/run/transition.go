package run

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// phase is what the transition table distinguishes: the status, and for PENDING
// whether the run has a placement.
type phase uint8

const (
	absent phase = iota
	waiting
	placed
	running
	terminal
	phases
)

var phaseNames = [phases]string{"absent", "waiting", "placed", "running", "terminal"}

func (p phase) String() string { return phaseNames[p] }

func phaseOf(run *recordv1.Run) phase {
	switch {
	case run == nil:
		return absent
	case records.Terminal(run.GetStatus()):
		return terminal
	case run.GetStatus() == recordv1.Status_STATUS_RUNNING:
		return running
	case run.GetPlacement() != nil:
		return placed
	default:
		return waiting
	}
}

// request is something that wants the run to move.
type request interface{ column() column }

type column uint8

const (
	onWake column = iota
	onGranted
	onRefused
	onVoided
	onStarted
	onExited
	onCancel
	onQuarantined
	onUnattended
	columns
)

var columnNames = [columns]string{"wake", "granted", "refused", "voided", "started", "exited", "cancel", "quarantined", "unattended"}

func (c column) String() string { return columnNames[c] }

type (
	// wake asks to look at the clock.
	wake struct {
		// shard is nil when no deadline actor waits to hear when to ask again.
		shard *int32
		// node is that of the deadline actor.
		node string
	}
	// granted is a node's yes to a reservation.
	granted struct {
		node               string
		session            int64
		attempt, placement int32
		token              []byte
	}
	// refused is the end of a round in which every node said no.
	refused struct {
		attempt, placement int32
		message            string
		// permanent is set when every node said that another try can not help.
		permanent recordv1.Reason
	}
	voided  struct{ *actorv1.Voided }
	started struct{ *actorv1.Started }
	exited  struct{ *actorv1.Exited }
	cancel  struct {
		*actorv1.Cancel
		from actors.Sender
	}
)

func (wake) column() column    { return onWake }
func (granted) column() column { return onGranted }
func (refused) column() column { return onRefused }
func (voided) column() column  { return onVoided }
func (started) column() column { return onStarted }
func (exited) column() column  { return onExited }
func (cancel) column() column  { return onCancel }

// snapshot is what a decision is made on. Decisions never change it.
type snapshot struct {
	run *recordv1.Run
	mod int64
	// created is the revision at which the record came into being.
	created int64
	// assignment is that of the current placement; it may be nil although
	// assignmentKnown, when somebody deleted it.
	assignment      *recordv1.Assignment
	assignmentKnown bool
	// committed is the revision that put the assignment there.
	committed int64
	// fresh says that the record was read after the request being decided had
	// arrived.
	fresh bool
	// leased says that sessions can end; presence is what was read of the placement's
	// for the request being decided, nil if nothing was.
	leased   bool
	presence *presence
}

// presence is what the store says of the session that a placement is in.
type presence struct {
	gone bool
	// left is how long a run must still wait for it that is gone, over how long ago that
	// wait has ended.
	left, over time.Duration
	// away: it is waited for, and has no session now. word is that by which it is gone.
	away bool
	word *recordv1.Removal
}

// change is the transaction that a decision needs.
type change uint8

const (
	// changeNothing: the record already says what it should.
	changeNothing change = iota
	// changeReload: the request knows more than the snapshot; read again.
	changeReload
	// changeAssignment: the assignment and its node's session must be read first.
	changeAssignment
	changePlace
	changeUnplace
	changeUpdate
	changeWish
	changeEnd
	changeLose
	changeNote
)

// follow makes an effect once the revision that holds the decision is known.
type follow func(revision int64) actors.Effect

// decision is what is to be made of a request.
type decision struct {
	change change
	// run and assignment are the new records.
	run        *recordv1.Run
	assignment *recordv1.Assignment
	// says is the log line of a changeNote.
	says string
	// node is where the assignment lies that the change touches, session the one that
	// it is lost with.
	node     string
	session  int64
	nextWake int64
	// after follows the known commit, or comes at once if nothing changes.
	after []follow
	// seek: the run waits for a node and one may be asked for now.
	seek bool
	// lookAgain is when a wake is due again, if nothing changes.
	lookAgain time.Duration
}

type move func(now actors.Instant, s snapshot, r request) decision

// table is the whole lifecycle. The legal moves of a status are
//
//	PENDING -> PENDING   place, leave, hold
//	PENDING -> RUNNING   run
//	PENDING, RUNNING -> PENDING   another attempt
//	PENDING, RUNNING -> SUCCEEDED, FAILED, TIMED_OUT, CANCELED   end and the like
//
// and a terminal status is never left: its row changes no status.
var table = [phases][columns]move{
	absent: {
		onWake: rest, onGranted: drop, onRefused: drop, onVoided: ackUnknown,
		onStarted: drop, onExited: ackUnknown, onCancel: cancelAbsent, onQuarantined: drop, onUnattended: drop,
	},
	waiting: {
		onWake: lookWaiting, onGranted: place, onRefused: hold, onVoided: ackVoid,
		onStarted: dropStarted, onExited: noteExit, onCancel: cancelWaiting, onQuarantined: noteQuarantined, onUnattended: leaveWaiting,
	},
	placed: {
		onWake: lookPlaced, onGranted: drop, onRefused: drop, onVoided: leave,
		onStarted: start, onExited: end, onCancel: cancelPlaced, onQuarantined: noteQuarantined, onUnattended: leavePlaced,
	},
	running: {
		onWake: lookRunning, onGranted: drop, onRefused: drop, onVoided: voidRunning,
		onStarted: dropStarted, onExited: end, onCancel: cancelPlaced, onQuarantined: noteQuarantined, onUnattended: leavePlaced,
	},
	terminal: {
		onWake: rest, onGranted: drop, onRefused: drop, onVoided: ackVoid,
		onStarted: drop, onExited: noteExit, onCancel: cancelTerminal, onQuarantined: noteQuarantined, onUnattended: drop,
	},
}

func decide(now actors.Instant, s snapshot, r request) decision {
	return table[phaseOf(s.run)][r.column()](now, s, r)
}

// current tells whether a node speaks of the placement that the record holds, and
// holds it.
func current(run *recordv1.Run, attempt, placement int32, node string) bool {
	held := run.GetPlacement()
	return held != nil && run.GetAttempt() == attempt && held.GetNumber() == placement && held.GetNode() == node
}

// ahead tells whether a node speaks of a placement that the snapshot has not
// seen: another activation committed it.
func ahead(run *recordv1.Run, attempt, placement int32) bool {
	return attempt > run.GetAttempt() || attempt == run.GetAttempt() && placement > run.GetPlacements()
}

func drop(actors.Instant, snapshot, request) decision { return decision{} }

// rest answers a wake of a run that has nothing to wait for.
func rest(actors.Instant, snapshot, request) decision { return decision{} }

func dropStarted(_ actors.Instant, s snapshot, r request) decision {
	m := r.(started)
	if ahead(s.run, m.GetAttempt(), m.GetPlacement()) && !s.fresh {
		return decision{change: changeReload}
	}
	return decision{}
}

func ackUnknown(_ actors.Instant, _ snapshot, r request) decision {
	return decision{after: []follow{ackOf(r, true)}}
}

// ackVoid answers a void that has been recorded already, or that is of no
// consequence any more.
func ackVoid(_ actors.Instant, s snapshot, r request) decision {
	m := r.(voided)
	if ahead(s.run, m.GetAttempt(), m.GetPlacement()) && !s.fresh {
		return decision{change: changeReload}
	}
	return decision{after: []follow{ackOf(r, false)}}
}

func lookWaiting(now actors.Instant, s snapshot, _ request) decision {
	if s.run.GetWish() != nil {
		return endByWish(now, s, nil)
	}
	if startDeadlinePassed(now, s.run) {
		return endByStartDeadline(now, s)
	}
	if wait := untilNotBefore(now, s.run); wait > 0 {
		return decision{lookAgain: wait}
	}
	return decision{seek: true}
}

func lookPlaced(now actors.Instant, s snapshot, _ request) decision {
	if d, decided := lookForNode(now, s); decided {
		return d
	}
	if s.run.GetWish() != nil {
		return remindOfWish(s)
	}
	if startDeadlinePassed(now, s.run) {
		return wish(now, s, &recordv1.Wish{Reason: recordv1.Reason_REASON_START_DEADLINE, By: byEngine, At: now.Milli()})
	}
	return remindOfStart(now, s)
}

// remindOfStart tells the node again of its assignment: it may have missed it, or
// its Started may have been lost.
func remindOfStart(now actors.Instant, s snapshot) decision {
	if !s.assignmentKnown {
		return decision{change: changeAssignment}
	}
	d := decision{lookAgain: untilWake(now, s.run)}
	if s.assignment != nil {
		d.after = []follow{startFollow(s.run.GetPlacement().GetNode(), s.assignment, s.committed)}
	}
	return d
}

// lookRunning is the backup of the timeout, which the node enforces itself.
func lookRunning(now actors.Instant, s snapshot, _ request) decision {
	if d, decided := lookForNode(now, s); decided {
		return d
	}
	if s.run.GetWish() != nil {
		return remindOfWish(s)
	}
	if timeoutLongPassed(now, s.run) && s.run.GetOverdueAt() == 0 {
		return noteOverdue(now, s)
	}
	if timeoutLongPassed(now, s.run) {
		return wish(now, s, &recordv1.Wish{Reason: recordv1.Reason_REASON_TIMEOUT, By: byEngine, At: now.Milli()})
	}
	return decision{lookAgain: untilWake(now, s.run)}
}

// noteOverdue has the backup of the timeout count from now. The start was dated by a
// clock that may have been behind without anybody's knowledge, and nothing is ended by
// the clock of one node alone.
func noteOverdue(now actors.Instant, s snapshot) decision {
	run := proto.CloneOf(s.run)
	run.OverdueAt = now.Milli()
	return decision{change: changeUpdate, run: run, nextWake: nextWake(now, run)}
}

// remindOfWish tells the node again of a wish, in case it missed both the message
// and the change of its assignment.
func remindOfWish(s snapshot) decision {
	return decision{lookAgain: wishReminder, after: []follow{stopFollow(s.run)}}
}

func place(now actors.Instant, s snapshot, r request) decision {
	m := r.(granted)
	if m.attempt != s.run.GetAttempt() || m.placement != s.run.GetPlacements()+1 {
		return decision{}
	}
	if s.run.GetWish() != nil || startDeadlinePassed(now, s.run) {
		return lookWaiting(now, s, r)
	}
	run := proto.CloneOf(s.run)
	run.Placements = m.placement
	run.Placement = &recordv1.Placement{Node: m.node, Session: m.session, Number: m.placement, PlacedAt: now.Milli()}
	attempt := attemptOf(run)
	attempt.Node, attempt.Placement, attempt.Status = m.node, m.placement, recordv1.Status_STATUS_PENDING
	assignment := &recordv1.Assignment{
		Run: run.GetId(), Attempt: run.GetAttempt(), Placement: m.placement, Session: m.session, StartToken: m.token,
		Spec: run.GetSpec(), Desired: recordv1.Desired_DESIRED_RUN, App: run.GetApp(), Task: run.GetTask(), Name: run.GetName(),
	}
	return decision{
		change: changePlace, run: run, assignment: assignment, node: m.node, nextWake: nextWake(now, run),
		after: []follow{startFollow(m.node, assignment, 0)},
	}
}

// hold records why no node took the run, if that is news.
func hold(now actors.Instant, s snapshot, r request) decision {
	m := r.(refused)
	if m.attempt != s.run.GetAttempt() || m.placement != s.run.GetPlacements()+1 {
		return decision{}
	}
	if s.run.GetWish() != nil || startDeadlinePassed(now, s.run) {
		return lookWaiting(now, s, r)
	}
	run := proto.CloneOf(s.run)
	if m.permanent != recordv1.Reason_REASON_UNSPECIFIED {
		run.Message = m.message
		return finish(now, run, recordv1.Status_STATUS_FAILED, m.permanent, "")
	}
	wait := holdBackoff(now, s.run)
	if run.GetHoldMessage() == m.message && run.GetHoldReason() == recordv1.Reason_REASON_UNSPECIFIED {
		return decision{lookAgain: wait}
	}
	run.HoldReason, run.HoldMessage = recordv1.Reason_REASON_UNSPECIFIED, m.message
	remember(run, &recordv1.RunEvent{Kind: eventRefused, At: now.Milli(), Attempt: run.GetAttempt(), Message: m.message})
	return decision{
		change: changeUpdate, run: run, lookAgain: wait,
		nextWake: earlier(startDeadline(run), milliAfter(now, wait)),
	}
}

// leave takes the run off a node that says that its placement never started.
func leave(now actors.Instant, s snapshot, r request) decision {
	m := r.(voided)
	if !current(s.run, m.GetAttempt(), m.GetPlacement(), m.GetNode()) {
		return ackVoid(now, s, r)
	}
	run, void := proto.CloneOf(s.run), m.GetVoid()
	node := run.GetPlacement().GetNode()
	if isCause(void, run.GetWish()) {
		avoid(run, node)
		run.HoldReason, run.HoldMessage = void.GetReason(), nodeSays(node, voidText(void))
	}
	ack := ackOf(r, false)
	canceled := run.GetWish().GetReason() == recordv1.Reason_REASON_CANCELED
	switch {
	case void.GetPermanent() && !canceled:
		run.Message = voidText(void)
		return finish(now, run, recordv1.Status_STATUS_FAILED, failureOf(void.GetReason()), node, ack)
	case run.GetWish() != nil:
		return endByWish(now, snapshot{run: run}, ack)
	}
	wait := doubling(backoffMin, run.GetVoids())
	// What the node heard of how long to wait counts, within the bounds of a backoff.
	wait = max(wait, min(time.Duration(void.GetRetryAfterMs())*time.Millisecond, backoffMax))
	run.Voids++
	run.Placement = nil
	run.Attempts = withoutCurrent(run)
	run.NotBefore = milliAfter(now, wait)
	remember(run, &recordv1.RunEvent{
		Kind: eventLeft, At: now.Milli(), Attempt: run.GetAttempt(), Placement: m.GetPlacement(), Node: node,
		Reason: void.GetReason(), Message: voidText(void), PlacedAt: s.run.GetPlacement().GetPlacedAt(), Until: run.GetNotBefore(),
	})
	return decision{
		change: changeUnplace, run: run, node: node, nextWake: nextWake(now, run), after: []follow{ack},
	}
}

// voidRunning ends a run whose node has said that the command runs and now says
// that it never started. Nobody can know; that attempt must not be started again.
func voidRunning(now actors.Instant, s snapshot, r request) decision {
	m := r.(voided)
	if !current(s.run, m.GetAttempt(), m.GetPlacement(), m.GetNode()) {
		return ackVoid(now, s, r)
	}
	run := proto.CloneOf(s.run)
	node := run.GetPlacement().GetNode()
	result := outcome{status: recordv1.Status_STATUS_FAILED, reason: recordv1.Reason_REASON_START_UNKNOWN, message: contradiction(node)}
	noteSafe(run, recordv1.SafeBy_SAFE_BY_VOID, now.Milli())
	if tryAgain(run, result) {
		return again(now, run, result, ackOf(r, false))
	}
	run.Message = result.message
	return finish(now, run, result.status, result.reason, node, ackOf(r, false))
}

func start(now actors.Instant, s snapshot, r request) decision {
	m := r.(started)
	if !current(s.run, m.GetAttempt(), m.GetPlacement(), m.GetNode()) {
		return dropStarted(now, s, r)
	}
	run := proto.CloneOf(s.run)
	run.Status = recordv1.Status_STATUS_RUNNING
	noteStart(now, run, m.GetAt())
	run.Voids, run.HoldReason, run.HoldMessage = 0, recordv1.Reason_REASON_UNSPECIFIED, ""
	// The command beat the start deadline: there is nothing left to wish for.
	if run.GetWish().GetReason() == recordv1.Reason_REASON_START_DEADLINE {
		rememberWish(run)
		run.Wish = nil
	}
	attemptOf(run).Status = recordv1.Status_STATUS_RUNNING
	return decision{change: changeUpdate, run: run, nextWake: nextWake(now, run)}
}

func end(now actors.Instant, s snapshot, r request) decision {
	m := r.(exited)
	if !current(s.run, m.GetAttempt(), m.GetPlacement(), m.GetNode()) {
		return noteExit(now, s, r)
	}
	run, exit := proto.CloneOf(s.run), m.GetExit()
	node := run.GetPlacement().GetNode()
	if attemptOf(run).GetStartedAt() <= 0 && exit.GetStartedAt() > 0 {
		noteStart(now, run, exit.GetStartedAt())
	}
	result := outcomeOf(run, exit)
	recordExit(now, run, exit, result)
	if tryAgain(run, result) {
		return again(now, run, result, ackOf(r, false))
	}
	run.ExitCode, run.Message = result.code, result.message
	return finish(now, run, result.status, result.reason, node, ackOf(r, false))
}

// noteStart dates the start of the current attempt, and that of the run by its first.
func noteStart(now actors.Instant, run *recordv1.Run, at int64) {
	attempt := attemptOf(run)
	attempt.StartedAt = startOf(now, run, at)
	if run.GetStartedAt() <= 0 {
		run.StartedAt = attempt.StartedAt
	}
}

// noteExit keeps an exit that can not decide anything any more, once.
func noteExit(now actors.Instant, s snapshot, r request) decision {
	m := r.(exited)
	if ahead(s.run, m.GetAttempt(), m.GetPlacement()) && !s.fresh {
		return decision{change: changeReload}
	}
	ack := []follow{ackOf(r, false)}
	if exitKnown(s.run, m.Exited) || len(s.run.GetLateExits()) >= lateExitsMax {
		return decision{after: ack}
	}
	run := proto.CloneOf(s.run)
	run.LateExits = append(run.LateExits, &recordv1.LateExit{
		Attempt: m.GetAttempt(), Placement: m.GetPlacement(), At: now.Milli(), Exit: storable(m.GetExit()),
	})
	if phaseOf(run) == terminal {
		return decision{change: changeNote, run: run, after: ack, says: "an exit came late"}
	}
	return decision{change: changeUpdate, run: run, nextWake: nextWake(now, run), after: ack}
}
