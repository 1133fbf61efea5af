package run

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// ms is a moment of the tests, in milliseconds after their epoch.
func ms(d time.Duration) int64 { return epoch.Add(d).UnixMilli() }

// endedRun is one whose only attempt ended a second after its start, two before the
// question.
func endedRun(reason recordv1.Reason, change ...func(run *recordv1.Run, attempt *recordv1.Attempt)) *recordv1.Run {
	run := inPhase(running).run
	attempt := run.GetAttempts()[0]
	run.Placement = nil
	run.Status, run.Reason, run.EndedAt = recordv1.Status_STATUS_FAILED, reason, ms(time.Second)
	attempt.Status, attempt.Reason, attempt.EndedAt, attempt.PlacedAt, attempt.LogComplete = run.GetStatus(), reason, ms(time.Second), ms(0), true
	for _, f := range change {
		f(run, attempt)
	}
	return run
}

func withCode(code, signal int32) func(*recordv1.Run, *recordv1.Attempt) {
	return func(run *recordv1.Run, attempt *recordv1.Attempt) {
		run.ExitCode, attempt.ExitCode, attempt.Signal = &code, proto.Int32(code), signal
	}
}

// TestEveryReasonHasASentenceOfItsOwn: also where the record has no message.
func TestEveryReasonHasASentenceOfItsOwn(t *testing.T) {
	reasons := recordv1.Reason(0).Descriptor().Values()
	seen := map[string]recordv1.Reason{}
	for i := range reasons.Len() {
		reason := recordv1.Reason(reasons.Get(i).Number())
		if reason == recordv1.Reason_REASON_UNSPECIFIED {
			continue
		}
		t.Run(records.Word(reason), func(t *testing.T) {
			text := reasonText(reason)
			if text == "" || seen[text] != 0 {
				t.Fatalf("the sentence is %q, as that of %v", text, seen[text])
			}
			seen[text] = reason
			run := endedRun(reason)
			causes := Why(epoch.Add(3*time.Second), run, Unrecorded{})
			at := slices.IndexFunc(causes, func(c Cause) bool { return c.Code == CauseCode(records.Word(reason)) })
			if at < 0 || causes[at].Text != "attempt 1 on node n1: "+text {
				t.Errorf("why: %+v", causes)
			}
			if causes[0].Code != CauseFinished || !strings.Contains(causes[0].Text, records.Word(reason)) {
				t.Errorf("it begins with %+v", causes[0])
			}
			events, _ := History(run)
			if last := events[len(events)-1]; !strings.Contains(last.Text, records.Word(reason)) {
				t.Errorf("the history ends with %+v", last)
			}
			run.Message = "what was seen of it"
			if causes = Why(epoch.Add(3*time.Second), run, Unrecorded{}); !slices.ContainsFunc(causes, func(c Cause) bool { return strings.HasSuffix(c.Text, run.GetMessage()) }) {
				t.Errorf("the message is not told: %+v", causes)
			}
		})
	}
}

// whyCases are a run, what was said of it, and what it is explained by three seconds
// after the tests' epoch.
func whyCases() []whyCase {
	owner := func(change func(*actorv1.Explained)) Unrecorded {
		said := &actorv1.Explained{Active: true, Attempt: 1}
		change(said)
		return Unrecorded{Owner: said}
	}
	node := func(step actorv1.Step, change ...func(*actorv1.PlacementStep)) Unrecorded {
		at := &actorv1.PlacementStep{Attempt: 1, Placement: 2, Step: step}
		for _, f := range change {
			f(at)
		}
		return Unrecorded{Owner: &actorv1.Explained{Active: true, Attempt: 1}, Node: &actorv1.Described{Node: "n1", Placement: at}}
	}
	in := func(p phase, change ...func(*recordv1.Run)) *recordv1.Run {
		run := inPhase(p).run
		if run.GetPlacement() != nil {
			run.Placement.PlacedAt = ms(time.Second)
		}
		for _, f := range change {
			f(run)
		}
		return run
	}
	canceled := &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: "ann", At: ms(2 * time.Second)}
	return slices.Concat(whyWaiting(in, owner), whyPlaced(in, node, canceled), whyEnded())
}

