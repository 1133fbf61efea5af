package run

import (
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const testID = "r.default.aaaa"

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(d time.Duration) actors.Instant {
	return actors.Instant{Mono: d, Boot: d, Wall: epoch.Add(d), WallHealthy: true}
}

func newRun() *recordv1.Run {
	return &recordv1.Run{
		Id: testID, App: "default", Trigger: recordv1.Trigger_TRIGGER_MANUAL, Status: recordv1.Status_STATUS_PENDING,
		Attempt: 1, CreatedAt: epoch.UnixMilli(), QueuedAt: epoch.UnixMilli(),
		Spec: &recordv1.Spec{
			Driver: "null", Command: []string{"true"}, MemoryBytes: 64 << 20,
			TimeoutMs: 60_000, StartDeadlineMs: 300_000, StopGraceMs: 10_000,
		},
	}
}

// inPhase returns a snapshot of a run in a phase; placed ones are on n1 with
// attempt 1, placement 2.
func inPhase(p phase) snapshot {
	if p == absent {
		return snapshot{fresh: true}
	}
	run := newRun()
	s := snapshot{run: run, mod: 10, assignmentKnown: true}
	if p == waiting {
		run.Placements = 1
		return s
	}
	run.Placements = 2
	run.Placement = &recordv1.Placement{Node: "n1", Session: 5, Number: 2}
	run.Attempts = []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 2, Status: recordv1.Status_STATUS_PENDING}}
	s.assignment = &recordv1.Assignment{
		Run: testID, Attempt: 1, Placement: 2, Session: 5, StartToken: []byte("token"), Desired: recordv1.Desired_DESIRED_RUN,
	}
	switch p {
	case running:
		run.Status, run.StartedAt = recordv1.Status_STATUS_RUNNING, epoch.UnixMilli()
		run.Attempts[0].StartedAt = run.StartedAt
	case terminal:
		run.Status, run.EndedAt, run.Placement = recordv1.Status_STATUS_SUCCEEDED, epoch.UnixMilli()+50, nil
		run.ExitCode = proto.Int32(0)
		run.Attempts[0].EndedAt, run.Attempts[0].ExitCode = epoch.UnixMilli()+50, proto.Int32(0)
		s.assignment, s.assignmentKnown = nil, false
	default:
	}
	return s
}

func exitOf(code int32) *recordv1.Exit {
	return &recordv1.Exit{Code: &code, StartedAt: epoch.UnixMilli() + 10, At: epoch.UnixMilli() + 50, LogComplete: true}
}

func requestOf(c column) request {
	switch c {
	case onWake:
		return wake{}
	case onGranted:
		return granted{node: "n1", session: 5, attempt: 1, placement: 2, token: []byte("t")}
	case onRefused:
		return refused{attempt: 1, placement: 2, message: "node n1: no room"}
	case onVoided:
		return voided{&actorv1.Voided{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Void: &recordv1.Void{
			Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "registry away",
		}}}
	case onStarted:
		return started{&actorv1.Started{Run: testID, Attempt: 1, Placement: 2, Node: "n1", At: epoch.UnixMilli() + 10}}
	case onExited:
		return exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: exitOf(7)}}
	case onQuarantined:
		return quarantined{&actorv1.Quarantined{Run: testID, Attempt: 1, Placement: 1, Node: "n2", Since: epoch.UnixMilli() + 20, Reason: "nobody knows it"}}
	case onUnattended:
		return unattended{}
	default:
		return cancel{&actorv1.Cancel{Run: testID, By: "ann"}, "caller"}
	}
}

