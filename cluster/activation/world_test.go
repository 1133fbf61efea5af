package activation_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// world is one way to run actors: the same tests pass in each.
type world struct {
	host *host.Host
	// until lets the actors run until the condition holds, and fails otherwise.
	until func(t *testing.T, what string, condition func() bool)
	// changed is called by test actors after each turn.
	changed func()
	// breathe lets the actors run a little.
	breathe func(steps int)
	// stop ends a directory and all its actors.
	stop func(t *testing.T, d *activation.Directory)
}

// inEachWorld runs a test on goroutines, and stepped under a few seeds.
func inEachWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("goroutines", func(t *testing.T) {
		w := &world{breathe: func(int) { runtime.Gosched() }}
		c := newChanges()
		w.changed, w.until = c.note, c.until
		w.host = host.New(host.Options{Clock: realClock{start: time.Now()}, Log: zaptest.NewLogger(t)})
		w.stop = func(t *testing.T, d *activation.Directory) {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := d.Stop(ctx); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := w.host.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		test(t, w)
	})
	for _, seed := range []uint64{1, 2, 3} {
		t.Run("stepped by seed "+strconv.FormatUint(seed, 10), func(t *testing.T) {
			scheduler, clock := stepping.NewScheduler(seed), &stepping.Clock{}
			w := &world{changed: func() {}}
			w.host = host.New(host.Options{
				Clock: clock, Dispatcher: scheduler, Mailbox: stepping.Mailbox, Log: zaptest.NewLogger(t), StrictSpawn: true,
			})
			w.breathe = func(steps int) { scheduler.Settle(steps) }
			w.until = func(t *testing.T, what string, condition func() bool) {
				t.Helper()
				for !condition() {
					if !scheduler.Step() && !clock.Next() {
						t.Fatalf("nothing moves any more, and not yet: %s", what)
					}
				}
			}
			w.stop = func(t *testing.T, d *activation.Directory) {
				t.Helper()
				// The first call only asks, for its context has ended.
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = d.Stop(ctx)
				if !scheduler.Settle(1 << 20) {
					t.Fatal("the actors do not stop")
				}
				ctx, cancel = context.WithTimeout(context.Background(), patience)
				defer cancel()
				if err := d.Stop(ctx); err != nil {
					t.Fatal(err)
				}
			}
			test(t, w)
		})
	}
}

// changes tells a waiting test that something happened.
type changes struct {
	mu   sync.Mutex
	next chan struct{}
}

func newChanges() *changes { return &changes{next: make(chan struct{})} }

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

// realClock is the time of day as host.Clock.
type realClock struct{ start time.Time }

func (c realClock) Now() time.Duration { return time.Since(c.start) }

func (c realClock) After(d time.Duration, deliver func()) func() {
	timer := time.AfterFunc(d, deliver)
	return func() { timer.Stop() }
}

// journal is what the test's actors did.
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
	return append([]string(nil), j.lines...)
}

func (j *journal) count(line string) int {
	n := 0
	for _, l := range j.all() {
		if l == line {
			n++
		}
	}
	return n
}

var _ actor.Actor = (*subject)(nil)

// nowhere is a transport that loses everything.
type nowhere struct{}

func (nowhere) Send(string, *actorv1.Packet) {}