type whyCase struct {
	name string
	run  *recordv1.Run
	seen Unrecorded
	// want are the code and the text of each cause after the first.
	want []string
}

func whyWaiting(in func(phase, ...func(*recordv1.Run)) *recordv1.Run, owner func(func(*actorv1.Explained)) Unrecorded) []whyCase {
	const deadline = "START_DEADLINE_AT it fails unless it is started within 4m57s"
	return []whyCase{
		{"its owner does not answer", in(waiting), Unrecorded{}, []string{"OWNER_SILENT the run's owner did not answer: nothing is known beyond the record", deadline}},
		{"a node is asked", in(waiting), owner(func(o *actorv1.Explained) { o.Asking, o.Candidates = "n2", 3 }), []string{"ASKING node n2 is being asked, one of 3", deadline}},
		{
			"nodes have refused", in(waiting), owner(func(o *actorv1.Explained) {
				o.Refusals = []*actorv1.Refusal{{Node: "n1", Message: "no room: 8 of 8 sandboxes in use"}, {Node: "n2", Message: "no answer within 2s"}}
				o.RefusedAgoMs, o.AskAgainMs = 500, 1500
			}),
			[]string{"REFUSED node n1 said no: no room: 8 of 8 sandboxes in use", "REFUSED node n2 said no: no answer within 2s", "ASKED_AGAIN nodes are asked again in 1.5s", deadline},
		},
		{
			"nodes have lost score", in(waiting), owner(func(o *actorv1.Explained) {
				for i := range 5 {
					o.LostScore = append(o.LostScore, &actorv1.LostScore{Node: "n" + strconv.Itoa(i), Runs: int32(i) + 1, Cause: "START_ERROR: no room", SinceMs: 1000, UntilMs: 9000})
				}
			}),
			[]string{
				deadline,
				"NODE_LOST_SCORE node n0 comes behind the others: it could not start another run, the last 1s ago (START_ERROR: no room); that is forgotten in 9s unless more follow",
				"NODE_LOST_SCORE node n1 comes behind the others: it could not start 2 other runs, the last 1s ago (START_ERROR: no room); that is forgotten in 9s unless more follow",
				"NODE_LOST_SCORE node n2 comes behind the others: it could not start 3 other runs, the last 1s ago (START_ERROR: no room); that is forgotten in 9s unless more follow",
				"NODE_LOST_SCORE node n3 comes behind the others: it could not start 4 other runs, the last 1s ago (START_ERROR: no room); that is forgotten in 9s unless more follow",
				"NODE_LOST_SCORE 1 more nodes come behind the others",
			},
		},
		{
			"many nodes have refused", in(waiting), owner(func(o *actorv1.Explained) {
				for i := range 7 {
					o.Refusals = append(o.Refusals, &actorv1.Refusal{Node: "n" + strconv.Itoa(i), Message: "draining"})
				}
			}),
			[]string{"REFUSED node n0 said no: draining", "REFUSED node n1 said no: draining", "REFUSED node n2 said no: draining", "REFUSED node n3 said no: draining", "REFUSED 3 more nodes said no", deadline},
		},
		{
			"a pull has failed and is tried again", in(waiting, func(r *recordv1.Run) {
				r.NotBefore, r.HoldReason = ms(7*time.Second), recordv1.Reason_REASON_IMAGE_PULL
				r.HoldMessage = "node n1: pull image registry.example/a:1: 503 Service Unavailable"
			}),
			owner(func(*actorv1.Explained) {}),
			[]string{"BACKOFF it is not placed before 4s have passed: node n1: pull image registry.example/a:1: 503 Service Unavailable", deadline},
		},
		{
			"what held it up is over", in(waiting, func(r *recordv1.Run) { r.HoldMessage = "node n1: draining" }), owner(func(*actorv1.Explained) {}),
			[]string{"HELD_UP what held it up last: node n1: draining", deadline},
		},
		{
			"another attempt", in(waiting, func(r *recordv1.Run) {
				r.Attempt, r.NotBefore, r.AttemptQueuedAt = 2, ms(13*time.Second), ms(13*time.Second)
				r.Attempts = []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 1, Status: recordv1.Status_STATUS_FAILED, Reason: recordv1.Reason_REASON_EXIT_CODE, ExitCode: proto.Int32(7), EndedAt: ms(time.Second)}}
			}),
			owner(func(o *actorv1.Explained) { o.Attempt = 2 }),
			[]string{"BACKOFF it is not placed before 10s have passed: the wait before attempt 2", "START_DEADLINE_AT it fails unless it is started within 5m10s", "ATTEMPT_ENDED attempt 1 on node n1: exit code 7"},
		},
		{"the store fails", in(waiting), owner(func(o *actorv1.Explained) { o.StoreFailures = 3 }), []string{"STORE_FAILING the store has failed 3 times in a row", deadline}},
		{
			"the node takes no runs", in(waiting),
			Unrecorded{Unready: "no space", UnreadyNode: "n1"},
			[]string{"NODE_UNREADY node n1 takes no runs: no space", "OWNER_SILENT the run's owner did not answer: nothing is known beyond the record", deadline},
		},
		{
			"past its start deadline", in(waiting, func(r *recordv1.Run) { r.Spec.StartDeadlineMs = 2000 }), owner(func(*actorv1.Explained) {}),
			[]string{"START_DEADLINE_AT its start deadline passed 1s ago"},
		},
	}
}