// TestEveryPhaseAndRequest says what each cell of the table does at a moment when
// no deadline has passed.
func TestEveryPhaseAndRequest(t *testing.T) {
	type cell struct {
		change change
		status recordv1.Status
		after  string
	}
	const (
		pending  = recordv1.Status_STATUS_PENDING
		runs     = recordv1.Status_STATUS_RUNNING
		failed   = recordv1.Status_STATUS_FAILED
		canceled = recordv1.Status_STATUS_CANCELED
		same     = recordv1.Status_STATUS_UNSPECIFIED
	)
	want := [phases][columns]cell{
		absent: {
			onVoided: {after: "Ack unknown"}, onExited: {after: "Ack unknown"}, onCancel: {after: "NOT_FOUND"},
		},
		waiting: {
			onGranted: {changePlace, pending, "Start"}, onRefused: {changeUpdate, pending, ""}, onVoided: {changeReload, same, ""},
			onStarted: {changeReload, same, ""}, onExited: {changeReload, same, ""}, onCancel: {changeEnd, canceled, "RECORDED"},
			onQuarantined: {changeUpdate, pending, ""},
		},
		placed: {
			onWake: {after: "Start"}, onVoided: {changeUnplace, pending, "Ack"}, onStarted: {changeUpdate, runs, ""},
			onExited: {changeEnd, failed, "Ack"}, onCancel: {changeWish, pending, "Stop RECORDED"},
			onQuarantined: {changeUpdate, pending, ""},
		},
		running: {
			onVoided: {changeEnd, failed, "Ack"}, onExited: {changeEnd, failed, "Ack"}, onCancel: {changeWish, runs, "Stop RECORDED"},
			onQuarantined: {changeUpdate, runs, ""},
		},
		terminal: {
			onVoided: {after: "Ack"}, onExited: {changeNothing, same, "Ack"}, onCancel: {after: "TERMINAL"},
			onQuarantined: {changeNote, recordv1.Status_STATUS_SUCCEEDED, ""},
		},
	}
	for p := range phases {
		for c := range columns {
			t.Run(p.String()+" "+c.String(), func(t *testing.T) {
				s := inPhase(p)
				before := proto.CloneOf(s.run)
				d := decide(at(time.Second), s, requestOf(c))
				w := want[p][c]
				if d.change != w.change {
					t.Fatalf("change %d, want %d", d.change, w.change)
				}
				if d.run.GetStatus() != w.status {
					t.Errorf("status %s, want %s", d.run.GetStatus(), w.status)
				}
				if got := namesOf(d); got != w.after {
					t.Errorf("effects %q, want %q", got, w.after)
				}
				if s.run != nil && !proto.Equal(before, s.run) {
					t.Error("the decision changed the record that it was made on")
				}
			})
		}
	}
}

func namesOf(d decision) string {
	text := ""
	for i, f := range d.after {
		if i > 0 {
			text += " "
		}
		switch e := f(99).(type) {
		case actors.Answer:
			text += e.Message.(*actorv1.Canceled).GetOutcome().String()[len("OUTCOME_"):]
		case actors.Tell:
			switch m := e.Message.(type) {
			case *actorv1.Ack:
				text += "Ack"
				if m.GetUnknown() {
					text += " unknown"
				} else if m.GetCommit() != 99 {
					text += " without its revision"
				}
			case *actorv1.Start:
				text += "Start"
			case *actorv1.Stop:
				text += "Stop"
			}
		}
	}
	return text
}

