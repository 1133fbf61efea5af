package check_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
)

const one, two = "r.app.one", "r.app.two"

var keys = records.Keys{Root: records.RootDefault, Shards: 4}

type grant struct {
	run                string
	attempt, placement int32
}

// script writes a history by hand, and the store that belongs to it.
type script struct {
	// session is the one that runs are placed in, the first when 0.
	session  int64
	set      *check.Set
	now      time.Duration
	step     uint64
	revision int64
	store    map[string]records.KV
	call     uint64
	// tokens are those of placements, by run and number of placement; token is that of
	// the next command instead, unless it is 0.
	tokens map[grant]uint64
	token  uint64
}

func newScript(more ...func(*check.Config)) *script {
	config := check.Config{Keys: keys, Session: nodes.DefaultSession()}
	for _, each := range more {
		each(&config)
	}
	return &script{set: check.New(config), store: map[string]records.KV{}, tokens: map[grant]uint64{}, revision: 1}
}

func (s *script) add(e history.Event) {
	s.now += time.Millisecond
	s.step++
	e.At, e.Step = s.now, s.step
	s.set.Observe(e)
}

func (s *script) wait(d time.Duration) { s.now += d }

// commit carries a transaction out without looking at its conditions.
func (s *script) commit(ops ...records.Op) {
	s.revision++
	commit := history.Commit{Revision: s.revision}
	for _, op := range ops {
		change := history.Change{Key: op.Key}
		if before, ok := s.store[op.Key]; ok {
			change.Before = &before
		}
		switch op.Kind {
		case records.OpPut:
			after := records.KV{Key: op.Key, Value: op.Value, Create: s.revision, Mod: s.revision}
			if change.Before != nil {
				after.Create = change.Before.Create
			}
			change.After = &after
			s.store[op.Key] = after
		case records.OpDelete:
			delete(s.store, op.Key)
		}
		if change.Before != nil || change.After != nil {
			commit.Changes = append(commit.Changes, change)
		}
	}
	s.add(history.Event{Kind: history.KindCommit, Detail: commit})
}

func (s *script) record(id string) *recordv1.Run {
	run, err := records.DecodeRun(s.store[keys.Run(id)])
	if err != nil {
		panic(err)
	}
	return run
}

func (s *script) create(id string) { s.createToRetry(id, nil) }

func (s *script) createToRetry(id string, retry *recordv1.Retry) {
	run := &recordv1.Run{
		Id: id, App: "app", Status: recordv1.Status_STATUS_PENDING, Attempt: 1, QueuedAt: 1, CreatedAt: 1,
		Spec: &recordv1.Spec{TimeoutMs: 60_000, StopGraceMs: 10_000, StartDeadlineMs: 300_000, Retry: retry},
	}
	s.commit(keys.Create(run, 0).Then...)
}

// update changes a record by hand.
func (s *script) update(id string, change func(*recordv1.Run)) {
	run := s.record(id)
	change(run)
	s.commit(keys.Update(run, 1, 0).Then...)
}

func (s *script) place(id, node string) {
	run := s.record(id)
	run.Placements++
	run.Placement = &recordv1.Placement{Node: node, Session: cmp.Or(s.session, 1), Number: run.GetPlacements()}
	run.Writer = "n9/1/1"
	run.Attempts = append(run.Attempts, &recordv1.Attempt{Number: run.GetAttempt(), Node: node, Placement: run.GetPlacements()})
	s.commit(keys.Place(run, 1, 0, &recordv1.Assignment{Run: id, Attempt: run.GetAttempt(), Placement: run.GetPlacements(), Session: cmp.Or(s.session, 1)}).Then...)
	s.tokens[grant{id, run.GetAttempt(), run.GetPlacements()}] = records.FencingTokenOf(0, s.revision)
}

func (s *script) start(id, node string, attempt, placement int32) {
	token := s.token
	if token == 0 {
		token = s.tokens[grant{id, attempt, placement}]
	}
	s.add(history.Event{
		Kind: history.KindCommand, Node: node, Run: id, Attempt: attempt, Placement: placement,
		Detail: history.Command{Started: true, Token: token},
	})
}

// startUnknown is the answer to a start that nobody knows of.
func (s *script) startUnknown(id, node string) {
	s.add(history.Event{Kind: history.KindSandbox, Node: node, Run: id, Attempt: 1, Placement: 1, Detail: history.StartUnknown{}})
}

func (s *script) running(id string) {
	s.update(id, func(run *recordv1.Run) { run.Status, run.StartedAt = recordv1.Status_STATUS_RUNNING, 2 })
}

func (s *script) exit(id, node string, attempt, placement, code int32, cause string) {
	s.add(history.Event{
		Kind: history.KindCommand, Node: node, Run: id, Attempt: attempt, Placement: placement,
		Detail: history.Command{Code: code, Cause: cause},
	})
}

