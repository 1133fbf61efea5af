package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/pool"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/null"
)

// step is one thing that is done to a driver: an operation, or time that passes, or
// a restart of the daemon.
type step struct {
	op      nodes.SandboxOp
	program Program
	pass    time.Duration
	restart bool
	// abandon breaks the create of op.ID off.
	abandon bool
}

// subject is a driver that steps are done to: the model, or a real one.
type subject interface {
	// do begins an operation and returns its outcome, or "pending"; what is pending
	// comes to the trace when it is answered.
	do(op nodes.SandboxOp, program Program) string
	abandon(id string)
	pass(d time.Duration)
	restart()
	note(line string)
}

// play does steps; what was to be seen is noted.
func play(s subject, steps []step) {
	for _, step := range steps {
		switch {
		case step.restart:
			s.restart()
		case step.abandon:
			s.abandon(step.op.ID)
		case step.pass > 0:
			s.pass(step.pass)
			s.note("passed " + step.pass.String())
		default:
			s.note(fmt.Sprintf("%s %s: %s", step.op.Verb, step.op.ID, s.do(step.op, step.program)))
		}
	}
}

// outcome is a result without what may differ between drivers: texts and times.
func outcome(verb nodes.SandboxVerb, r nodes.SandboxResult) string {
	var start *sandbox.StartError
	switch {
	case errors.As(r.Err, &start):
		return fmt.Sprintf("start error %v, permanent %v", start.Reason, start.Permanent)
	case r.Err != nil:
		return records.ClassOf(r.Err).String()
	}
	switch verb {
	case nodes.VerbStart:
		return fmt.Sprintf("started, at a time: %v", !r.StartedAt.IsZero())
	case nodes.VerbSignal:
		return fmt.Sprintf("delivered %v", r.Delivered)
	case nodes.VerbKill:
		return fmt.Sprintf("leftover %v", r.Leftover)
	case nodes.VerbFlush:
		return fmt.Sprintf("complete %v", r.Complete)
	case nodes.VerbWait:
		return fmt.Sprintf("%s oom %v, ran %v", showExit(r), r.Exit.OOMKilled, r.Exit.At.Sub(r.Exit.StartedAt).Round(ms))
	case nodes.VerbList:
		var all []string
		for _, info := range r.Infos {
			all = append(all, fmt.Sprintf("%s %s %d %d %d %s %s", info.ID, info.Run, info.Attempt, info.Placement, info.State, info.StartToken, info.SpecHash))
		}
		return strings.Join(all, ", ")
	default:
		return "done"
	}
}

// modelSubject is the model, as a machine on which nothing takes any time.
type modelSubject struct {
	bench *bench
	seen  []string
}

func newModel(t testing.TB) *modelSubject {
	return &modelSubject{bench: newBench(t, 1, Faults{})}
}

func (m *modelSubject) note(line string) { m.seen = append(m.seen, line) }

func (m *modelSubject) do(op nodes.SandboxOp, program Program) string {
	op.Driver, op.Spec = "null", specOf(op, program.Command())
	got, life := "", m.bench.life
	answered, waiting := false, false
	life.Sandboxes().Do(op, func(r nodes.SandboxResult) {
		if waiting {
			m.note(fmt.Sprintf("%s %s at last: %s", op.Verb, op.ID, outcome(op.Verb, r)))
			return
		}
		got, answered = outcome(op.Verb, r), true
	})
	m.bench.pass(0)
	if waiting = !answered; waiting {
		return "pending"
	}
	return got
}

func (m *modelSubject) abandon(id string) {
	m.bench.life.Sandboxes().Abandon("null", id)
	m.bench.pass(0)
}

func (m *modelSubject) pass(d time.Duration) { m.bench.pass(d) }

func (m *modelSubject) restart() {
	m.bench.life.Crash()
	m.bench.life = m.bench.Launch()
}

func specOf(op nodes.SandboxOp, command []string) sandbox.Spec {
	if op.Verb != nodes.VerbCreate {
		return sandbox.Spec{}
	}
	return sandbox.Spec{
		ID: op.ID, Run: "r.app." + op.ID, Attempt: 1, Placement: 2, StartToken: []byte("token"), SpecHash: []byte("hash"),
		Spec: &recordv1.Spec{Command: command},
	}
}