func TestOutcomeOfExit(t *testing.T) {
	code := func(c int32, change ...func(*recordv1.Exit)) *recordv1.Exit {
		exit := exitOf(c)
		for _, f := range change {
			f(exit)
		}
		return exit
	}
	stopped := func(cause recordv1.StopCause) func(*recordv1.Exit) {
		return func(e *recordv1.Exit) { e.StopDelivered, e.StopCause = true, cause }
	}
	signal := func(s int32) func(*recordv1.Exit) { return func(e *recordv1.Exit) { e.Signal = s } }
	oom := func(e *recordv1.Exit) { e.OomKilled = true }
	cases := []struct {
		name    string
		exit    *recordv1.Exit
		status  recordv1.Status
		reason  recordv1.Reason
		code    int32 // -1: none
		message string
	}{
		{"exit code 0", code(0), recordv1.Status_STATUS_SUCCEEDED, 0, 0, ""},
		{"another exit code", code(7), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_EXIT_CODE, 7, "exit code 7"},
		{"exit code 137 without a signal", code(137), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_EXIT_CODE, 137, "exit code 137"},
		{"a signal from outside", code(137, signal(9)), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_SIGNAL, 137, "killed by signal 9"},
		{"out of memory", code(137, signal(9), oom), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_OOM_KILLED, 137, "killed by signal 9 after the memory limit of 64 MiB was reached"},
		{"a child out of memory", code(1, oom), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_EXIT_CODE, 1, "exit code 1 after the memory limit of 64 MiB was reached"},
		{"a child out of memory and exit code 0", code(0, oom), recordv1.Status_STATUS_SUCCEEDED, 0, 0, ""},
		{"canceled, ended by the signal", code(143, signal(15), stopped(recordv1.StopCause_STOP_CAUSE_CANCEL)), recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, 143, "canceled by ann"},
		{"canceled, ended cleanly", code(0, stopped(recordv1.StopCause_STOP_CAUSE_CANCEL)), recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, 0, "canceled by ann"},
		{"a cancel that came too late", code(0, func(e *recordv1.Exit) { e.StopCause = recordv1.StopCause_STOP_CAUSE_CANCEL }), recordv1.Status_STATUS_SUCCEEDED, 0, 0, ""},
		{"a cancel that came too late for a failure", code(3), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_EXIT_CODE, 3, "exit code 3"},
		{"timed out", code(143, signal(15), stopped(recordv1.StopCause_STOP_CAUSE_TIMEOUT)), recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, 143, "the timeout of 1m has passed"},
		{"stopped by the start deadline", code(143, signal(15), stopped(recordv1.StopCause_STOP_CAUSE_START_DEADLINE)), recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_START_DEADLINE, 143, "not started within 5m"},
		{"stopped for no known cause", code(143, signal(15), stopped(recordv1.StopCause_STOP_CAUSE_UNSPECIFIED)), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_SIGNAL, 143, "killed by signal 15"},
		{"drained", code(143, signal(15), stopped(recordv1.StopCause_STOP_CAUSE_DRAIN)), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_DRAINED, 143, drainedText},
		{"drained, ended well", code(0, stopped(recordv1.StopCause_STOP_CAUSE_DRAIN)), recordv1.Status_STATUS_SUCCEEDED, 0, 0, ""},
		{"fenced with a code", code(137, func(e *recordv1.Exit) { e.Fenced = true }), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_FENCED, -1, "the node had lost its session and stopped what it ran"},
		{"stopped by the fence", code(137, stopped(recordv1.StopCause_STOP_CAUSE_FENCE)), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_FENCED, -1, "the node had lost its session and stopped what it ran"},
		{"not found", &recordv1.Exit{Reason: recordv1.Reason_REASON_NOT_FOUND, Message: "no such file: nope"}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NOT_FOUND, -1, "no such file: nope"},
		{"not executable with a made-up code", code(126, func(e *recordv1.Exit) { e.Reason = recordv1.Reason_REASON_NOT_EXECUTABLE }), recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NOT_EXECUTABLE, -1, "the command is not executable"},
		{"a lost sandbox, canceled", &recordv1.Exit{StartedAt: 1, StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL, Reason: recordv1.Reason_REASON_SANDBOX_LOST}, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, -1, "canceled by ann; nobody saw how the command ended"},
		{"a lost sandbox, timed out", &recordv1.Exit{StartedAt: 1, StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_TIMEOUT}, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, -1, "the timeout of 1m has passed; nobody saw how the command ended"},
		{"a lost sandbox, drained", &recordv1.Exit{StartedAt: 1, StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_DRAIN}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_SANDBOX_LOST, -1, "the sandbox was lost and nobody saw the command end"},
		{"a lost sandbox and a cancel that did not reach it", &recordv1.Exit{StartedAt: 1, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_SANDBOX_LOST, -1, "the sandbox was lost and nobody saw the command end"},
		{"fenced while canceled", &recordv1.Exit{StartedAt: 1, Fenced: true, StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_FENCED, -1, "the node had lost its session and stopped what it ran"},
		{"not found while canceled", &recordv1.Exit{StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL, Reason: recordv1.Reason_REASON_NOT_FOUND}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NOT_FOUND, -1, "the command was not found"},
		{"no code and no reason, started", &recordv1.Exit{StartedAt: 1}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_SANDBOX_LOST, -1, "the sandbox was lost and nobody saw the command end"},
		{"no code and no reason, not started", &recordv1.Exit{}, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, -1, "canceled by ann; it is not known whether the command was started"},
		{"no exit at all", nil, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, -1, "canceled by ann; it is not known whether the command was started"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := inPhase(running)
			s.run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: "ann"}
			d := decide(at(time.Second), s, exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: c.exit}})
			run := d.run
			if d.change != changeEnd || run.GetStatus() != c.status || run.GetReason() != c.reason || run.GetMessage() != c.message {
				t.Errorf("got %d %s %s %q", d.change, run.GetStatus(), run.GetReason(), run.GetMessage())
			}
			attempt := run.GetAttempts()[0]
			for _, got := range []*int32{run.ExitCode, attempt.ExitCode} {
				if c.code < 0 && got != nil || c.code >= 0 && (got == nil || *got != c.code) {
					t.Errorf("code %v, want %d", got, c.code)
				}
			}
			if run.GetPlacement() != nil || run.GetEndedAt() < run.GetStartedAt() || attempt.GetStatus() != c.status || attempt.GetEndedAt() == 0 {
				t.Errorf("ended badly: %v", run)
			}
		})
	}
}

