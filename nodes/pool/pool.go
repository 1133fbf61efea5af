// Package pool is the asynchronous face of sandbox drivers: it carries out what a
// node's actor asks for on goroutines that it owns, a bounded number for each
// driver and verb, so that one driver that hangs delays nobody else.
//
// What was begun is not cut short because a run ends: a start or a removal that is
// interrupted in the middle leaves a doubt behind. Each operation has a deadline
// of its own instead. Only a Create may be abandoned.
package pool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/workers"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/sandbox"
)

// The deadlines of operations. A Wait has none.
const (
	// CreateTimeout is that of a Create that brings none.
	CreateTimeout = 10 * time.Minute
	StartTimeout  = time.Minute
	SignalTimeout = 5 * time.Second
	KillTimeout   = 15 * time.Second
	FlushTimeout  = 2 * time.Second
	RemoveTimeout = 30 * time.Second
	ListTimeout   = 30 * time.Second
	// closeGrace is how long Close waits for what it cut short.
	closeGrace = 5 * time.Second

	logDirMode = 0o700
)

// How many operations of one verb run at a time for one driver. A Wait takes a
// goroutine for each sandbox, which the node bounds; the node also bounds Creates,
// lower.
const (
	createsMax = nodes.CreatesMax
	startsMax  = 64
	controlMax = 32
	removesMax = 8
	listsMax   = 2
)

// idleMax is how many goroutines wait for the next operation: as many as a busy node has
// of short ones. Those that wait for a sandbox take more, and end.
const idleMax = 64

func limitOf(verb nodes.SandboxVerb) int {
	switch verb {
	case nodes.VerbCreate:
		return createsMax
	case nodes.VerbStart:
		return startsMax
	case nodes.VerbRemove:
		return removesMax
	case nodes.VerbList:
		return listsMax
	case nodes.VerbWait:
		return nodes.EntriesMax
	default:
		return controlMax
	}
}

func timeoutOf(op nodes.SandboxOp) time.Duration {
	switch op.Verb {
	case nodes.VerbCreate:
		if op.Timeout > 0 {
			return op.Timeout
		}
		return CreateTimeout
	case nodes.VerbStart:
		return StartTimeout
	case nodes.VerbSignal:
		return SignalTimeout
	case nodes.VerbKill:
		return KillTimeout
	case nodes.VerbFlush:
		return FlushTimeout
	case nodes.VerbRemove:
		return RemoveTimeout
	case nodes.VerbList:
		return ListTimeout
	default:
		return 0
	}
}

// Pool is a nodes.Sandboxes. Its methods may be called from any goroutine.
type Pool struct {
	drivers map[string]sandbox.Driver
	// patient ends when Close begins, urgent when its patience is over.
	patient, urgent       context.Context //nolint:containedctx // the life of the pool's goroutines
	endPatient, endUrgent context.CancelFunc
	work                  sync.WaitGroup
	workers               *workers.Workers

	mu      sync.Mutex
	closed  bool
	lanes   map[laneKey]*lane
	creates map[sandboxKey]context.CancelFunc
	// waits are those under way that have no goroutine.
	waits map[*wait]struct{}
}

// wait is the wait for one sandbox of a driver that calls back.
type wait struct {
	id      string
	deliver func(nodes.SandboxResult)
}

// refuse answers a wait when the pool is closed.
func (w *wait) refuse() {
	w.deliver(failed(records.ClassUnavailable, nodes.SandboxOp{Verb: nodes.VerbWait, ID: w.id}, errClosed))
}

type laneKey struct {
	driver string
	verb   nodes.SandboxVerb
}

type sandboxKey struct{ driver, id string }

// lane is what one driver does of one verb.
type lane struct {
	limit, busy int
	queue       []job
}

type job struct {
	ctx     context.Context //nolint:containedctx // of this one operation
	cancel  context.CancelFunc
	op      nodes.SandboxOp
	deliver func(nodes.SandboxResult)
}

var _ nodes.Sandboxes = (*Pool)(nil)

// New makes a pool over drivers by the names that specs name them with. It starts
// no goroutine before something is asked of it, and does not close the drivers.
func New(drivers map[string]sandbox.Driver) *Pool {
	p := &Pool{
		drivers: drivers, lanes: map[laneKey]*lane{}, creates: map[sandboxKey]context.CancelFunc{}, waits: map[*wait]struct{}{},
		workers: workers.New(idleMax),
	}
	p.patient, p.endPatient = context.WithCancel(context.Background())
	p.urgent, p.endUrgent = context.WithCancel(context.Background())
	return p
}

// Do carries an operation out and delivers its result once.
func (p *Pool) Do(op nodes.SandboxOp, deliver func(nodes.SandboxResult)) {
	if _, ok := p.drivers[op.Driver]; !ok {
		deliver(failed(records.ClassNotFound, op, fmt.Errorf("there is no driver %q", op.Driver)))
		return
	}
	if driver, ok := p.drivers[op.Driver].(sandbox.WaitsThen); ok && op.Verb == nodes.VerbWait {
		p.waitThen(driver, op.ID, deliver)
		return
	}
	j := job{op: op, deliver: deliver}
	j.ctx, j.cancel = p.lifetime(op.Verb)
	if !p.enqueue(j) {
		j.cancel()
		deliver(failed(records.ClassUnavailable, op, errClosed))
	}
}

