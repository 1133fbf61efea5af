package api_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/client"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// silentFor is how long either side of these tests waits where it waits 15 s or more.
const silentFor = 200 * time.Millisecond

// wire is a network between a client and a node, which can be cut without a sign: what was
// connected stays so, and nothing arrives.
type wire struct {
	listener net.Listener
	to       string
	under    sync.WaitGroup

	mu    sync.Mutex
	cut   chan struct{}
	conns []net.Conn
}

// newWire leads to a server; its url is that of the client's side.
func newWire(t *testing.T, to string) (w *wire, url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w = &wire{listener: listener, to: strings.TrimPrefix(to, "http://"), cut: make(chan struct{})}
	w.under.Go(w.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		w.mu.Lock()
		for _, conn := range w.conns {
			_ = conn.Close()
		}
		w.mu.Unlock()
		w.under.Wait()
	})
	return w, "http://" + listener.Addr().String()
}

func (w *wire) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, near, far)
		cut := w.cut
		w.mu.Unlock()
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			w.under.Go(func() { carry(pair[0], pair[1], cut) })
		}
	}
}

// carry carries bytes until an end, which it passes on, or the cut, after which it says
// nothing to anybody.
func carry(from, to net.Conn, cut <-chan struct{}) {
	for p := make([]byte, 4096); ; {
		n, err := from.Read(p)
		select {
		case <-cut:
			return
		default:
		}
		if err != nil {
			_ = to.Close()
			return
		}
		_, _ = to.Write(p[:n])
	}
}

// cutSilently cuts what is connected; what connects from now on is carried.
func (w *wire) cutSilently() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.cut)
	w.cut = make(chan struct{})
}

func newSilentRig(t *testing.T) (*rig, *inside, *given) {
	t.Helper()
	in, g := &inside{root: t.TempDir()}, newGiven()
	r := newRig(t, func(config *api.Config) {
		config.Sandboxes, config.PingAfter, config.PingTimeout = in, silentFor, silentFor
	})
	in.open = func() (sandbox.Input, error) { return g, nil }
	r.put(insideRun, func(run *recordv1.Run) {
		run.Status, run.Attempt, run.Trigger = recordv1.Status_STATUS_RUNNING, 1, recordv1.Trigger_TRIGGER_CONSOLE
		run.Spec.Driver, run.Spec.Stdin = "process", true
		placed("n1", 1)(run)
	})
	return r, in, g
}

// TestClientThatIsGoneWithoutASignIsNoticed: its network is cut. Its run's actor is told
// of it no more, and the command beside the run is killed.
func TestClientThatIsGoneWithoutASignIsNoticed(t *testing.T) {
	r, in, g := newSilentRig(t)
	killed := make(chan struct{})
	in.do = func(ctx context.Context, e sandbox.Exec) (sandbox.ExecEnd, error) {
		e.Started()
		<-ctx.Done()
		close(killed)
		return sandbox.ExecEnd{Code: 137}, nil
	}
	w, url := newWire(t, r.url)
	c, err := client.New(client.Config{Address: url, Token: testToken, Patience: client.Patience{Silent: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, leave := context.WithCancel(r.ctx)
	defer leave()
	ended := attached(ctx, t, c, client.Attach{Run: insideRun})
	execEnded, started := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := c.Exec(ctx, client.Exec{Start: start("sleep", "1h"), Started: func() { close(started) }})
		execEnded <- err
	}()
	<-started
	w.cutSilently()
	for what, gone := range map[string]chan struct{}{"the attendance": g.closed, "the command beside": killed} {
		select {
		case <-gone:
		case <-r.ctx.Done():
			t.Fatalf("%s goes on", what)
		}
	}
	leave()
	for _, call := range []<-chan error{ended, execEnded} {
		if err := <-call; err == nil {
			t.Error("a call whose connection was cut succeeded")
		}
	}
}

// TestClientThatStandsStillIsNoticed: its process is stopped, and its kernel goes on.
func TestClientThatStandsStillIsNoticed(t *testing.T) {
	if address := os.Getenv("ERRAND_TEST_STOPPED"); address != "" {
		c, err := client.New(client.Config{Address: address, Token: testToken})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Attach(t.Context(), client.Attach{Run: insideRun, Stdin: os.Stdin, Open: func(bool, int64) { _ = os.Stdout.Close() }})
		return
	}
	r, _, g := newSilentRig(t)
	command := exec.Command(os.Args[0], "-test.run=^TestClientThatStandsStillIsNoticed$")
	command.Env = append(os.Environ(), "ERRAND_TEST_STOPPED="+r.url)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = stdin.Close()
		_ = command.Wait()
	}()
	_, _ = io.ReadAll(stdout) // until it is attached
	if err := command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.closed:
	case <-r.ctx.Done():
		t.Fatal("the attendance goes on")
	}
}

// TestClientFindsThatItsNodeIsGoneWithoutASign and attaches again, over a network that is
// there again, though what it has typed meanwhile was never received.
func TestClientFindsThatItsNodeIsGoneWithoutASign(t *testing.T) {
	r, _, g := newSilentRig(t)
	w, url := newWire(t, r.url)
	c, err := client.New(client.Config{Address: url, Token: testToken, Patience: client.Patience{Silent: silentFor}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	again := make(chan int64, 1)
	reader, writer := io.Pipe()
	defer writer.Close()
	ended := attached(r.ctx, t, c, client.Attach{Run: insideRun, Stdin: reader, Typed: true, Open: func(second bool, unsure int64) {
		if second {
			again <- unsure
		}
	}})
	w.cutSilently()
	_, _ = io.WriteString(writer, "typed")
	select {
	case unsure := <-again:
		if unsure != 5 {
			t.Errorf("%d bytes may be lost, of 5 that are", unsure)
		}
	case <-r.ctx.Done():
		t.Fatal("it does not notice")
	}
	_, _ = io.WriteString(writer, "heard")
	g.await(r.ctx, t, "heard", func() bool { return g.data.String() == "heard" })
	r.end(insideRun, recordv1.Status_STATUS_SUCCEEDED, 5)
	if err := <-ended; err != nil {
		t.Errorf("attach: %v", err)
	}
}