func whyPlaced(in func(phase, ...func(*recordv1.Run)) *recordv1.Run, node func(actorv1.Step, ...func(*actorv1.PlacementStep)) Unrecorded, canceled *recordv1.Wish) []whyCase {
	const deadline, timeout = "START_DEADLINE_AT it fails unless it is started within 4m57s", "TIMEOUT_AT it is stopped unless it ends within 57s: its timeout is 1m"
	pulling := node(actorv1.Step_STEP_CREATING, func(s *actorv1.PlacementStep) { s.Image, s.SinceMs = "busybox:1", 1200 })
	pulling.Pull = "3 MiB of 40.5 MiB are here, 1.5 KiB/s"
	gone := node(actorv1.Step_STEP_RUNNING)
	gone.Owner.NodeGone, gone.Owner.LostInMs, gone.Node = true, 31_000, nil
	gone.Owner.GoneAttempt, gone.Owner.GonePlacement = 1, 2
	overtaken := node(actorv1.Step_STEP_RUNNING)
	overtaken.Owner.NodeGone, overtaken.Owner.LostInMs, overtaken.Node = true, 31_000, nil
	overtaken.Owner.GoneAttempt, overtaken.Owner.GonePlacement = 1, 1
	wish := func(r *recordv1.Run) { r.Wish = canceled }
	stopped := func(signals ...*recordv1.SentSignal) Unrecorded {
		return node(actorv1.Step_STEP_STOPPING, func(s *actorv1.PlacementStep) { s.Signals, s.StopGraceMs = signals, 10_000 })
	}
	term := &recordv1.SentSignal{Signal: 15, At: ms(2500 * time.Millisecond), Delivered: proto.Bool(true), Cause: recordv1.StopCause_STOP_CAUSE_CANCEL}
	kill := &recordv1.SentSignal{Signal: 9, At: ms(2500 * time.Millisecond), Cause: recordv1.StopCause_STOP_CAUSE_CANCEL}
	return []whyCase{
		{"its node is silent", in(placed), Unrecorded{}, []string{"NODE_SILENT node n1 did not answer", deadline}},
		{
			"its node is silent and it waits for it", in(running, func(r *recordv1.Run) {
				r.Spec.Retry = &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT}
			}), Unrecorded{}, []string{
				"NODE_SILENT node n1 did not answer",
				"WAITS_FOR_NODE it asked to wait for its node, however long that is away: what runs there goes on, and nobody else takes the run; if its machine is dead for good, errand node rm n1 --i-know-it-is-dead ends it", timeout,
			},
		},
		{"its node knows nothing", in(placed), Unrecorded{Node: &actorv1.Described{Node: "n1"}}, []string{"NODE_UNAWARE node n1 does not know of this placement yet, or not any more", deadline}},
		{
			"its start waits for others", in(placed), node(actorv1.Step_STEP_QUEUED, func(s *actorv1.PlacementStep) { s.StartsInFlight = 4 }),
			[]string{"START_QUEUED its sandbox waits for its turn: node n1 is making 4 others", deadline},
		},
		{"its sandbox is made", in(placed), node(actorv1.Step_STEP_CREATING, func(s *actorv1.PlacementStep) { s.SinceMs = 400 }), []string{"CREATING node n1 makes its sandbox, for 400ms", deadline}},
		{"its image is pulled", in(placed), pulling, []string{"PULLING node n1 pulls image busybox:1: 3 MiB of 40.5 MiB are here, 1.5 KiB/s, for 1.2s", deadline}},
		{"its command is started", in(placed), node(actorv1.Step_STEP_STARTING), []string{"STARTING node n1 starts its command", deadline}},
		{
			"canceled before the start", in(placed, wish), node(actorv1.Step_STEP_CREATING),
			[]string{"STOP_ASKED ann canceled it, 1s ago", "CREATING node n1 makes its sandbox", deadline},
		},
		{"an owner that was overtaken speaks of an earlier placement", in(running), overtaken, []string{"NODE_SILENT node n1 did not answer", timeout}},
		{"its session is over", in(running), gone, []string{
			"NODE_GONE the session of node n1 is over: in 31s the attempt is lost, unless the node has told by then how it ended", "NODE_SILENT node n1 did not answer", timeout,
		}},
		{"it runs", in(running), node(actorv1.Step_STEP_RUNNING), []string{timeout}},
		{"past its timeout", in(running, func(r *recordv1.Run) { r.Spec.TimeoutMs, r.OverdueAt = 1000, ms(2*time.Second) }), node(actorv1.Step_STEP_RUNNING), []string{
			"OVERDUE " + overdueText, "TIMEOUT_AT its timeout of 1s passed 2s ago",
		}},
		{"about to be stopped", in(running, wish), stopped(), []string{"STOP_ASKED ann canceled it, 1s ago", "STOPPING node n1 is about to stop it"}},
		{"stopped by TERM", in(running, wish), stopped(term), []string{
			"STOP_ASKED ann canceled it, 1s ago", "SIGNAL_SENT node n1 sent 15 (TERM) because the run was canceled, 500ms ago", "KILL_AT it is killed unless it ends within 9.5s: its stop grace is 10s",
		}},
		{"stopped by KILL", in(running, wish), stopped(term, kill), []string{
			"STOP_ASKED ann canceled it, 1s ago", "SIGNAL_SENT node n1 sent 9 (KILL) because the run was canceled; it is not known whether it reached the command, 500ms ago",
		}},
		{"its rest is ended", in(running), node(actorv1.Step_STEP_EMPTYING), []string{"EMPTYING its command has ended; node n1 ends what is left of it and completes its log", timeout}},
		{"its end is told", in(running), node(actorv1.Step_STEP_REPORTING), []string{"REPORTING node n1 knows how it ended and tells its owner", timeout}},
		{"its end is in quarantine", in(running), node(actorv1.Step_STEP_QUARANTINED), []string{"REPORTING node n1 knows how it ended and was told that nobody knows the run", timeout}},
	}
}

