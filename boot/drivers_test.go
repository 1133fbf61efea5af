package boot_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// counted is a driver of an application: another one under a name of its own.
type counted struct {
	sandbox.Driver
	name           string
	starts, closes *atomic.Int32
}

func (c counted) Name() string { return c.name }
func (c counted) Close() error { c.closes.Add(1); return c.Driver.Close() }
func (c counted) Start(ctx context.Context, id string) (time.Time, error) {
	c.starts.Add(1)
	return c.Driver.Start(ctx, id)
}

func TestDriversOfTheApplicationTakeThePlaceOfTheNodes(t *testing.T) {
	var starts, closes atomic.Int32
	h := newHost(silent(t), fx.Replace(boot.Parts{Drivers: func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
		if len(enabled) != 1 || enabled[0].Name() != boot.DriverNull {
			t.Errorf("enabled: %v", enabled)
		}
		return []sandbox.Driver{counted{enabled[0], "acme", &starts, &closes}}, nil
	}})).start(t)
	if got := strings.Join(h.node.Drivers(), " "); got != "acme" {
		t.Errorf("drivers %q", got)
	}
	if run := h.run(t, "exit=3"); run.GetExitCode() != 3 || run.GetSpec().GetDriver() != "acme" {
		t.Errorf("%v", run)
	}
	h.stop(t)
	if starts.Load() != 1 || closes.Load() != 1 {
		t.Errorf("%d starts, %d closes", starts.Load(), closes.Load())
	}
}

func TestDriversThatCanNotBeAreRefusedAndClosed(t *testing.T) {
	for _, test := range []struct {
		name   string
		choose func(null sandbox.Driver, starts, closes *atomic.Int32) ([]sandbox.Driver, error)
		says   string
		closes int32
	}{
		{"an error", func(sandbox.Driver, *atomic.Int32, *atomic.Int32) ([]sandbox.Driver, error) {
			return nil, errors.New("no license")
		}, "no license", 0},
		{"none", func(null sandbox.Driver, _, _ *atomic.Int32) ([]sandbox.Driver, error) { return nil, null.Close() }, "there is none", 0},
		{"nil", func(null sandbox.Driver, starts, closes *atomic.Int32) ([]sandbox.Driver, error) {
			return []sandbox.Driver{nil, counted{null, "acme", starts, closes}}, nil
		}, "one is nil", 1},
		{"a bad name", func(null sandbox.Driver, starts, closes *atomic.Int32) ([]sandbox.Driver, error) {
			return []sandbox.Driver{counted{null, "Acme!", starts, closes}}, nil
		}, `"Acme!"`, 1},
		{"one name twice", func(null sandbox.Driver, starts, closes *atomic.Int32) ([]sandbox.Driver, error) {
			return []sandbox.Driver{counted{null, "a", starts, closes}, counted{null, "a", starts, closes}}, nil
		}, "two are named a", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			var starts, closes atomic.Int32
			h := newHost(silent(t), fx.Replace(boot.Parts{Drivers: func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
				return test.choose(enabled[0], &starts, &closes)
			}}))
			if err := h.Start(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "sandbox host") {
				t.Errorf("got %v, want %q", err, test.says)
			}
			if closes.Load() != test.closes {
				t.Errorf("%d closes, want %d", closes.Load(), test.closes)
			}
		})
	}
}

func TestDriversAloneNeedNoneOfTheNodes(t *testing.T) {
	config := silent(t)
	config.Drivers = nil
	h := newHost(config, fx.Replace(boot.Parts{Drivers: func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
		if len(enabled) > 0 {
			t.Errorf("enabled: %v", enabled)
		}
		return nil, nil
	}}))
	if err := h.Start(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("%v", err)
	}
}

// collector is a log sink.
type collector struct {
	mu    sync.Mutex
	texts map[string]string
	ends  map[string][]*errandv1.LogEnd
	ended chan string
	hold  chan struct{}
	fail  error
}

func newCollector() *collector {
	return &collector{texts: map[string]string{}, ends: map[string][]*errandv1.LogEnd{}, ended: make(chan string, 1000)}
}

func (c *collector) take(ctx context.Context, run string, message *errandv1.LogsResponse) error {
	if c.hold != nil {
		select {
		case <-c.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c.fail != nil {
		return c.fail
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, chunk := range message.GetChunks() {
		c.texts[run] += string(chunk.GetData())
	}
	if message.GetEnd() != nil {
		c.ends[run] = append(c.ends[run], message.GetEnd())
		c.ended <- run
	}
	return nil
}

func TestLogSinkHasWhatEveryRunWroteOnceAndInOrder(t *testing.T) {
	sink := newCollector()
	h := newHost(silent(t), fx.Replace(boot.Parts{LogSink: sink.take})).start(t)
	const runs = 30
	var working sync.WaitGroup
	for range runs {
		working.Go(func() { h.run(t, "log=one", "log=two", "after=5ms") })
	}
	working.Wait()
	for range runs {
		select {
		case <-sink.ended:
		case <-within(t, time.Minute).Done():
			t.Fatal("a log has no end at the sink")
		}
	}
	for run, text := range sink.texts {
		if text != "one\ntwo\n" || len(sink.ends[run]) != 1 || !sink.ends[run][0].GetComplete() {
			t.Errorf("%s: %q, ends %v", run, text, sink.ends[run])
		}
	}
	if len(sink.texts) != runs {
		t.Errorf("%d runs", len(sink.texts))
	}
}

func TestLogSinkThatHangsOrFailsHoldsNoRun(t *testing.T) {
	hanging, failing := newCollector(), newCollector()
	hanging.hold, failing.fail = make(chan struct{}), errors.New("the sink is full")
	for name, sink := range map[string]*collector{"hangs": hanging, "fails": failing} {
		t.Run(name, func(t *testing.T) {
			core, logged := observer.New(zap.WarnLevel)
			h := newHost(silent(t), fx.Replace(boot.Parts{LogSink: sink.take, Log: zap.New(core)})).start(t)
			run := h.run(t, "log=hello")
			if got := h.output(t, run); got != "hello\n" {
				t.Errorf("the node's own log is %q", got)
			}
			began := time.Now()
			h.stop(t)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the stop took %v", took)
			}
			lines := logged.FilterMessageSnippet("sink").Len()
			if name == "fails" && lines != 1 || name == "hangs" && lines != 0 {
				t.Errorf("%d lines about the sink", lines)
			}
		})
	}
}

func TestLogSinkIsToldOfAdoptedRunsFromTheirStart(t *testing.T) {
	config := silent(t)
	sink := newCollector()
	h := newHost(config, fx.Replace(boot.Parts{LogSink: sink.take})).start(t)
	ctx := within(t, time.Minute)
	run, err := h.node.Client().Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"log=hello", "after=1h"}}})
	if err != nil {
		t.Fatal(err)
	}
	for state, err := range h.node.Client().Watch(ctx, run.GetId()) {
		if err != nil {
			t.Fatal(err)
		}
		if state.GetStatus() == errandv1.Status_STATUS_RUNNING {
			break
		}
	}
	h.stop(t)
	later := newCollector()
	h = newHost(config, fx.Replace(boot.Parts{LogSink: later.take})).start(t)
	if _, err := h.node.Client().Cancel(ctx, &errandv1.CancelRunRequest{Id: run.GetId(), Force: true}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-later.ended:
	case <-ctx.Done():
		t.Fatal("the log has no end at the sink")
	}
	if got := later.texts[run.GetId()]; got != "hello\n" {
		t.Errorf("the second sink has %q", got)
	}
}
