package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/null"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gated is a null driver whose creates, starts and waits can be held.
type gated struct {
	*null.Driver
	gate   chan struct{}
	inside atomic.Int32
	most   atomic.Int32
	began  chan context.Context
}

func (g *gated) hold(ctx context.Context) error {
	g.most.Store(max(g.most.Load(), g.inside.Add(1)))
	defer g.inside.Add(-1)
	g.began <- ctx
	select {
	case <-g.gate:
		return nil
	case <-ctx.Done():
		return records.Errorf(records.ClassOutcomeUnknown, "held: %w", ctx.Err())
	}
}

func (g *gated) Create(ctx context.Context, spec sandbox.Spec) error {
	if err := g.hold(ctx); err != nil {
		return err
	}
	return g.Driver.Create(ctx, spec)
}

func (g *gated) Start(ctx context.Context, id string) (time.Time, error) {
	if err := g.hold(ctx); err != nil {
		return time.Time{}, err
	}
	return g.Driver.Start(ctx, id)
}

func (g *gated) Remove(ctx context.Context, id string) error {
	if err := g.hold(ctx); err != nil {
		return err
	}
	return g.Driver.Remove(ctx, id)
}

func newPool(t *testing.T) (*Pool, *gated) {
	t.Helper()
	driver, err := null.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{Driver: driver, gate: make(chan struct{}), began: make(chan context.Context, 1000)}
	p := New(map[string]sandbox.Driver{"null": driver, "gated": g})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, g
}

// ask returns where the result comes; a second one fails the test.
func ask(t *testing.T, p *Pool, op nodes.SandboxOp) <-chan nodes.SandboxResult {
	t.Helper()
	out := make(chan nodes.SandboxResult, 1)
	var once sync.Once
	p.Do(op, func(r nodes.SandboxResult) {
		first := false
		once.Do(func() { first = true })
		if !first {
			t.Errorf("%s was answered twice", op.Verb)
			return
		}
		out <- r
	})
	return out
}

func spec(t *testing.T, id string, command ...string) sandbox.Spec {
	t.Helper()
	return sandbox.Spec{ID: id, Run: "r.a.b", Attempt: 1, Placement: 1, Spec: &recordv1.Spec{Command: command}, LogPath: filepath.Join(t.TempDir(), "logs")}
}

func TestPoolCarriesAWholeLife(t *testing.T) {
	p, _ := newPool(t)
	do := func(op nodes.SandboxOp) nodes.SandboxResult {
		t.Helper()
		op.Driver, op.ID = "null", "e1"
		r := <-ask(t, p, op)
		if r.Err != nil {
			t.Fatalf("%s: %v", op.Verb, r.Err)
		}
		return r
	}
	do(nodes.SandboxOp{Verb: nodes.VerbCreate, Spec: spec(t, "e1", "after=1h")})
	if r := do(nodes.SandboxOp{Verb: nodes.VerbStart}); r.StartedAt.IsZero() {
		t.Error("no time of the start")
	}
	if r := do(nodes.SandboxOp{Verb: nodes.VerbList}); len(r.Infos) != 1 || r.Infos[0].State != sandbox.StateRunning {
		t.Errorf("infos %v", r.Infos)
	}
	wait := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbWait, Driver: "null", ID: "e1"})
	if r := do(nodes.SandboxOp{Verb: nodes.VerbSignal, Signal: 15}); !r.Delivered {
		t.Error("the signal was not delivered")
	}
	if r := <-wait; r.Err != nil || r.Exit.Signal != 15 {
		t.Errorf("exit %+v, %v", r.Exit, r.Err)
	}
	do(nodes.SandboxOp{Verb: nodes.VerbKill})
	if r := do(nodes.SandboxOp{Verb: nodes.VerbFlush}); !r.Complete {
		t.Error("the log is not complete")
	}
	do(nodes.SandboxOp{Verb: nodes.VerbRemove})
}

func TestPoolRefusesAnUnknownDriver(t *testing.T) {
	p, _ := newPool(t)
	if r := <-ask(t, p, nodes.SandboxOp{Verb: nodes.VerbStart, Driver: "none", ID: "e1"}); records.ClassOf(r.Err) != records.ClassNotFound {
		t.Errorf("error %v", r.Err)
	}
}

func TestPoolBoundsAVerbAndLetsOthersPass(t *testing.T) {
	p, g := newPool(t)
	var answers []<-chan nodes.SandboxResult
	for range removesMax + 3 {
		answers = append(answers, ask(t, p, nodes.SandboxOp{Verb: nodes.VerbRemove, Driver: "gated", ID: "e1"}))
	}
	for range removesMax {
		<-g.began
	}
	if r := <-ask(t, p, nodes.SandboxOp{Verb: nodes.VerbKill, Driver: "gated", ID: "e1"}); r.Err != nil {
		t.Errorf("kill behind removals that hang: %v", r.Err)
	}
	close(g.gate)
	for _, answer := range answers {
		<-answer
	}
	if most := g.most.Load(); most != removesMax {
		t.Errorf("%d removals at a time, want %d", most, removesMax)
	}
}

func TestPoolAbandonedCreateThatWaitsForItsTurnIsBrokenOff(t *testing.T) {
	p, g := newPool(t)
	create := func(id string) nodes.SandboxOp {
		return nodes.SandboxOp{Verb: nodes.VerbCreate, Driver: "gated", ID: id, Spec: spec(t, id, "exit=0")}
	}
	for i := range createsMax {
		ask(t, p, create(fmt.Sprintf("e%d", i)))
	}
	for range createsMax {
		<-g.began
	}
	last := ask(t, p, create("last"))
	p.Abandon("gated", "last")
	close(g.gate)
	if r := <-last; records.ClassOf(r.Err) != records.ClassDeadline || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("%v of class %v", r.Err, records.ClassOf(r.Err))
	}
}