// finish ends a run; change may alter what is written.
func (s *script) finish(id string, status recordv1.Status, reason recordv1.Reason, code *int32, change ...func(*recordv1.Run)) {
	run := s.record(id)
	node := run.GetPlacement().GetNode()
	run.Status, run.Reason, run.ExitCode, run.EndedAt, run.Placement = status, reason, code, 10, nil
	run.Writer = "n9/1/2"
	if status == recordv1.Status_STATUS_CANCELED && run.GetWish() == nil {
		run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED}
	}
	if reason != recordv1.Reason_REASON_UNSPECIFIED {
		run.Message = "words"
	}
	if n := len(run.GetAttempts()); n > 0 {
		last := run.GetAttempts()[n-1]
		last.ExitCode, last.EndedAt, last.Status, last.Reason = code, 10, status, reason
	}
	for _, each := range change {
		each(run)
	}
	s.commit(keys.End(run, 1, node).Then...)
}

func (s *script) succeed(id string) {
	s.finish(id, recordv1.Status_STATUS_SUCCEEDED, recordv1.Reason_REASON_UNSPECIFIED, proto.Int32(0))
}

// onLoss has what is lost tried again.
var onLoss = &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY}

// onWait has its node waited for.
var onWait = &recordv1.Retry{OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT}

// retry gives the placement up with its node and begins the next attempt.
func (s *script) retry(id string) { s.retryAfter(id, recordv1.Reason_REASON_NODE_LOST, nil) }

// retryAfter begins the next attempt after one that ended like this.
func (s *script) retryAfter(id string, reason recordv1.Reason, code *int32, change ...func(*recordv1.Run)) {
	run := s.record(id)
	node := run.GetPlacement().GetNode()
	run.Attempt++
	run.Status, run.Placement, run.Placements, run.Writer = recordv1.Status_STATUS_PENDING, nil, 0, "n9/1/3"
	last := run.GetAttempts()[len(run.GetAttempts())-1]
	last.EndedAt, last.Reason, last.Status, last.ExitCode, last.Message = 10, reason, recordv1.Status_STATUS_FAILED, code, "words"
	for _, each := range change {
		each(run)
	}
	s.commit(keys.Unplace(run, 1, 0, node).Then...)
}

// void gives the placement up within its attempt.
func (s *script) void(id string) {
	run := s.record(id)
	node := run.GetPlacement().GetNode()
	run.Placement, run.Writer = nil, "n9/1/4"
	run.Attempts = run.Attempts[:len(run.Attempts)-1]
	s.commit(keys.Unplace(run, 1, 0, node).Then...)
}

// remove deletes a run and puts its tombstone.
func (s *script) remove(id string) {
	s.commit(
		records.Op{Kind: records.OpDelete, Key: keys.Run(id)},
		records.Op{Kind: records.OpPut, Key: keys.Gone(id), Value: records.Encode(&recordv1.Gone{})},
	)
}

// calls makes a client's call; answers may come at once or later.
func (s *script) calls(verb, id string) (answer func(outcome string, detail any)) {
	s.call++
	call := history.Call{ID: s.call, Verb: verb, Run: id}
	s.add(history.Event{Kind: history.KindCall, Run: id, Detail: call})
	return func(outcome string, detail any) {
		call.Outcome, call.Detail = outcome, detail
		s.add(history.Event{Kind: history.KindAnswer, Run: id, Detail: call})
	}
}

func (s *script) fault(node, name string, begin, outside bool) {
	s.add(history.Event{Kind: history.KindFault, Node: node, Detail: history.Fault{Name: name, Begin: begin, Outside: outside}})
}

func (s *script) machine(node, text string) {
	s.add(history.Event{Kind: history.KindMachine, Node: node, Text: text})
}

// whole plays a run that succeeds on a node.
func (s *script) whole(id, node string) {
	s.create(id)
	s.place(id, node)
	s.start(id, node, 1, 1)
	s.running(id)
	s.exit(id, node, 1, 1, 0, "itself")
	s.succeed(id)
}

// settled are the facts of a world at rest.
func (s *script) settled(machines ...check.Machine) check.Facts {
	return check.Facts{At: s.now, Settled: true, Machines: machines}
}

// expect checks that exactly one guarantee was violated, with a text that says want;
// none when guarantee is empty.
func expect(t *testing.T, violations []check.Violation, guarantee check.Guarantee, want string) {
	t.Helper()
	others := slices.ContainsFunc(violations, func(v check.Violation) bool { return v.Guarantee != guarantee })
	found := slices.ContainsFunc(violations, func(v check.Violation) bool {
		return v.Guarantee == guarantee && strings.Contains(v.String(), want)
	})
	if others || found != (guarantee != "") {
		t.Errorf("want %q violated with %q; got %v", guarantee, want, violations)
	}
}
