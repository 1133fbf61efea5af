package boot_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/boot"
	"github.com/errand-run/errand/cluster/freeport"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// descriptors returns what the process has open.
func descriptors(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]string{}
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil {
			open[entry.Name()] = target
		}
	}
	return open
}

// wantNothingLeft waits until no goroutine and no descriptor is left that was not
// there before.
func wantNothingLeft(t *testing.T, before map[string]string, goroutines goleak.Option) {
	t.Helper()
	if err := goleak.Find(goroutines); err != nil {
		t.Errorf("left behind: %v", err)
	}
	for number, target := range descriptors(t) {
		// The poller of the Go runtime comes with the first file and stays.
		if before[number] != target && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") {
			t.Errorf("descriptor %s is left: %s", number, target)
		}
	}
}

func TestFiftyStartsAndStopsLeaveNothing(t *testing.T) {
	config := silent(t)
	config.Listen = "127.0.0.1:0"
	cycle := func() {
		h := newHost(config)
		if err := h.Start(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		h.run(t, "log=x")
		h.stop(t)
	}
	cycle() // what comes once and stays
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	ignored := goleak.IgnoreCurrent()
	for range 50 {
		cycle()
	}
	wantNothingLeft(t, before, ignored)
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	if now := len(descriptors(t)); now > len(before) {
		t.Errorf("%d descriptors, %d before", now, len(before))
	}
}

func TestStartThatFailsElsewhereStopsTheNode(t *testing.T) {
	config := silent(t)
	config.Listen = freeAddress(t)
	before, ignored := descriptors(t), goleak.IgnoreCurrent()
	h := newHost(config, fx.Invoke(func(lifecycle fx.Lifecycle, _ *boot.Instance) {
		lifecycle.Append(fx.Hook{OnStart: func(context.Context) error { return errors.New("the other part is broken") }})
	}))
	if err := h.Start(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "the other part is broken") {
		t.Fatalf("%v", err)
	}
	wantNothingLeft(t, before, ignored)
	newHost(config).start(t)
}

func TestStartWhoseContextEndsLeavesNothing(t *testing.T) {
	config := silent(t)
	config.Listen = freeAddress(t)
	whole := func() time.Duration {
		began := time.Now()
		h := newHost(config)
		if err := h.Start(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		defer h.stop(t)
		return time.Since(began)
	}
	whole()
	took := whole()
	before, ignored := descriptors(t), goleak.IgnoreCurrent()
	failed := 0
	for step := range 20 {
		h := newHost(config)
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(step)/16)
		err := h.Start(ctx)
		cancel()
		switch {
		case err == nil:
			h.stop(t)
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("step %d: %v", step, err)
		default:
			failed++
			// fx returns at once; Close waits for what is still under way.
			if err := h.node.Close(within(t, time.Minute)); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		}
		wantNothingLeft(t, before, ignored)
		if t.Failed() {
			t.Fatalf("at step %d of %v", step, took)
		}
	}
	if failed < 5 {
		t.Errorf("only %d starts were cut", failed)
	}
}

func TestCloseEndsAStartThatIsUnderWay(t *testing.T) {
	config := silent(t)
	config.Listen = ""
	entered := make(chan struct{})
	h := newHost(config, fx.Replace(boot.Parts{Listen: func(ctx context.Context) (net.Listener, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}}))
	started := make(chan error, 1)
	go func() { started <- h.Start(within(t, time.Minute)) }()
	<-entered
	if err := h.node.Close(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if err := <-started; !errors.Is(err, context.Canceled) {
		t.Errorf("the start says %v", err)
	}
}

// fx runs no hook at all when the context of a stop is over already.
func TestCloseStopsWhatFxCanNot(t *testing.T) {
	config := silent(t)
	config.Listen = freeAddress(t)
	before, ignored := descriptors(t), goleak.IgnoreCurrent()
	h := newHost(config)
	if err := h.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Stop(over); !errors.Is(err, context.Canceled) {
		t.Errorf("the stop says %v", err)
	}
	for range 2 {
		if err := h.node.Close(within(t, time.Minute)); err != nil {
			t.Error(err)
		}
	}
	wantNothingLeft(t, before, ignored)
	newHost(config).start(t)
}

// Nor does fx roll back when another hook has used up the time of the start.
func TestCloseTakesDownWhatFxDidNotRollBack(t *testing.T) {
	config := silent(t)
	config.Listen = freeAddress(t)
	before, ignored := descriptors(t), goleak.IgnoreCurrent()
	reached := make(chan struct{})
	h := newHost(config, fx.Invoke(func(lifecycle fx.Lifecycle, _ *boot.Instance) {
		lifecycle.Append(fx.Hook{OnStart: func(ctx context.Context) error {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}})
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	if err := h.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the start says %v", err)
	}
	if err := h.node.Close(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, before, ignored)
	newHost(config).start(t)
}

// A call that does not end holds a stop up for as long as its context lasts, no more.
func TestStopWhoseContextEndsCutsTheCallsUnderWay(t *testing.T) {
	config := silent(t)
	config.Listen, config.Dev = "127.0.0.1:0", true
	before, ignored := descriptors(t), goleak.IgnoreCurrent()
	h := newHost(config)
	if err := h.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	// A profile lasts as long as its caller wants.
	answered := make(chan error, 1)
	go func() {
		response, err := http.Get("http://" + h.node.Address() + "/debug/pprof/profile?seconds=60")
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	awaitCall(t)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := h.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stop says %v", err)
	}
	if err := h.node.Close(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second { // the profile would last for 60
		t.Errorf("took %v", took)
	}
	if err := <-answered; err == nil {
		t.Error("the call was answered")
	}
	http.DefaultClient.CloseIdleConnections()
	wantNothingLeft(t, before, ignored)
}

// awaitCall waits until a profile is being taken.
func awaitCall(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		stacks := make([]byte, 1<<20)
		if strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "pprof.Profile") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no profile was begun")
		}
		runtime.Gosched()
	}
}

func TestTwoNodesInOneProcessKnowNothingOfEachOther(t *testing.T) {
	first := newHost(silent(t)).start(t)
	config := silent(t)
	config.Name = "other"
	second := newHost(config).start(t)
	run := first.run(t, "exit=1")
	second.run(t, "exit=2")
	if _, err := second.node.Client().Get(within(t, time.Minute), run.GetId()); client.CodeOf(err) != codes.RunNotFound {
		t.Errorf("the second knows the first's run: %v", err)
	}
	first.stop(t)
	if got := second.run(t, "exit=3"); got.GetExitCode() != 3 {
		t.Errorf("%v", got)
	}
}

func TestSecondNodeOnADataDirectoryIsRefusedAndTheFirstGoesOn(t *testing.T) {
	config := silent(t)
	first := newHost(config).start(t)
	before := len(descriptors(t))
	err := newHost(config).Start(within(t, time.Minute))
	if err == nil || !strings.Contains(err.Error(), "is held by another") || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("%v", err)
	}
	if now := len(descriptors(t)); now > before {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	if run := first.run(t, "exit=0"); run.GetStatus() != errandv1.Status_STATUS_SUCCEEDED {
		t.Errorf("%v", run)
	}
}

func TestTwoNodesInOneApplicationAreRefused(t *testing.T) {
	err := fx.New(boot.Node(silent(t)), boot.Node(silent(t)), fx.NopLogger).Err()
	if err == nil || !strings.Contains(err.Error(), "already provided") {
		t.Errorf("%v", err)
	}
}

func TestBadConfigurationFailsTheApplicationAndNamesEachField(t *testing.T) {
	app := fx.New(boot.Node(boot.Config{Name: "No!", Shards: -1}), fx.NopLogger)
	for _, says := range []string{"name", "shards"} {
		if err := app.Err(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not name %s", err, says)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