// waitThen waits without a goroutine, but for the moment that it takes to say so.
func (p *Pool) waitThen(driver sandbox.WaitsThen, id string, deliver func(nodes.SandboxResult)) {
	w := &wait{id: id, deliver: deliver}
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.waits[w] = struct{}{}
		p.work.Add(1)
	}
	p.mu.Unlock()
	if closed {
		w.refuse()
		return
	}
	p.workers.Go(func() {
		defer p.work.Done()
		driver.WaitThen(w.id, func(exit sandbox.Exit, err error) {
			p.mu.Lock()
			_, waiting := p.waits[w]
			delete(p.waits, w)
			p.mu.Unlock()
			if waiting {
				w.deliver(nodes.SandboxResult{Exit: exit, Err: err})
			}
		})
	})
}

// enqueue puts a job into its lane, unless the pool is closed.
func (p *Pool) enqueue(j job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	op := j.op
	if op.Verb == nodes.VerbCreate {
		p.creates[sandboxKey{op.Driver, op.ID}] = j.cancel
	}
	key := laneKey{op.Driver, op.Verb}
	l := p.lanes[key]
	if l == nil {
		l = &lane{limit: limitOf(op.Verb)}
		p.lanes[key] = l
	}
	l.queue = append(l.queue, j)
	if l.busy < l.limit {
		l.busy++
		p.work.Add(1)
		p.workers.Go(func() { p.serve(l) })
	}
	return true
}

var errClosed = fmt.Errorf("the sandboxes of this node are closing")

func failed(class records.Class, op nodes.SandboxOp, err error) nodes.SandboxResult {
	return nodes.SandboxResult{Err: records.Errorf(class, "%s sandbox %s: %w", op.Verb, op.ID, err)}
}

// lifetime is the context of an operation: what may be broken off ends when Close
// begins, what leaves doubts only when there is no more time.
func (p *Pool) lifetime(verb nodes.SandboxVerb) (context.Context, context.CancelFunc) {
	switch verb {
	case nodes.VerbCreate, nodes.VerbWait, nodes.VerbList:
		return context.WithCancel(p.patient)
	default:
		return context.WithCancel(p.urgent)
	}
}

// Abandon ends the Create of a sandbox early.
func (p *Pool) Abandon(driver, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cancel, ok := p.creates[sandboxKey{driver, id}]; ok {
		cancel()
	}
}

// Close takes nothing more and waits for what is under way: creates, waits and
// lists are broken off at once, the rest when the context ends. Sandboxes go on.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	waits := p.waits
	p.waits = nil
	p.mu.Unlock()
	for w := range waits {
		w.refuse()
	}
	p.endPatient()
	p.workers.Stop()
	done := make(chan struct{})
	go func() {
		p.work.Wait()
		p.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		p.endUrgent()
		return nil
	case <-ctx.Done():
	}
	p.endUrgent()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-done:
		return nil
	case <-grace.C:
		return records.Errorf(records.ClassDeadline, "close sandboxes: a driver does not return: %w", ctx.Err())
	}
}

// serve works a lane off, and ends when it is empty.
func (p *Pool) serve(l *lane) {
	defer p.work.Done()
	for {
		p.mu.Lock()
		if len(l.queue) == 0 {
			l.busy--
			p.mu.Unlock()
			return
		}
		j := l.queue[0]
		l.queue[0] = job{}
		l.queue = l.queue[1:]
		p.mu.Unlock()
		p.run(j)
	}
}

func (p *Pool) run(j job) {
	ctx, cancel := j.ctx, j.cancel
	if timeout := timeoutOf(j.op); timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer j.cancel()
	}
	defer cancel()
	var result nodes.SandboxResult
	switch {
	case ctx.Err() == nil:
		result = p.call(ctx, j)
	case p.patient.Err() == nil:
		// Abandoned before its turn.
		result = failed(records.ClassDeadline, j.op, ctx.Err())
	case j.op.Verb == nodes.VerbStart:
		// Not started: but nobody is left to say so but the journal.
		result = failed(records.ClassOutcomeUnknown, j.op, errClosed)
	default:
		result = failed(records.ClassUnavailable, j.op, errClosed)
	}
	if j.op.Verb == nodes.VerbCreate {
		p.mu.Lock()
		delete(p.creates, sandboxKey{j.op.Driver, j.op.ID})
		p.mu.Unlock()
	}
	j.deliver(result)
}

func (p *Pool) call(ctx context.Context, j job) nodes.SandboxResult {
	op, driver := j.op, p.drivers[j.op.Driver]
	var r nodes.SandboxResult
	switch op.Verb {
	case nodes.VerbCreate:
		r.Err = create(ctx, driver, op.Spec, func() { j.deliver(nodes.SandboxResult{Waiting: true}) })
	case nodes.VerbStart:
		r.StartedAt, r.Err = driver.Start(ctx, op.ID)
	case nodes.VerbSignal:
		r.Delivered, r.Err = driver.Signal(ctx, op.ID, op.Signal)
	case nodes.VerbKill:
		r.Leftover, r.Err = driver.Kill(ctx, op.ID)
	case nodes.VerbWait:
		r.Exit, r.Err = driver.Wait(ctx, op.ID)
	case nodes.VerbFlush:
		r.Complete, r.Err = driver.Flush(ctx, op.ID)
	case nodes.VerbRemove:
		r.Err = driver.Remove(ctx, op.ID)
	case nodes.VerbList:
		r.Infos, r.Err = driver.List(ctx)
	default:
		r = failed(records.ClassInvalid, op, fmt.Errorf("there is no such verb"))
	}
	return r
}

func create(ctx context.Context, driver sandbox.Driver, spec sandbox.Spec, waiting func()) error {
	if err := os.MkdirAll(filepath.Dir(spec.LogPath), logDirMode); err != nil {
		return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "make the directory of logs: %s", sandbox.Cause(err))
	}
	if driver, ok := driver.(sandbox.CreatesTelling); ok {
		return driver.CreateTelling(ctx, spec, waiting)
	}
	return driver.Create(ctx, spec)
}