func TestOutcomeOfAStartThatIsNotKnownFollowsTheWish(t *testing.T) {
	for _, c := range []struct {
		name    string
		wish    *recordv1.Wish
		status  recordv1.Status
		reason  recordv1.Reason
		message string
	}{
		{"no wish", nil, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_UNKNOWN, "it may have run"},
		{"canceled", &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: "ann"}, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, "canceled by ann; it is not known whether the command was started"},
		{"timed out", &recordv1.Wish{Reason: recordv1.Reason_REASON_TIMEOUT}, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, "the timeout of 1m has passed; it is not known whether the command was started"},
		{"past its start deadline", &recordv1.Wish{Reason: recordv1.Reason_REASON_START_DEADLINE}, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_UNKNOWN, "it may have run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := inPhase(placed)
			s.run.Wish = c.wish
			exit := &recordv1.Exit{Reason: recordv1.Reason_REASON_START_UNKNOWN, Message: "it may have run"}
			run := decide(at(time.Second), s, exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: exit}}).run
			if run.GetStatus() != c.status || run.GetReason() != c.reason || run.GetMessage() != c.message || run.ExitCode != nil {
				t.Errorf("got %v", run)
			}
		})
	}
}

func TestLogOfAnEndSpeaksTheContractsWords(t *testing.T) {
	code := int32(0)
	for _, c := range []struct {
		run  *recordv1.Run
		want string
	}{
		{&recordv1.Run{Status: recordv1.Status_STATUS_SUCCEEDED, ExitCode: &code}, "[status SUCCEEDED code 0]"},
		{
			&recordv1.Run{Status: recordv1.Status_STATUS_FAILED, Reason: recordv1.Reason_REASON_SANDBOX_LOST, Message: "gone"},
			"[status FAILED reason SANDBOX_LOST message gone]",
		},
	} {
		if got := fmt.Sprint(endFields(c.run)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestStartDeadline(t *testing.T) {
	past := at(300 * time.Second)
	unhealthy := past
	unhealthy.WallHealthy = false
	held := func(reason recordv1.Reason, message string) snapshot {
		s := inPhase(waiting)
		s.run.HoldReason, s.run.HoldMessage = reason, message
		return s
	}
	wished := inPhase(placed)
	wished.run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_START_DEADLINE}
	cases := []struct {
		name    string
		now     actors.Instant
		s       snapshot
		r       request
		change  change
		status  recordv1.Status
		reason  recordv1.Reason
		message string
	}{
		{"nothing held it back", past, inPhase(waiting), wake{}, changeEnd, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_START_DEADLINE, "not started within 5m"},
		{"the last cause", past, held(recordv1.Reason_REASON_IMAGE_PULL, "node n1: registry away"), wake{}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_IMAGE_PULL, "not started within 5m: node n1: registry away"},
		{"no room", past, held(0, "node n1: no room"), wake{}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_DEADLINE, "not started within 5m: node n1: no room"},
		{"a millisecond early", at(300*time.Second - time.Millisecond), inPhase(waiting), wake{}, changeNothing, 0, 0, ""},
		{"by a clock that is not healthy", unhealthy, inPhase(waiting), wake{}, changeNothing, 0, 0, ""},
		{"a reservation comes too late", past, inPhase(waiting), requestOf(onGranted), changeEnd, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_START_DEADLINE, "not started within 5m"},
		{"placed", past, inPhase(placed), wake{}, changeWish, recordv1.Status_STATUS_PENDING, 0, ""},
		{"placed, by a clock that is not healthy", unhealthy, inPhase(placed), wake{}, changeNothing, 0, 0, ""},
		{"then void with a cause", past, wished, requestOf(onVoided), changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_IMAGE_PULL, "not started within 5m: node n1: registry away"},
		{"then started", past, wished, requestOf(onStarted), changeUpdate, recordv1.Status_STATUS_RUNNING, 0, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := decide(c.now, c.s, c.r)
			if d.change != c.change || d.run.GetStatus() != c.status || d.run.GetReason() != c.reason || d.run.GetMessage() != c.message {
				t.Errorf("got %d %s %s %q", d.change, d.run.GetStatus(), d.run.GetReason(), d.run.GetMessage())
			}
			if d.change == changeWish && d.assignment.GetDesired() != recordv1.Desired_DESIRED_STOP_IF_NOT_STARTED {
				t.Errorf("desired %s", d.assignment.GetDesired())
			}
			if d.run.GetStatus() == recordv1.Status_STATUS_RUNNING && d.run.GetWish() != nil {
				t.Error("the wish outlived the start")
			}
		})
	}
}

func TestVoidOfTheCurrentPlacement(t *testing.T) {
	wish := func(reason recordv1.Reason) *recordv1.Wish { return &recordv1.Wish{Reason: reason, By: "ann"} }
	cases := []struct {
		name    string
		wish    *recordv1.Wish
		void    *recordv1.Void
		change  change
		status  recordv1.Status
		reason  recordv1.Reason
		message string
		hold    string
	}{
		{"transient", nil, &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "registry away"}, changeUnplace, recordv1.Status_STATUS_PENDING, 0, "", "node n1: registry away"},
		{"without a reason", nil, &recordv1.Void{Message: "no room"}, changeUnplace, recordv1.Status_STATUS_PENDING, 0, "", "node n1: no room"},
		{"without words", nil, &recordv1.Void{}, changeUnplace, recordv1.Status_STATUS_PENDING, 0, "", ""},
		{"permanent", nil, &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_NOT_FOUND, Message: "no such image: x", Permanent: true}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_IMAGE_NOT_FOUND, "no such image: x", ""},
		{"permanent without a reason", nil, &recordv1.Void{Permanent: true}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_ERROR, "the command could not be started", ""},
		{"permanent and canceled", wish(recordv1.Reason_REASON_CANCELED), &recordv1.Void{Reason: recordv1.Reason_REASON_NOT_FOUND, Permanent: true}, changeEnd, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, "canceled by ann before the command was started", ""},
		{"canceled", wish(recordv1.Reason_REASON_CANCELED), &recordv1.Void{Reason: recordv1.Reason_REASON_CANCELED, Message: "stopped"}, changeEnd, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, "canceled by ann before the command was started", ""},
		{"canceled by nobody known", &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED}, &recordv1.Void{}, changeEnd, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, "canceled before the command was started", ""},
		{"start deadline, the echo of the wish", wish(recordv1.Reason_REASON_START_DEADLINE), &recordv1.Void{Reason: recordv1.Reason_REASON_START_DEADLINE, Message: "stopped"}, changeEnd, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_START_DEADLINE, "not started within 5m", ""},
		{"start deadline, what held it up", wish(recordv1.Reason_REASON_START_DEADLINE), &recordv1.Void{Message: "still creating the sandbox after 5m0s"}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_START_DEADLINE, "not started within 5m: node n1: still creating the sandbox after 5m0s", ""},
		{"start deadline, the last cause", wish(recordv1.Reason_REASON_START_DEADLINE), &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "still pulling image x"}, changeEnd, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_IMAGE_PULL, "not started within 5m: node n1: still pulling image x", ""},
		{"canceled, what held it up", wish(recordv1.Reason_REASON_CANCELED), &recordv1.Void{Message: "still creating the sandbox after 5m0s"}, changeEnd, recordv1.Status_STATUS_CANCELED, recordv1.Reason_REASON_CANCELED, "canceled by ann before the command was started", ""},
		{"timeout", wish(recordv1.Reason_REASON_TIMEOUT), &recordv1.Void{}, changeEnd, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, "the timeout of 1m has passed", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := inPhase(placed)
			s.run.Wish = c.wish
			d := decide(at(time.Second), s, voided{&actorv1.Voided{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Void: c.void}})
			run := d.run
			if d.change != c.change || run.GetStatus() != c.status || run.GetReason() != c.reason || run.GetMessage() != c.message || run.GetHoldMessage() != c.hold {
				t.Errorf("got %d %v", d.change, run)
			}
			if run.ExitCode != nil || run.GetPlacement() != nil || namesOf(d) != "Ack" || d.node != "n1" {
				t.Errorf("%v, effects %s", run, namesOf(d))
			}
		})
	}
}

