package nodes_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// memoryFence is a fence that nobody else looks at.
type memoryFence struct {
	mu    sync.Mutex
	state nodes.FenceState
	ok    bool
}

func (f *memoryFence) Load() (nodes.FenceState, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.ok
}

func (f *memoryFence) Arm(state nodes.FenceState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ok && f.state.Session == state.Session && f.state.FencedAt > 0 {
		state.FencedAt = f.state.FencedAt
	}
	f.state, f.ok = state, true
}

// leased is a session that is short, for a test.
func leased() nodes.SessionConfig {
	return nodes.SessionConfig{
		Lease: 10 * time.Second, Renew: 200 * time.Millisecond, Margin: 2 * time.Second,
		KillBudget: 1500 * time.Millisecond, Drift: 0.01, StartMargin: 500 * time.Millisecond,
	}
}

func TestLeasesAndFenceMustBeGivenUnlessTheSessionIsSolo(t *testing.T) {
	w := newWorld(t)
	config := w.config("boot-1")
	d := w.open(config)
	defer d.close(t)
	config.Session = leased()
	if _, err := nodes.New(nodes.Ports{Clock: d.clock, Store: w.store, Rand: cryptoRand{}, Journal: d.journal, Sandboxes: d.pool}, config); err == nil {
		t.Error("assembled without leases and fence")
	}
}

// TestNodeWithALeaseOnARealStore renews its session, and is fenced and registers anew
// when that is taken away.
func TestNodeWithALeaseOnARealStore(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w := newWorld(t)
	config := w.config("boot-1")
	d := w.open(config)
	config.Session = leased()
	fence := &memoryFence{}
	err := d.node.Close(ctx) // another takes its place
	if err != nil {
		t.Fatal(err)
	}
	d.node, err = nodes.New(nodes.Ports{
		Clock: d.clock, Store: w.store, Leases: w.store, Fence: fence, Rand: cryptoRand{}, Journal: d.journal,
		Sandboxes: d.pool, Log: zaptest.NewLogger(t),
	}, config)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close(t)
	d.node.Advance(nodes.PhaseAnnounced)
	eventually(ctx, t, "the node is up", func() string {
		if d.node.Status().Phase == nodes.PhaseAnnounced {
			return ""
		}
		return d.node.Status().Phase.String()
	})
	run := w.create(ctx, d, "after=1h")
	w.await(ctx, run, status(recordv1.Status_STATUS_RUNNING))
	armed, _ := fence.Load()
	eventually(ctx, t, "the session is renewed", func() string {
		if now, _ := fence.Load(); now.Session == armed.Session && now.Deadline > armed.Deadline {
			return ""
		}
		return "deadline " + armed.Deadline.String()
	})

	key := w.keys.Node("n1")
	if _, err := w.store.Do(ctx, records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: key}}}); err != nil {
		t.Fatal(err)
	}
	record := w.await(ctx, run, terminal)
	if record.GetReason() != recordv1.Reason_REASON_NODE_FENCED || record.ExitCode != nil {
		t.Errorf("the run ended as %v", record)
	}
	eventually(ctx, t, "the node has another session", func() string {
		status := d.node.Status()
		if now, _ := fence.Load(); status.Session > armed.Session && now.Session == status.Session && !status.Fenced && status.Trouble == "" {
			return ""
		}
		return strconv.FormatInt(status.Session, 10) + " " + status.Trouble
	})
	again := w.create(ctx, d, "exit=0")
	w.await(ctx, again, status(recordv1.Status_STATUS_SUCCEEDED))
}