// nullSubject is the null driver behind a pool, in a bubble.
type nullSubject struct {
	t      *testing.T
	dir    string
	driver *null.Driver
	pool   *pool.Pool

	mu   sync.Mutex
	seen []string
	life int
}

func newNull(t *testing.T, dir string) *nullSubject {
	n := &nullSubject{t: t, dir: dir}
	n.open()
	return n
}

func (n *nullSubject) open() {
	driver, err := null.New(n.dir + "/state")
	if err != nil {
		n.t.Fatal(err)
	}
	n.driver, n.pool = driver, pool.New(map[string]sandbox.Driver{"null": driver})
}

func (n *nullSubject) close() {
	n.mu.Lock()
	n.life++ // what is still pending is heard by nobody
	n.mu.Unlock()
	if err := errors.Join(n.pool.Close(context.Background()), n.driver.Close()); err != nil {
		n.t.Error(err)
	}
	synctest.Wait()
}

func (n *nullSubject) note(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = append(n.seen, line)
}

// nullWords are the words of a program in the null driver's language.
func nullWords(p Program) []string {
	words := []string{"after=" + p.After.String()}
	add := func(on bool, word string) {
		if on {
			words = append(words, word)
		}
	}
	add(p.Code != 0, fmt.Sprintf("exit=%d", p.Code))
	add(p.Signal != 0 && !p.OOM, fmt.Sprintf("signal=%d", p.Signal))
	add(p.OOM, "oom")
	add(p.IgnoreTerm, "ignore-term")
	add(p.Fork > 0, "leftover")
	add(p.StartError != 0, "start-error="+word(p.StartError))
	add(p.CreateRefused != 0, "create-error="+word(p.CreateRefused))
	return words
}

func (n *nullSubject) do(op nodes.SandboxOp, program Program) string {
	op.Driver, op.Spec = "null", specOf(op, nullWords(program))
	op.Spec.LogPath = n.dir + "/log/" + op.ID
	got, life, answered, waiting := "", n.life, false, false
	n.pool.Do(op, func(r nodes.SandboxResult) {
		n.mu.Lock()
		defer n.mu.Unlock()
		switch {
		case life != n.life:
		case waiting:
			n.seen = append(n.seen, fmt.Sprintf("%s %s at last: %s", op.Verb, op.ID, outcome(op.Verb, r)))
		default:
			got, answered = outcome(op.Verb, r), true
		}
	})
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if waiting = !answered; waiting {
		return "pending"
	}
	return got
}

func (n *nullSubject) abandon(id string) {
	n.pool.Abandon("null", id)
	synctest.Wait()
}

func (n *nullSubject) pass(d time.Duration) {
	time.Sleep(d) // in the bubble
	synctest.Wait()
}

func (n *nullSubject) restart() {
	n.close()
	n.open()
}

// onBoth plays steps on the model and on the null driver and returns what was seen
// of each.
func onBoth(t *testing.T, dir string, steps []step) (model, driver []string) {
	synctest.Test(t, func(t *testing.T) {
		n := newNull(t, dir)
		play(n, steps)
		n.mu.Lock()
		driver = slices.Clone(n.seen)
		n.mu.Unlock()
		n.close()
	})
	m := newModel(t)
	play(m, steps)
	return inOrder(m.seen), inOrder(driver)
}

// inOrder sorts what was answered while time passed: of two answers at one moment
// either may be heard first.
func inOrder(lines []string) []string {
	for i := 0; i < len(lines); i++ {
		n := i
		for n < len(lines) && strings.Contains(lines[n], " at last: ") {
			n++
		}
		slices.Sort(lines[i:n])
		i = n
	}
	return lines
}

// The steps of the table.
func on(verb nodes.SandboxVerb, id string) step { return step{op: nodes.SandboxOp{Verb: verb, ID: id}} }

func signal(id string, number int) step {
	return step{op: nodes.SandboxOp{Verb: nodes.VerbSignal, ID: id, Signal: number}}
}