func TestCancelOfAPlacementWhoseAssignmentIsGoneMakesNoOther(t *testing.T) {
	s := inPhase(running)
	s.assignment = nil
	d := decide(at(time.Second), s, requestOf(onCancel))
	if d.change != changeUpdate || d.assignment != nil || d.run.GetWish() == nil || namesOf(d) != "Stop RECORDED" {
		t.Errorf("%d %v %s", d.change, d.run, namesOf(d))
	}
}

func TestOldMessagesChangeNothing(t *testing.T) {
	for p := placed; p <= running; p++ {
		for _, r := range []request{
			voided{&actorv1.Voided{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Void: &recordv1.Void{Permanent: true}}},
			started{&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1"}},
			granted{node: "n1", attempt: 1, placement: 1},
			refused{attempt: 1, placement: 1, permanent: recordv1.Reason_REASON_START_ERROR},
		} {
			if d := decide(at(time.Second), inPhase(p), r); d.change != changeNothing {
				t.Errorf("%s %s: change %d", p, r.column(), d.change)
			}
		}
		d := decide(at(time.Second), inPhase(p), exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(7)}})
		if d.change != changeUpdate || d.run.GetStatus() != inPhase(p).run.GetStatus() || len(d.run.GetLateExits()) != 1 {
			t.Errorf("%s: late exit: %d %v", p, d.change, d.run)
		}
	}
}

