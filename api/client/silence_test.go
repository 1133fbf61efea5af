package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// frozen stands before a server and can be as a process that is stopped: its kernel
// takes connections and data, and nothing comes of them.
type frozen struct {
	address string
	mu      sync.Mutex
	thawed  *sync.Cond
	ice     bool
}

func freezable(t *testing.T, target string) *frozen {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &frozen{address: "http://" + listener.Addr().String()}
	f.thawed = sync.NewCond(&f.mu)
	var serving sync.WaitGroup
	var connections sync.Map
	serving.Go(func() {
		for {
			caller, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", strings.TrimPrefix(target, "http://"))
			if err != nil {
				_ = caller.Close()
				continue
			}
			connections.Store(caller, server)
			pass := func(to, from net.Conn) {
				buffer := make([]byte, 64<<10)
				for {
					n, err := from.Read(buffer)
					f.wait()
					_, writeErr := to.Write(buffer[:n])
					if err != nil || writeErr != nil {
						_ = to.Close()
						return
					}
				}
			}
			serving.Go(func() { pass(server, caller) })
			serving.Go(func() { pass(caller, server) })
		}
	})
	t.Cleanup(func() {
		f.freeze(false)
		_ = listener.Close()
		connections.Range(func(caller, server any) bool {
			_, _ = caller.(net.Conn).Close(), server.(net.Conn).Close()
			return true
		})
		serving.Wait()
	})
	return f
}

func (f *frozen) freeze(ice bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ice = ice
	f.thawed.Broadcast()
}

func (f *frozen) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ice {
		f.thawed.Wait()
	}
}

// impatient gives a silent node up soon.
var impatient = client.Patience{First: 300 * time.Millisecond, Again: 300 * time.Millisecond, PauseMin: time.Millisecond, PauseMax: 10 * time.Millisecond, Silent: 100 * time.Millisecond}

func TestEveryStreamEndsWhenItsNodeFreezes(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Inside = []byte("x") })
	s.Add(&errandv1.Run{Id: "r.default.going", Status: errandv1.Status_STATUS_RUNNING}).Write(errandv1.Stream_STREAM_STDOUT, "x\n")
	// heard is called with what a stream says first; those that say nothing until they are
	// done are frozen before.
	streams := map[string]func(ctx context.Context, c *client.Client, heard func()) error{
		"logs": func(ctx context.Context, c *client.Client, heard func()) error {
			for _, err := range c.Logs(ctx, &errandv1.LogsRequest{Id: "r.default.going", Follow: true}) {
				if err != nil {
					return err
				}
				heard()
			}
			return nil
		},
		"watch": func(ctx context.Context, c *client.Client, heard func()) error {
			for _, err := range c.WatchHistory(ctx, "r.default.going") {
				if err != nil {
					return err
				}
				heard()
			}
			return nil
		},
		"changes": func(ctx context.Context, c *client.Client, heard func()) error {
			for _, err := range c.Changes(ctx, &errandv1.RunChangesRequest{}) {
				if err != nil {
					return err
				}
				heard()
			}
			return nil
		},
		"pull": func(ctx context.Context, c *client.Client, heard func()) error {
			heard()
			_, err := c.PullImage(ctx, "busybox", nil, func(*errandv1.ImagePull) {})
			return err
		},
		"import": func(ctx context.Context, c *client.Client, heard func()) error {
			heard()
			_, err := c.ImportImage(ctx, "", bytes.NewReader(make([]byte, 64<<20)))
			return err
		},
		"copy": func(ctx context.Context, c *client.Client, heard func()) error {
			heard()
			return c.CopyFrom(ctx, "r.default.going", "/x", io.Discard)
		},
	}
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			f := freezable(t, s.URL())
			c := newClient(t, client.Config{Address: f.address, Patience: impatient})
			if _, err := c.Get(within(t, 2*time.Minute), "r.default.going"); err != nil {
				t.Fatal(err)
			}
			ctx := within(t, 2*time.Minute)
			err := stream(ctx, c, func() { f.freeze(true) })
			if client.CodeOf(err) != codes.Unreachable || !errors.Is(err, client.ErrSilent) || !strings.Contains(err.Error(), f.address+" does not answer") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A node that never says anything is given up by the first try that has shown it, whatever
// is asked: none begins anew.
func TestASilentNodeThatWasNeverHeardIsAskedOnce(t *testing.T) {
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: "r.default.going", Status: errandv1.Status_STATUS_RUNNING})
	patience := impatient
	patience.First = patience.Silent // which each try takes, and twice over
	for name, ask := range map[string]func(ctx context.Context, c *client.Client) error{
		"changes": func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Changes(ctx, &errandv1.RunChangesRequest{}) {
				return err
			}
			return nil
		},
		"logs": func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Logs(ctx, &errandv1.LogsRequest{Id: "r.default.going", Follow: true}) {
				return err
			}
			return nil
		},
		"attach": func(ctx context.Context, c *client.Client) error {
			return c.Attach(ctx, client.Attach{Run: "r.default.going", Stdin: strings.NewReader("")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := freezable(t, s.URL())
			f.freeze(true)
			var retries atomic.Int32
			c := newClient(t, client.Config{Address: f.address, Patience: patience, Retrying: func(client.Retry) { retries.Add(1) }})
			err := ask(within(t, 2*time.Minute), c)
			if client.CodeOf(err) != codes.Unreachable || !errors.Is(err, client.ErrSilent) || retries.Load() != 0 {
				t.Errorf("%v after %d more tries", err, retries.Load())
			}
		})
	}
}

func TestAStreamOfANodeThatHasNothingToSayGoesOn(t *testing.T) {
	s := startFake(t, nil)
	run := s.Add(&errandv1.Run{Id: "r.default.going", Status: errandv1.Status_STATUS_RUNNING})
	var retries atomic.Int32
	patience := quick
	patience.Silent = 2 * time.Second // and so long an answer may take
	c := newClient(t, client.Config{Address: s.URL(), Patience: patience, Retrying: func(client.Retry) { retries.Add(1) }})
	asked := s.Calls("/healthz")
	for state, err := range c.Watch(within(t, 2*time.Minute), "r.default.going") {
		if err != nil {
			t.Fatal(err)
		}
		if state.GetStatus() == errandv1.Status_STATUS_RUNNING {
			if err := s.Await(within(t, 2*time.Minute), func() bool { return s.Calls("/healthz") >= asked+2 }); err != nil {
				t.Fatal(err)
			}
			run.Exit(0)
		}
	}
	if retries.Load() != 0 {
		t.Errorf("%d streams were cut", retries.Load())
	}
}

func TestAnErrorSaysWhetherTheNodeMayHaveDoneItAllTheSame(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.LoseAnswers = 1 })
	c := newClient(t, client.Config{Address: s.URL(), Patience: impatient})
	request := &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox"}}
	var failed *client.Error
	if _, err := c.Once().Submit(within(t, 2*time.Minute), request); !errors.As(err, &failed) || !failed.Unsure {
		t.Errorf("an answer that was lost: %#v", err)
	}
	if len(s.Runs()) != 1 {
		t.Fatalf("%d runs", len(s.Runs()))
	}
	s.Stop()
	if _, err := c.Once().Submit(within(t, 2*time.Minute), request); !errors.As(err, &failed) || failed.Unsure {
		t.Errorf("nobody listens: %#v", err)
	}
}
