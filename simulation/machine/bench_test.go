package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

const (
	second = time.Second
	ms     = time.Millisecond
)

// bench is one machine with a daemon, and what its history says.
type bench struct {
	*Machine
	t      testing.TB
	line   *virtual.Timeline
	record *history.History
	events []history.Event
	life   *Daemon
}

// calm are the faults of a good machine on which no exit is durable before it is
// journaled.
func calm() Faults {
	f := Sound()
	f.Runtime.DurableRate = 0
	return f
}

func newBench(t testing.TB, seed uint64, faults Faults) *bench {
	b := &bench{t: t, line: &virtual.Timeline{}, record: history.New()}
	b.record.Observe(func(e history.Event) { b.events = append(b.events, e) })
	b.Machine = New(Options{
		Name: "m1", Timeline: b.line, Random: virtual.Streams{Seed: seed}.Of("machine"), History: b.record, Faults: faults,
	})
	b.life = b.Launch()
	return b
}

// pass lets time go by.
func (b *bench) pass(d time.Duration) {
	end := b.line.Now() + d
	b.line.After(d, func() {})
	for at, ok := b.line.NextAt(); ok && at <= end; at, ok = b.line.NextAt() {
		b.line.Next()
	}
}

// until lets time go by until something is so.
func (b *bench) until(what string, so func() bool) {
	b.t.Helper()
	end := b.line.Now() + time.Hour
	for !so() {
		if at, ok := b.line.NextAt(); !ok || at > end {
			b.t.Fatalf("not within an hour: %s", what)
		}
		b.line.Next()
	}
}

// begin asks the life for an operation; result is nil until it is answered.
func (b *bench) begin(op nodes.SandboxOp) (result func() *nodes.SandboxResult) {
	var got *nodes.SandboxResult
	op.Driver = "null"
	b.life.Sandboxes().Do(op, func(r nodes.SandboxResult) { got = &r })
	if got != nil {
		b.t.Errorf("%s was answered inside the call", op.Verb)
	}
	return func() *nodes.SandboxResult { return got }
}

// do carries an operation out.
func (b *bench) do(op nodes.SandboxOp) nodes.SandboxResult {
	b.t.Helper()
	result := b.begin(op)
	b.until(op.Verb.String(), func() bool { return result() != nil })
	return *result()
}

func (b *bench) verb(verb nodes.SandboxVerb, id string) nodes.SandboxResult {
	b.t.Helper()
	return b.do(nodes.SandboxOp{Verb: verb, ID: id})
}

// creating is the Create of a sandbox that runs a program.
func creating(id string, command ...string) nodes.SandboxOp {
	return nodes.SandboxOp{Verb: nodes.VerbCreate, ID: id, Spec: sandbox.Spec{
		ID: id, Run: "r.app." + id, Attempt: 1, Placement: 2, StartToken: []byte("token " + id), SpecHash: []byte("hash"),
		Spec: &recordv1.Spec{Command: command, Env: []string{"A=b", nodes.EnvFencingToken + "=77"}},
	}}
}

// run creates and starts a sandbox.
func (b *bench) run(id string, command ...string) {
	b.t.Helper()
	if r := b.do(creating(id, command...)); r.Err != nil {
		b.t.Fatal(r.Err)
	}
	if r := b.verb(nodes.VerbStart, id); r.Err != nil || r.StartedAt.IsZero() {
		b.t.Fatalf("start: %v at %v", r.Err, r.StartedAt)
	}
}

// texts returns the texts of the events of some kinds.
func (b *bench) texts(kinds ...history.Kind) (texts []string) {
	for _, e := range b.events {
		if slices.Contains(kinds, e.Kind) {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// commands returns the starts and ends of a sandbox's commands.
func (b *bench) commands(id string) (all []history.Command) {
	for _, e := range b.events {
		if c, ok := e.Detail.(history.Command); ok && c.Sandbox == id {
			all = append(all, c)
		}
	}
	return all
}

func isCode(t testing.TB, result nodes.SandboxResult, code, signal int32) {
	t.Helper()
	if result.Err != nil || result.Exit.Code == nil || *result.Exit.Code != code || result.Exit.Signal != signal {
		t.Errorf("exit %s, want code %d, signal %d", showExit(result), code, signal)
	}
}

func isLost(t testing.TB, result nodes.SandboxResult) {
	t.Helper()
	if result.Err != nil || result.Exit.Code != nil || result.Exit.Reason != reasonLost {
		t.Errorf("exit %s, want a lost one", showExit(result))
	}
}

func showExit(r nodes.SandboxResult) string {
	code := "none"
	if r.Exit.Code != nil {
		code = fmt.Sprint(*r.Exit.Code)
	}
	return fmt.Sprintf("{code %s, signal %d, reason %v, error %v}", code, r.Exit.Signal, r.Exit.Reason, r.Err)
}

func isClass(t testing.TB, err error, class records.Class) {
	t.Helper()
	if err == nil || records.ClassOf(err) != class {
		t.Errorf("error %v, want one of class %v", err, class)
	}
}