func TestPoolAbandonEndsACreateAndNothingElse(t *testing.T) {
	p, g := newPool(t)
	create := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbCreate, Driver: "gated", ID: "e1", Spec: spec(t, "e1", "exit=0")})
	start := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbStart, Driver: "gated", ID: "e1"})
	<-g.began
	<-g.began
	p.Abandon("gated", "e1")
	p.Abandon("gated", "e2")
	if r := <-create; !errors.Is(r.Err, context.Canceled) {
		t.Errorf("create: %v", r.Err)
	}
	select {
	case r := <-start:
		t.Errorf("the start was cut short: %v", r.Err)
	default:
	}
	close(g.gate)
	<-start
}

func TestPoolCreateEndsAtItsTimeout(t *testing.T) {
	p, g := newPool(t)
	create := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbCreate, Driver: "gated", ID: "e1", Spec: spec(t, "e1", "exit=0"), Timeout: time.Millisecond})
	for {
		select {
		case <-g.began: // unless the timeout has passed before
		case r := <-create:
			if !errors.Is(r.Err, context.DeadlineExceeded) {
				t.Errorf("create: %v", r.Err)
			}
			return
		}
	}
}

func TestPoolCloseLetsAStartFinishAndRefusesWhatComesLater(t *testing.T) {
	p, g := newPool(t)
	create := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbCreate, Driver: "gated", ID: "e1", Spec: spec(t, "e1", "exit=0")})
	start := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbStart, Driver: "gated", ID: "e1"})
	<-g.began
	<-g.began
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- p.Close(ctx) }()
	if r := <-create; !errors.Is(r.Err, context.Canceled) {
		t.Errorf("create: %v", r.Err)
	}
	if r := <-ask(t, p, nodes.SandboxOp{Verb: nodes.VerbKill, Driver: "null", ID: "e1"}); records.ClassOf(r.Err) != records.ClassUnavailable {
		t.Errorf("kill after close: %v", r.Err)
	}
	close(g.gate)
	if r := <-start; errors.Is(r.Err, context.Canceled) {
		t.Errorf("the start was cut short: %v", r.Err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestPoolCloseWithoutPatienceCutsShort(t *testing.T) {
	p, g := newPool(t)
	start := ask(t, p, nodes.SandboxOp{Verb: nodes.VerbStart, Driver: "gated", ID: "e1"})
	<-g.began
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if r := <-start; records.ClassOf(r.Err) != records.ClassOutcomeUnknown {
		t.Errorf("start: %v", r.Err)
	}
}

// calling is a driver that calls back when it is told to.
type calling struct {
	*null.Driver
	waits chan func(sandbox.Exit, error)
}

func (c *calling) WaitThen(_ string, then func(sandbox.Exit, error)) { c.waits <- then }

func TestWaitsThatCallBackAreAnsweredOnceAlsoByClose(t *testing.T) {
	driver := &calling{waits: make(chan func(sandbox.Exit, error), 2)}
	p := New(map[string]sandbox.Driver{"calling": driver})
	results := make(chan nodes.SandboxResult, 4)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	answer := func() (r nodes.SandboxResult) {
		select {
		case r = <-results:
		case <-ctx.Done():
			t.Fatal("a wait was not answered")
		}
		return r
	}
	wait := func() func(sandbox.Exit, error) {
		p.Do(nodes.SandboxOp{Verb: nodes.VerbWait, Driver: "calling", ID: "one"}, func(r nodes.SandboxResult) { results <- r })
		return <-driver.waits
	}
	then := wait()
	then(sandbox.Exit{Source: "calling"}, nil)
	if r := answer(); r.Err != nil || r.Exit.Source != "calling" {
		t.Fatalf("answered by %+v", r)
	}
	late := wait()
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if r := answer(); records.ClassOf(r.Err) != records.ClassUnavailable {
		t.Fatalf("a close answers by %v", r.Err)
	}
	late(sandbox.Exit{}, nil)
	p.Do(nodes.SandboxOp{Verb: nodes.VerbWait, Driver: "calling", ID: "one"}, func(r nodes.SandboxResult) { results <- r })
	if r := answer(); records.ClassOf(r.Err) != records.ClassUnavailable {
		t.Fatalf("a closed pool answers by %v", r.Err)
	}
	if len(results) != 0 {
		t.Fatal("a wait was answered twice")
	}
}

// named tells which goroutine each list is done by.
type named struct {
	*null.Driver
	names chan string
}

func (n *named) List(ctx context.Context) ([]sandbox.Info, error) {
	var head [64]byte
	name, _, _ := bytes.Cut(head[:runtime.Stack(head[:], false)], []byte(" ["))
	n.names <- string(name)
	return n.Driver.List(ctx)
}

func TestPoolUsesGoroutinesAgain(t *testing.T) {
	driver, err := null.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const lists = 50
	n := &named{Driver: driver, names: make(chan string, lists)}
	p := New(map[string]sandbox.Driver{"named": n})
	for range lists {
		if r := <-ask(t, p, nodes.SandboxOp{Verb: nodes.VerbList, Driver: "named"}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	names := map[string]bool{}
	for range lists {
		names[<-n.names] = true
	}
	// One that comes while the last ends may have another goroutine.
	if len(names) > lists/2 {
		t.Errorf("%d lists, one after the other, by %d goroutines", lists, len(names))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(p.Close(ctx), driver.Close()); err != nil {
		t.Error(err)
	}
	// goleak sees that none is left.
}
