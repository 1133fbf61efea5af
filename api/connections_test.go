package api_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// dial opens a plain connection to the rig and sends a text.
func (r *rig) dial(text string) net.Conn {
	r.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(r.ctx, "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// stopped stops the server and returns how long that took.
func (r *rig) stopped() time.Duration {
	r.t.Helper()
	began := time.Now()
	r.stop()
	if err := <-r.served; err != nil {
		r.t.Error(err)
	}
	r.served <- nil
	return time.Since(began)
}

func TestStoppingIsNotHeldUpByWhoSendsNothingWhole(t *testing.T) {
	const head = "POST " + createPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 40\r\n"
	for name, text := range map[string]string{
		"an idle connection":            "",
		"half a request line":           "POST /err",
		"half a header":                 "GET /healthz HTTP/1.1\r\nHost: loc",
		"half a body":                   head + "Authorization: Bearer " + testToken + "\r\n\r\n{\"app\":",
		"half a body without its token": head + "\r\n{\"app\":",
		"half of a second request":      "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + head + "Authorization: Bearer " + testToken + "\r\n\r\n{\"app\":",
		"half the preface of HTTP/2":    "PRI * HTTP/2.0\r\n\r\nS",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.dial(text)
			// The connection is known once a later one is answered.
			if status, _ := r.get("/healthz", nil); status != http.StatusOK {
				t.Fatal(status)
			}
			if took := r.stopped(); took >= stopTimeout {
				t.Errorf("stopped after %s", took)
			}
		})
	}
}

// Its connection and its goroutine would be kept for as long as its sender likes.
func TestARefusedRequestIsAnsweredThoughItsBodyNeverComes(t *testing.T) {
	for name, c := range map[string]struct{ head, want string }{
		"without a token":     {"Host: localhost\r\n", "401"},
		"under another name":  {"Host: elsewhere\r\nAuthorization: Bearer " + testToken + "\r\n", "403"},
		"from a foreign page": {"Host: localhost\r\nOrigin: http://elsewhere\r\nAuthorization: Bearer " + testToken + "\r\n", "403"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			conn := r.dial("POST " + createPath + " HTTP/1.1\r\n" + c.head + "Content-Type: application/json\r\nContent-Length: 40\r\n\r\n{\"app\":")
			if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+c.want) {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
}

func TestStoppingIsNotHeldUpByHalfAStreamOfHTTP2(t *testing.T) {
	for _, c := range []struct{ path, kind, text string }{
		{createPath, "application/json", `{"app`},
		{"/errand.v1.ImageService/Import", "application/connect+json", "\x00\x00\x00\x00\x08{"},
	} {
		t.Run(c.path, func(t *testing.T) {
			r := newRig(t, func(config *api.Config) { config.Images = &shelf{} })
			body, write := io.Pipe()
			defer func() { _ = write.Close() }()
			request, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.url+c.path, body)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", c.kind)
			withToken(request)
			arrived := func() { // what was sent before on the one connection, too
				if _, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{App: "a"}); err != nil {
					t.Fatal(err)
				}
			}
			arrived()
			answered := make(chan string, 1)
			go func() {
				response, err := r.http.Do(request)
				if err != nil {
					answered <- err.Error()
					return
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				answered <- string(text)
			}()
			if _, err := io.WriteString(write, c.text); err != nil {
				t.Fatal(err)
			}
			arrived()
			if took := r.stopped(); took >= stopTimeout {
				t.Errorf("stopped after %s", took)
			}
			if text := <-answered; !strings.Contains(text, string(codes.NodeStopping)) {
				t.Errorf("answered %s", text)
			}
		})
	}
}

func TestHalfABodyIsToldThatTheNodeStops(t *testing.T) {
	r := newRig(t)
	conn := r.dial("POST " + createPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 40\r\nAuthorization: Bearer " + testToken + "\r\n\r\n{\"app\":")
	if status, _ := r.get("/healthz", nil); status != http.StatusOK {
		t.Fatal(status)
	}
	r.stopped()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if text, err := io.ReadAll(response.Body); err != nil || !bytes.Contains(text, []byte(codes.NodeStopping)) {
		t.Errorf("answered %d %s, %v", response.StatusCode, text, err)
	}
}

func TestAWholeRequestIsAnsweredWellAfterTheStop(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
		once.Do(func() { close(entered) })
		select {
		case <-release:
			return etcd.Do(ctx, txn)
		case <-ctx.Done():
			return records.Result{}, ctx.Err()
		}
	}
	plain := newHTTPClient(false)
	defer plain.CloseIdleConnections()
	runs, _, _ := clients(plain, r.url, testToken)
	answered := make(chan error, 1)
	go func() {
		_, err := runs.List(r.ctx, &errandv1.ListRunsRequest{App: "a", Statuses: []errandv1.Status{1}})
		answered <- err
	}()
	<-entered
	r.stop()
	// Longer than the time that a request which is not whole has left.
	time.AfterFunc(700*time.Millisecond, func() { close(release) })
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	r.served <- nil
}

// Every user of the machine can open connections. They would take the files from the node
// that it needs to run commands, and at the end of them the store would end the process.
func TestConnectionsThatShowNoTokenCrowdNobodyOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const list = "POST /errand.v1.RunService/List HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
	answers := func(conn net.Conn, want string) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.Status != want {
			t.Fatalf("%s, %v; want %s", answer.Status, err, want)
		}
	}
	own := r.dial(list + "Authorization: Bearer " + testToken + "\r\n\r\n{}")
	answers(own, "200 OK")
	refused := r.dial(list + "\r\n{}")
	answers(refused, "401 Unauthorized")
	idle := r.dial("")
	for range api.StrangersMax {
		r.dial("")
	}
	last := r.dial("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answers(last, "200 OK")
	for name, conn := range map[string]net.Conn{"refused": refused, "idle": idle} {
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the oldest that shows no token, %s, is open: %v", name, err)
		}
	}
	if _, err := io.WriteString(own, list+"Authorization: Bearer "+testToken+"\r\n\r\n{}"); err != nil {
		t.Fatal(err)
	}
	answers(own, "200 OK")
}

func TestConnectionsLeaveHalfOfTheFilesToTheRest(t *testing.T) {
	for _, c := range []struct {
		files          uint64
		all, strangers int
	}{
		{0, 2, 1},
		{64, 32, 16},
		{1024, 512, 256},
		{4096, 2048, api.StrangersMax},
		{1 << 40, api.StreamsMax, api.StrangersMax},
	} {
		if all, strangers := api.ConnectionBounds(c.files); all != c.all || strangers != c.strangers {
			t.Errorf("of %d files: %d connections, %d strangers; want %d and %d", c.files, all, strangers, c.all, c.strangers)
		}
	}
}