func whyEnded() []whyCase {
	const none = "NOT_RETRIED not tried again: it asked for no retries"
	cases := []whyCase{
		{"succeeded", endedRun(0, withCode(0, 0), func(r *recordv1.Run, _ *recordv1.Attempt) { r.Status = recordv1.Status_STATUS_SUCCEEDED }), Unrecorded{}, []string{"EXITED attempt 1 on node n1: exit code 0"}},
		{"by a code", endedRun(recordv1.Reason_REASON_EXIT_CODE, withCode(7, 0), says("exit code 7")), Unrecorded{}, []string{"EXIT_CODE attempt 1 on node n1: exit code 7", none}},
		{
			"by a signal of its own", endedRun(recordv1.Reason_REASON_SIGNAL, withCode(134, 6), says("killed by signal 6")),
			Unrecorded{},
			[]string{"SIGNAL attempt 1 on node n1: killed by signal 6; exit code 134", "ENDED_BY_SIGNAL signal 6 (ABRT) was not the engine's: the command sent it to itself, or another process or the kernel did", none},
		},
		{
			"out of memory", endedRun(recordv1.Reason_REASON_OOM_KILLED, withCode(137, 9), says("killed by signal 9 after the memory limit of 64 MiB was reached"), func(_ *recordv1.Run, a *recordv1.Attempt) {
				a.OomKilled, a.MemoryPeakBytes = true, 64<<20-1
			}),
			Unrecorded{},
			[]string{
				"OOM_KILLED attempt 1 on node n1: killed by signal 9 after the memory limit of 64 MiB was reached; exit code 137", "ENDED_BY_SIGNAL signal 9 (KILL) was the kernel's, for want of memory",
				"MEMORY processes of it were killed for want of memory: its limit is 64 MiB, the most that it used was 63.9 MiB", none,
			},
		},
		{
			"a child out of memory", endedRun(recordv1.Reason_REASON_EXIT_CODE, withCode(9, 0), says("exit code 9; the kernel killed a process of it for want of memory"), func(_ *recordv1.Run, a *recordv1.Attempt) {
				a.MemoryPeakBytes = 64 << 20
			}),
			Unrecorded{},
			[]string{
				"EXIT_CODE attempt 1 on node n1: exit code 9; the kernel killed a process of it for want of memory",
				"MEMORY processes of it were killed for want of memory: its limit is 64 MiB, the most that it used was 64 MiB", none,
			},
		},
		{
			"by its timeout", endedRun(recordv1.Reason_REASON_TIMEOUT, withCode(143, 15), says("the timeout of 1m has passed"), func(r *recordv1.Run, a *recordv1.Attempt) {
				r.Status, a.Status = recordv1.Status_STATUS_TIMED_OUT, recordv1.Status_STATUS_TIMED_OUT
				a.Signals = []*recordv1.SentSignal{{Signal: 15, At: ms(time.Second), Delivered: proto.Bool(true), Cause: recordv1.StopCause_STOP_CAUSE_TIMEOUT}}
				a.Leftover, a.LogComplete = true, false
			}),
			Unrecorded{},
			[]string{
				"TIMEOUT attempt 1 on node n1: the timeout of 1m has passed; exit code 143", "ENDED_BY_SIGNAL signal 15 (TERM) was the engine's: its timeout has passed", none,
				"LEFTOVER processes that its command had left behind were killed", "LOG_INCOMPLETE its log is not known to be complete",
			},
		},
		{
			"with a log that its disk did not take", endedRun(recordv1.Reason_REASON_EXIT_CODE, withCode(9, 0), func(_ *recordv1.Run, a *recordv1.Attempt) {
				a.LogComplete, a.LogUnwritten = false, true
			}),
			Unrecorded{},
			[]string{"EXIT_CODE attempt 1 on node n1: the command ended with another exit code than 0; exit code 9", none, "LOG_INCOMPLETE output is missing from its log: the disk of the logs did not take it"},
		},
	}
	return append(cases, whyLost()...)
}

