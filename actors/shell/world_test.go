package shell_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/shell"
	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	"github.com/errand-run/errand/cluster/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// world is a host with one kind, script, and one way to let it run.
type world struct {
	directory *activation.Directory
	journal   *journal
	store     *store
	until     func(t *testing.T, what string, condition func() bool)
	changed   func()
	// timers counts the timers that wait.
	timers func() int

	// Of the stepped world only.
	scheduler *stepping.Scheduler
	clock     *stepping.Clock
}

func (w *world) tell(identity string, words ...string) {
	for _, s := range words {
		w.directory.Tell("script", identity, word(s))
	}
}

// settle runs all turns that wait and leaves the clock where it is.
func (w *world) settle() { w.scheduler.Settle(1 << 20) }

// settleDirectoryOnly lets the activator pass on one message: what is told by then
// is in the actor's mailbox.
func (w *world) settleDirectoryOnly() { w.scheduler.Step() }

func (w *world) start(h *host.Host, clock actors.Clock, log *zap.Logger) {
	w.journal, w.store = &journal{}, &store{}
	w.directory = activation.New(h, "n1")
	ports := shell.Ports{Clock: clock, Store: w.store, Router: w.directory, Log: log}
	ports.Perform = func(effect actors.Effect, deliver func(actors.Input)) bool {
		e, ok := effect.(echo)
		for range e.times {
			deliver(echoed{})
		}
		return ok
	}
	newMachine := func(identity string) actors.Machine { return &script{w: w, identity: identity} }
	if err := w.directory.Register("script", shell.Producer(newMachine, ports)); err != nil {
		panic(err)
	}
}

// inEachWorld runs a test on goroutines and protoactor's mailbox, and stepped
// under a few seeds.
func inEachWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("goroutines", func(t *testing.T) { test(t, newConcurrent(t)) })
	for _, seed := range []uint64{1, 2, 3} {
		t.Run("stepped by seed "+strconv.FormatUint(seed, 10), func(t *testing.T) { test(t, newStepped(t, seed)) })
	}
}

func newConcurrent(t *testing.T) *world {
	t.Helper()
	clock := &realClock{start: time.Now(), timers: map[*time.Timer]bool{}}
	changes := &changes{next: make(chan struct{})}
	w := &world{changed: changes.note, until: changes.until, timers: clock.count}
	log := zaptest.NewLogger(t)
	h := host.New(host.Options{Clock: shell.HostClock(clock), Log: log})
	w.start(h, clock, log)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newStepped(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{scheduler: stepping.NewScheduler(seed), clock: &stepping.Clock{}, changed: func() {}}
	w.timers = w.clock.Waiting
	w.until = func(t *testing.T, what string, condition func() bool) {
		t.Helper()
		for !condition() {
			if !w.scheduler.Step() && !w.clock.Next() {
				t.Fatalf("nothing moves any more, and not yet: %s; %v", what, w.journal.all())
			}
		}
	}
	h := host.New(host.Options{Clock: w.clock, Dispatcher: w.scheduler, Mailbox: stepping.Mailbox, StrictSpawn: true})
	w.start(h, steppedClock{w.clock}, nil)
	return w
}

// steppedClock shows the standing clock to actors.
type steppedClock struct{ *stepping.Clock }

func (c steppedClock) Now() actors.Instant {
	now := c.Clock.Now()
	return actors.Instant{Mono: now, Boot: now, Wall: time.Unix(0, int64(now)), WallHealthy: true}
}

// realClock is the time of day; it counts its timers.
type realClock struct {
	start  time.Time
	mu     sync.Mutex
	timers map[*time.Timer]bool
}

func (c *realClock) Now() actors.Instant {
	now := time.Now()
	return actors.Instant{Mono: now.Sub(c.start), Boot: now.Sub(c.start), Wall: now, WallHealthy: true}
}

func (c *realClock) After(d time.Duration, deliver func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var timer *time.Timer
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, timer)
	}
	timer = time.AfterFunc(d, func() {
		forget()
		deliver()
	})
	c.timers[timer] = true
	return func() {
		timer.Stop()
		forget()
	}
}

func (c *realClock) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// store answers every transaction at once, or when it is let go.
type store struct {
	mu      sync.Mutex
	holding bool
	held    []func()
	follows []*following
}

type following struct {
	prefix  string
	deliver func(records.Batch)
}

func (s *store) Txn(_ records.Txn, deliver func(records.Result)) {
	s.hand(func() { deliver(records.Result{Succeeded: true}) })
}

func (s *store) Follow(prefix string, deliver func(records.Batch)) func() {
	f := &following{prefix: prefix, deliver: deliver}
	s.mu.Lock()
	s.follows = append(s.follows, f)
	s.mu.Unlock()
	s.hand(func() { deliver(records.Batch{Reset: true}) })
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.follows = slices.DeleteFunc(s.follows, func(other *following) bool { return other == f })
	}
}

func (s *store) hand(result func()) {
	s.mu.Lock()
	if s.holding {
		s.held = append(s.held, result)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	result()
}

func (s *store) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = true
}

func (s *store) release() {
	s.mu.Lock()
	held := s.held
	s.held, s.holding = nil, false
	s.mu.Unlock()
	for _, result := range held {
		result()
	}
}

func (s *store) followers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.follows)
}

func (s *store) change(prefix string) {
	s.mu.Lock()
	follows := slices.Clone(s.follows)
	s.mu.Unlock()
	for _, f := range follows {
		if f.prefix == prefix {
			f.deliver(records.Batch{})
		}
	}
}

// changes tells a waiting test that something happened.
type changes struct {
	mu   sync.Mutex
	next chan struct{}
}

func (c *changes) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.next = make(chan struct{})
}

func (c *changes) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	// What has no event of its own is looked at again after a while.
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		c.mu.Lock()
		next := c.next
		c.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-next:
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// journal is what the machines noted.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// of returns what one actor noted.
func (j *journal) of(identity string) []string {
	return slices.DeleteFunc(j.all(), func(line string) bool { return !strings.HasPrefix(line, identity+" ") })
}

func (j *journal) has(line string) bool { return slices.Contains(j.all(), line) }

func (j *journal) count(line string) int {
	n := 0
	for _, l := range j.all() {
		if l == line {
			n++
		}
	}
	return n
}