func create(id string, program Program) step {
	s := on(nodes.VerbCreate, id)
	s.program = program
	return s
}

func passing(d time.Duration) step { return step{pass: d} }

func TestModelAnswersAsADriverDoes(t *testing.T) {
	const (
		start, wait, kill = nodes.VerbStart, nodes.VerbWait, nodes.VerbKill
		flush, remove     = nodes.VerbFlush, nodes.VerbRemove
	)
	hour, brief := Program{After: time.Hour}, Program{After: second, Code: 3}
	list := on(nodes.VerbList, "")
	cases := []struct {
		name  string
		steps []step
		want  []string // the last lines of the trace
	}{
		{
			"a whole life",
			[]step{
				create("a", brief), list, on(start, "a"), on(wait, "a"), list, passing(2 * second), list, on(wait, "a"),
				on(kill, "a"), on(flush, "a"), on(remove, "a"), list, on(wait, "a"),
			},
			[]string{"wait a at last: {code 3, signal 0, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 1s", "passed 2s"},
		},
		{
			"unknown sandbox",
			[]step{on(start, "a"), on(wait, "a"), signal("a", sigterm), on(kill, "a"), on(flush, "a"), on(remove, "a")},
			[]string{"start a: not found", "wait a: not found", "signal a: not found", "kill a: leftover false", "flush a: complete true", "remove a: done"},
		},
		{"started twice", []step{create("a", hour), on(start, "a"), on(start, "a"), create("a", hour)}, []string{"start a: conflict", "create a: conflict"}},
		{"started after its end", []step{create("a", brief), on(start, "a"), passing(2 * second), on(start, "a")}, []string{"start a: conflict"}},
		{
			"TERM",
			[]step{create("a", hour), on(start, "a"), on(wait, "a"), signal("a", sigterm), signal("a", sigterm)},
			[]string{"wait a at last: {code 143, signal 15, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 0s", "signal a: delivered true", "signal a: delivered false"},
		},
		{
			"TERM ignored",
			[]step{create("a", Program{After: time.Hour, IgnoreTerm: true}), on(start, "a"), signal("a", sigterm), list, signal("a", sigkill), on(wait, "a")},
			[]string{"wait a: {code 137, signal 9, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 0s"},
		},
		{
			"kill",
			[]step{create("a", hour), on(start, "a"), passing(second), on(kill, "a"), on(wait, "a"), on(kill, "a")},
			[]string{"kill a: leftover true", "wait a: {code 137, signal 9, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 1s", "kill a: leftover false"},
		},
		{"kill before the start", []step{create("a", hour), on(kill, "a"), on(remove, "a"), on(start, "a")}, []string{"kill a: leftover false", "remove a: done", "start a: not found"}},
		{
			"a child is left over",
			[]step{create("a", Program{After: second, Fork: time.Hour}), on(start, "a"), passing(2 * second), on(kill, "a"), on(kill, "a")},
			[]string{"kill a: leftover true", "kill a: leftover false"},
		},
		{
			"death by signal and for want of memory",
			[]step{create("a", Program{After: second, Signal: 6}), create("b", Program{After: second, Signal: 9, OOM: true}), on(start, "a"), on(start, "b"), passing(2 * second), on(wait, "a"), on(wait, "b")},
			[]string{"wait a: {code 134, signal 6, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 1s", "wait b: {code 137, signal 9, reason REASON_UNSPECIFIED, error <nil>} oom true, ran 1s"},
		},
		{
			"start refused",
			[]step{create("a", Program{StartError: recordv1.Reason_REASON_NOT_FOUND}), on(start, "a"), on(start, "a"), on(kill, "a"), list},
			[]string{"kill a: leftover false", "list : a r.app.a 1 2 1 token hash"},
		},
		{"create refused", []step{create("a", Program{CreateRefused: recordv1.Reason_REASON_IMAGE_PULL}), list}, []string{"create a: start error REASON_IMAGE_PULL, permanent false", "list : "}},
		{"abandoned too late", []step{create("a", hour), {op: nodes.SandboxOp{ID: "a"}, abandon: true}, list}, []string{"list : a r.app.a 1 2 1 token hash"}},
		{"removed while somebody waits", []step{create("a", hour), on(start, "a"), on(wait, "a"), on(remove, "a"), on(remove, "a")}, nil},
		{
			"survives the daemon",
			[]step{create("a", brief), create("b", hour), create("c", hour), on(start, "a"), on(start, "b"), {restart: true}, passing(2 * second), list, on(wait, "a"), signal("b", sigterm), on(wait, "b")},
			[]string{"wait b: {code 143, signal 15, reason REASON_UNSPECIFIED, error <nil>} oom false, ran 2s"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			model, driver := onBoth(t, t.TempDir(), c.steps)
			if !slices.Equal(model, driver) {
				t.Errorf("the model\n\t%s\nthe driver\n\t%s", strings.Join(model, "\n\t"), strings.Join(driver, "\n\t"))
			}
			if !containsInOrder(model, c.want) {
				t.Errorf("the model\n\t%s\nlacks\n\t%s", strings.Join(model, "\n\t"), strings.Join(c.want, "\n\t"))
			}
		})
	}
}