func TestWords(t *testing.T) {
	memory := func(bytes int64) string {
		return memoryOf(&recordv1.Run{Spec: &recordv1.Spec{MemoryBytes: bytes}})
	}
	many := make([]refusal, refusalsShown+2)
	for i := range many {
		many[i] = refusal{node: "n", message: "no"}
	}
	cases := map[string]string{
		span(5 * time.Minute):      "5m",
		span(2 * time.Hour):        "2h",
		span(90 * time.Second):     "1m30s",
		span(0):                    "0s",
		span(10 * time.Second):     "10s",
		memory(0):                  "",
		memory(2 << 30):            " of 2 GiB",
		memory(64 << 20):           " of 64 MiB",
		memory(1000):               " of 1000 B",
		refusalsText(many[:2]):     "node n: no; node n: no",
		refusalsText(many):         "node n: no; node n: no; node n: no; node n: no; node n: no; and 2 more",
		refusalsText(nil):          noNodes,
		silentNode(reserveTimeout): "no answer within 2s",
	}
	for got, want := range cases {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAVoidSaysHowLongAnotherTryIsOfNoUse(t *testing.T) {
	for _, c := range []struct {
		name  string
		after int64 // milliseconds
		voids int32
		want  time.Duration
	}{
		{"nothing", 0, 0, time.Second},
		{"longer than the backoff", 7_000, 0, 7 * time.Second},
		{"shorter than the backoff", 7_000, 4, 16 * time.Second},
		{"longer than any backoff", 3_600_000, 0, 30 * time.Second},
		{"a number that can not be", math.MaxInt64, 0, time.Second},
		{"below 0", -5, 0, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := inPhase(placed)
			s.run.Voids = c.voids
			d := decide(at(time.Second), s, voided{&actorv1.Voided{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Void: &recordv1.Void{
				Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "slow down", RetryAfterMs: c.after,
			}}})
			if got := untilNotBefore(at(time.Second), d.run); got < c.want || got > c.want+time.Millisecond {
				t.Errorf("waits %s, want %s", got, c.want)
			}
		})
	}
}
