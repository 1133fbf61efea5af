package nodes_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/store"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/clock"
	"github.com/errand-run/errand/nodes/journal"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/pool"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/null"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type cryptoRand struct{}

func (cryptoRand) Uint64() uint64 {
	var b [8]byte
	cryptoRand{}.Fill(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (cryptoRand) Fill(b []byte) { _, _ = rand.Read(b) }

const patience = time.Minute

// world is a store that outlives the daemons which run on it.
type world struct {
	t     *testing.T
	dir   string
	keys  records.Keys
	store *store.Store
}

// daemon is one life of a node's process.
type daemon struct {
	node    *nodes.Node
	journal *journal.Journal
	pool    *pool.Pool
	driver  *null.Driver
	clock   *clock.Clock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), keys: records.Keys{Root: records.RootDefault, Shards: 4}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	w.store, err = store.Open(ctx, store.Config{DataDir: w.dir + "/etcd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.store.EnsureCluster(ctx, w.keys, true); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) logPath(run string, attempt int32) string {
	return logs.Path(w.dir+"/logs", run, attempt)
}

func (w *world) config(boot string) nodes.Config {
	return nodes.Config{
		ID: "n1", Keys: w.keys, Address: "127.0.0.1:1", Version: "test", BootID: boot, LogPath: w.logPath,
		SandboxesMax: 500, CPUMillis: 2000, MemoryBytes: 1 << 30, Drivers: []string{null.Name},
	}
}

func (w *world) open(config nodes.Config) *daemon {
	w.t.Helper()
	d := &daemon{clock: clock.New()}
	var err error
	if d.journal, err = journal.Open(w.dir, ""); err != nil {
		w.t.Fatal(err)
	}
	if d.driver, err = null.New(w.dir + "/null"); err != nil {
		w.t.Fatal(err)
	}
	d.pool = pool.New(map[string]sandbox.Driver{null.Name: d.driver})
	d.node, err = nodes.New(nodes.Ports{
		Clock: d.clock, Store: w.store, Rand: cryptoRand{}, Journal: d.journal, Sandboxes: d.pool, Log: zaptest.NewLogger(w.t),
	}, config)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (d *daemon) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.node.Recover, d.node.Adopt, d.node.Register, d.node.Reconcile, d.node.Announce} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) close(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, err := range []error{d.node.Close(ctx), d.pool.Close(ctx), d.driver.Close(), d.journal.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	d.clock.Close()
}

func (w *world) create(ctx context.Context, d *daemon, command ...string) string {
	w.t.Helper()
	var random [16]byte
	cryptoRand{}.Fill(random[:])
	now := time.Now().UnixMilli()
	run := &recordv1.Run{
		Id: records.RunIDFromRandom(records.DefaultApp, random), App: records.DefaultApp, Trigger: recordv1.Trigger_TRIGGER_MANUAL,
		Spec: &recordv1.Spec{
			Driver: null.Name, Command: command, TimeoutMs: 3_600_000, StartDeadlineMs: 300_000, StopGraceMs: 10_000,
		},
		Status: recordv1.Status_STATUS_PENDING, CreatedAt: now, QueuedAt: now, Attempt: 1, MinWriter: records.Writer,
	}
	result, err := w.store.Do(ctx, w.keys.Create(run, now))
	if err != nil || !result.Succeeded {
		w.t.Fatalf("create: %v, succeeded %v", err, result.Succeeded)
	}
	d.node.Router().Tell(actors.KindRun, run.GetId(), &actorv1.Wake{Run: run.GetId()})
	return run.GetId()
}

func (w *world) read(ctx context.Context, run string) *recordv1.Run {
	w.t.Helper()
	result, err := w.store.Do(ctx, records.Read(records.Get(w.keys.Run(run))))
	if err != nil {
		w.t.Fatal(err)
	}
	kv, ok := result.First(0)
	if !ok {
		w.t.Fatalf("run %s is gone", run)
	}
	record, err := records.DecodeRun(kv)
	if err != nil {
		w.t.Fatal(err)
	}
	return record
}

// await follows the run until it is as wanted.
func (w *world) await(ctx context.Context, run string, wanted func(*recordv1.Run) bool) *recordv1.Run {
	w.t.Helper()
	found := make(chan *recordv1.Run, 1)
	stop := w.store.Follow(w.keys.Run(run), func(batch records.Batch) {
		for _, event := range batch.Events {
			if record, err := records.DecodeRun(event.KV); err == nil && !event.Deleted && wanted(record) {
				select {
				case found <- record:
				default:
				}
			}
		}
	})
	defer stop()
	select {
	case record := <-found:
		return record
	case <-ctx.Done():
		w.t.Fatalf("run %s: %v; it is %v", run, ctx.Err(), w.read(context.Background(), run))
		return nil
	}
}

func terminal(run *recordv1.Run) bool { return records.Terminal(run.GetStatus()) }

func status(wanted recordv1.Status) func(*recordv1.Run) bool {
	return func(run *recordv1.Run) bool { return run.GetStatus() == wanted }
}

// eventually polls for what has no event.
func eventually(ctx context.Context, t *testing.T, what string, holds func() string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		wrong := holds()
		if wrong == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, wrong)
		}
	}
}

// clean waits until nothing of finished runs is left in the store, the journal and
// the driver.
func (w *world) clean(ctx context.Context, d *daemon) {
	w.t.Helper()
	eventually(ctx, w.t, "clean", func() string {
		for _, prefix := range []string{"live/", "assignments/"} {
			result, err := w.store.Do(ctx, records.Read(records.Range(w.keys.Root+prefix)))
			if err != nil {
				return err.Error()
			}
			if n := len(result.Responses[0].KVs); n > 0 {
				return fmt.Sprintf("%d keys below %s", n, prefix)
			}
		}
		loaded := make(chan nodes.JournalContent, 1)
		d.journal.Load(func(content nodes.JournalContent, err error) {
			if err != nil {
				w.t.Error(err)
			}
			loaded <- content
		})
		if content := <-loaded; len(content.Entries) > 0 {
			return fmt.Sprintf("%d journal entries, first %v", len(content.Entries), content.Entries[0])
		}
		infos, err := d.driver.List(ctx)
		if err != nil || len(infos) > 0 {
			return fmt.Sprintf("%d sandboxes, %v", len(infos), err)
		}
		return ""
	})
}

func TestNodeRunsTwoHundredRunsAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := w.open(w.config("boot-1"))
	defer d.close(t)
	if err := d.start(ctx); err != nil {
		t.Fatal(err)
	}
	var runs []string
	for range 200 {
		runs = append(runs, w.create(ctx, d, "exit=0"))
	}
	for _, run := range runs {
		record := w.await(ctx, run, terminal)
		if record.GetStatus() != recordv1.Status_STATUS_SUCCEEDED || record.ExitCode == nil || record.GetExitCode() != 0 {
			t.Fatalf("run %s: %v", run, record)
		}
		if attempt := record.GetAttempts()[0]; len(record.GetAttempts()) != 1 || attempt.GetPlacement() != 1 || !attempt.GetLogComplete() {
			t.Fatalf("run %s: attempts %v", run, record.GetAttempts())
		}
	}
	w.clean(ctx, d)
	if status := d.node.Status(); status.Sandboxes != 0 || status.Unacknowledged != 0 || status.Phase != nodes.PhaseAnnounced {
		t.Errorf("status %+v", status)
	}
}
