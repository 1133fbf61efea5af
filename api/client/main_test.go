package client_test

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/fakeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is patience for tests.
var quick = client.Patience{First: 20 * time.Second, Again: 20 * time.Second, PauseMin: time.Millisecond, PauseMax: 10 * time.Millisecond}

func startFake(t *testing.T, set func(*fakeapi.Server)) *fakeapi.Server {
	t.Helper()
	s := fakeapi.New()
	if set != nil {
		set(s)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func newClient(t *testing.T, config client.Config) *client.Client {
	t.Helper()
	if config.Patience == (client.Patience{}) {
		config.Patience = quick
	}
	c, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Whoever imports the client gets the messages, Connect and protobuf, and not a whole
// node with its store and runtime.
func TestClientImportsNothingOfTheEngine(t *testing.T) {
	output, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{
		"github.com/errand-run/errand/api/client", "github.com/errand-run/errand/api/codes", "github.com/errand-run/errand/messages/errand/v1",
		"connectrpc.com/connect", "google.golang.org/protobuf/",
	}
	seen := 0
	for _, path := range strings.Fields(string(output)) {
		seen++
		ok := false
		for _, prefix := range allowed {
			ok = ok || path == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(path, prefix)
		}
		if !ok {
			t.Errorf("the client imports %s", path)
		}
	}
	if seen < len(allowed) {
		t.Errorf("only %d packages were seen", seen)
	}
}

// countingTransport counts the connections that it makes.
type countingTransport struct {
	*http.Transport
	made atomic.Int32
}

func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			c.made.Add(1)
		}
	}}
	return c.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}
