package daemon_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
)

// refuses is a registry that answers each request in the same way.
func refuses(t *testing.T, status int, body string) (host string) {
	t.Helper()
	r := registrytest.New(false)
	t.Cleanup(r.Close)
	r.Misbehave(func(*http.Request) *registrytest.Fault { return &registrytest.Fault{Status: status, Body: body} })
	return r.Host
}

// reservedAddress is one that nobody listens on until listen is called: a connection is
// refused there, and no other program can have it meanwhile.
func reservedAddress(t *testing.T) (address string, listen func() net.Listener) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "reserved")
	t.Cleanup(func() { _ = socket.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port), func() net.Listener {
		t.Helper()
		if err := unix.Listen(fd, 128); err != nil {
			t.Fatal(err)
		}
		listener, err := net.FileListener(socket)
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
}

// named returns the ids of the runs with a name, when there are so many.
func (n *node) named(ctx context.Context, t *testing.T, name string, count int) []string {
	t.Helper()
	for ids := []string(nil); ; {
		if ids = strings.Fields(n.errand(t, "runs", "-q", "--name", name).stdout); len(ids) == count {
			return ids
		}
		if ctx.Err() != nil {
			t.Fatalf("there are the runs %v with the name %s, not %d", ids, name, count)
		}
	}
}

// LIF-07: a wrong image, or a registry that fails, keeps no run waiting for ever.
func TestWrongImages(t *testing.T) {
	t.Parallel()
	const (
		deadline = 30 * time.Second
		slack    = 5*time.Second + busy
	)
	n := startContainerNode(t)
	known, _ := registryWithBusybox(t)
	pulls := func(image string) string {
		t.Helper()
		r := n.errand(t, "run", "-d", "--start-deadline", deadline.String(), image, "--", "true")
		if r.code != 0 {
			t.Fatalf("errand run -d: %+v", r)
		}
		return strings.TrimSpace(r.stdout)
	}
	// They all wait at the same time, and beside what follows.
	waiting := []struct{ name, id, reason, words string }{
		{"no such manifest", pulls(known.Host + "/none:404"), "IMAGE_NOT_FOUND", "none:404"},
		{"a refusal", pulls(refuses(t, 403, `{"errors":[{"code":"DENIED","message":"not for you"}]}`) + "/a:1"), "IMAGE_PULL", "403 Forbidden: DENIED not for you"},
		{"a failure", pulls(refuses(t, 500, `{"errors":[{"code":"UNKNOWN","message":"out of order"}]}`) + "/a:1"), "IMAGE_PULL", "500 Internal Server Error"},
		{"silence", pulls(silentRegistry(t) + "/a:1"), "IMAGE_PULL", "still asking registry"},
	}
	t.Run("cancel works within 2 s while an image is pulled", func(t *testing.T) {
		silent := pulls(silentRegistry(t) + "/b:1")
		slow, image := registryWithBusybox(t)
		slow.Misbehave(func(r *http.Request) *registrytest.Fault {
			if strings.Contains(r.URL.Path, "/blobs/") {
				return &registrytest.Fault{Stall: true, Bytes: 1000}
			}
			return nil
		})
		stalled := pulls(image)
		for until := time.Now().Add(deadline); slow.Count("/blobs/") == 0; time.Sleep(10 * time.Millisecond) { // a registry has no event to wait for
			if time.Now().After(until) {
				t.Fatal("no blob was asked for")
			}
		}
		for _, id := range []string{silent, stalled} {
			began := time.Now()
			n.errand(t, "cancel", id).want(t, 0, id+"\n", "")
			r := n.errand(t, "wait", id)
			if s := n.show(t, id); r.code != 130 || s.Status != "CANCELED" || s.ExitCode != nil || s.EndedAt.Sub(began) > 2*time.Second+busy {
				t.Errorf("%s after the cancel: %+v", s.EndedAt.Sub(began), s)
			}
		}
	})
	t.Run("a registry that is down for 10 s is no failure", func(t *testing.T) { n.registryComesBack(t) })
	for _, test := range waiting {
		t.Run(test.name, func(t *testing.T) {
			r := n.errand(t, "wait", "--timeout", (deadline + 2*slack).String(), test.id)
			s := n.show(t, test.id)
			took := s.EndedAt.Sub(s.QueuedAt)
			if r.code != 125 || s.Status != "FAILED" || s.Reason != test.reason || s.ExitCode != nil || !strings.Contains(s.Message, test.words) {
				t.Errorf("wait gave %+v, the run is %+v", r, s)
			}
			if at := test.reason == "IMAGE_NOT_FOUND"; at && took > slack || !at && (took < deadline || took > deadline+slack) {
				t.Errorf("it ended %s after it was queued", took)
			}
			if log := n.errand(t, "logs", test.id); log.code != 0 || log.stdout != "" || !strings.Contains(log.stderr, test.reason) {
				t.Errorf("errand logs gave %+v", log)
			}
		})
	}
}

// registryComesBack runs two commands whose registry is not there for ten seconds: for one
// nobody listens, for the other somebody is out of order.
func (n *node) registryComesBack(t *testing.T) {
	const down = 10 * time.Second
	failing, image := registryWithBusybox(t)
	var broken atomic.Bool
	broken.Store(true)
	failing.Misbehave(func(*http.Request) *registrytest.Fault {
		if broken.Load() {
			return &registrytest.Fault{Status: 503}
		}
		return nil
	})
	absent, listen := reservedAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	results := make(chan result, 2)
	run := func(image string) {
		results <- n.errand(t, "run", "--name", "comes-back", image, "--", "echo", "well")
	}
	go run(image)
	go run(strings.Replace(image, failing.Host, absent, 1))
	ids := n.named(ctx, t, "comes-back", 2)
	through := []func() []string{n.statuses(ctx, t, ids[0]), n.statuses(ctx, t, ids[1])}
	<-time.After(down)
	broken.Store(false)
	server := httptest.NewUnstartedServer(failing)
	server.Listener = listen()
	server.Start()
	defer server.Close()
	for range ids {
		(<-results).want(t, 0, "well\n", "")
	}
	for i, id := range ids {
		s := n.show(t, id)
		if s.Status != "SUCCEEDED" || s.Reason != "" || len(s.Attempts) != 1 || s.StartedAt.Sub(s.QueuedAt) < down {
			t.Errorf("the run is %+v", s)
		}
		for _, status := range through[i]() {
			if status == "FAILED" || status == "TIMED_OUT" || status == "CANCELED" {
				t.Errorf("on its way run %s was %s", id, status)
			}
		}
	}
}