func says(text string) func(*recordv1.Run, *recordv1.Attempt) {
	return func(run *recordv1.Run, _ *recordv1.Attempt) { run.Message = text }
}

func whyLost() []whyCase {
	const none = "NOT_RETRIED not tried again: it asked for no retries"
	safe := func(by recordv1.SafeBy) func(*recordv1.Run, *recordv1.Attempt) {
		return func(_ *recordv1.Run, a *recordv1.Attempt) { a.SafeAt, a.SafeBy = ms(2*time.Second), by }
	}
	late := func(r *recordv1.Run, _ *recordv1.Attempt) {
		r.LateExits = []*recordv1.LateExit{{Attempt: 1, Placement: 2, At: ms(2 * time.Second), Exit: &recordv1.Exit{Code: proto.Int32(3)}}}
	}
	return []whyCase{
		{
			"its sandbox was lost", endedRun(recordv1.Reason_REASON_SANDBOX_LOST, safe(recordv1.SafeBy_SAFE_BY_EMPTY)),
			Unrecorded{},
			[]string{"SANDBOX_LOST attempt 1 on node n1: the sandbox was lost and nobody saw the command end", "SAFE_POINT no copy of attempt 1 can be running from here on: its node found its cgroup empty, 1s ago", none},
		},
		{
			"its node was lost, and told late", endedRun(recordv1.Reason_REASON_NODE_LOST, safe(recordv1.SafeBy_SAFE_BY_FENCE), late, func(r *recordv1.Run, _ *recordv1.Attempt) {
				r.Spec.Retry = &recordv1.Retry{Retries: 2, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL}
			}),
			Unrecorded{},
			[]string{
				"NODE_LOST attempt 1 on node n1: the node was lost",
				"SAFE_POINT no copy of attempt 1 can be running from here on: its node's session was seen to be over, and the time has passed within which a node without one stops all that it runs, 1s ago",
				"NOT_RETRIED not tried again: it asked that a lost attempt is not followed by another",
				"LATE_EXIT attempt 1: its node told late how it had ended: exit code 3, which no longer counts",
			},
		},
		{
			"an end of an earlier version", endedRun(recordv1.Reason_REASON_NODE_FENCED),
			Unrecorded{},
			[]string{"NODE_FENCED attempt 1 on node n1: the node had lost its session and stopped what it ran", "SAFE_POINT_UNKNOWN no moment is recorded from which on no copy of attempt 1 can be running", none},
		},
		{
			"its retries are spent", endedRun(recordv1.Reason_REASON_EXIT_CODE, withCode(7, 0), says("exit code 7"), func(r *recordv1.Run, a *recordv1.Attempt) {
				r.Spec.Retry = &recordv1.Retry{Retries: 1}
				before := proto.CloneOf(a)
				r.Attempt, a.Number = 2, 2
				r.Attempts = []*recordv1.Attempt{before, a}
			}),
			Unrecorded{},
			[]string{"EXIT_CODE attempt 2 on node n1: exit code 7", "RETRIES_SPENT not tried again: 1 of 1 retries are spent", "ATTEMPT_ENDED attempt 1 on node n1: exit code 7"},
		},
		{
			"a cancel that came too late", endedRun(0, withCode(0, 0), func(r *recordv1.Run, _ *recordv1.Attempt) {
				r.Status, r.Wish = recordv1.Status_STATUS_SUCCEEDED, &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: "ann", At: ms(2 * time.Second)}
			}),
			Unrecorded{},
			[]string{"EXITED attempt 1 on node n1: exit code 0", "STOP_ASKED ann canceled it, 1s ago; that did not decide the outcome"},
		},
	}
}

func TestWhySaysWhereARunIsAndWhy(t *testing.T) {
	for _, c := range whyCases() {
		t.Run(c.name, func(t *testing.T) {
			causes := Why(epoch.Add(3*time.Second), c.run, c.seen)
			if len(causes) == 0 || causes[0].Code != firstCauses[phaseOf(c.run)] {
				t.Fatalf("it begins with %+v", causes)
			}
			var got []string
			for _, cause := range causes[1:] {
				got = append(got, string(cause.Code)+" "+cause.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("why:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
}

// TestEveryCauseCodeIsSeen keeps the cases whole: no code is declared that none has.
func TestEveryCauseCodeIsSeen(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "why.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "CauseCode" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, text)
		}
		return true
	})
	seen := map[string]bool{}
	for _, c := range whyCases() {
		for _, cause := range Why(epoch.Add(3*time.Second), c.run, c.seen) {
			seen[string(cause.Code)] = true
		}
	}
	for _, code := range declared {
		if !seen[code] {
			t.Errorf("no case has %s", code)
		}
	}
	if len(declared) < 30 {
		t.Errorf("only %d codes are declared: %v", len(declared), declared)
	}
}