func containsInOrder(lines, want []string) bool {
	for _, line := range lines {
		if len(want) > 0 && line == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// TestModelAnswersAsADriverDoesWhateverIsAsked plays drawn steps on both. What they
// may answer differently is left out: a start after a kill, which drivers need not
// refuse.
func TestModelAnswersAsADriverDoesWhateverIsAsked(t *testing.T) {
	root := t.TempDir()
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		steps := drawSteps(r)
		round++
		model, driver := onBoth(t, fmt.Sprintf("%s/%d", root, round), steps)
		if !slices.Equal(model, driver) {
			r.Fatalf("the model\n\t%s\nthe driver\n\t%s", strings.Join(model, "\n\t"), strings.Join(driver, "\n\t"))
		}
	})
}

func drawSteps(r *rapid.T) (steps []step) {
	verbs := []nodes.SandboxVerb{
		nodes.VerbCreate, nodes.VerbCreate, nodes.VerbStart, nodes.VerbStart, nodes.VerbStart, nodes.VerbSignal,
		nodes.VerbKill, nodes.VerbWait, nodes.VerbRemove, nodes.VerbList,
	}
	killed := map[string]bool{}
	for range rapid.IntRange(1, 30).Draw(r, "steps") {
		id := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "id")
		switch what := rapid.IntRange(0, 9).Draw(r, "what"); {
		case what == 0:
			steps = append(steps, step{restart: true})
			continue
		case what <= 2:
			steps = append(steps, passing(time.Duration(rapid.IntRange(1, 4).Draw(r, "seconds"))*second))
			continue
		}
		s := on(rapid.SampledFrom(verbs).Draw(r, "verb"), id)
		switch s.op.Verb {
		case nodes.VerbCreate:
			s.program = drawProgram(r)
		case nodes.VerbSignal:
			s.op.Signal = rapid.SampledFrom([]int{sigterm, sigkill}).Draw(r, "signal")
		case nodes.VerbKill:
			killed[id] = true
		case nodes.VerbRemove:
			killed[id] = false
		case nodes.VerbStart:
			if killed[id] {
				continue
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// drawProgram draws one that ends between two whole seconds.
func drawProgram(r *rapid.T) Program {
	p := Program{After: time.Duration(rapid.IntRange(0, 5).Draw(r, "after"))*second + 500*ms}
	switch rapid.IntRange(0, 6).Draw(r, "program") {
	case 0:
		p.Signal = rapid.SampledFrom([]int32{1, 6, 9, 15}).Draw(r, "by")
	case 1:
		p.Signal, p.OOM = sigkill, true
	case 2:
		return Program{StartError: recordv1.Reason_REASON_NOT_FOUND}
	case 3:
		return Program{CreateRefused: recordv1.Reason_REASON_IMAGE_PULL}
	case 4:
		p.Fork = time.Hour
	default:
		p.Code = rapid.Int32Range(0, 255).Draw(r, "code")
	}
	p.IgnoreTerm = rapid.Bool().Draw(r, "ignore")
	return p
}
